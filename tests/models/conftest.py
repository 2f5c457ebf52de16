"""A small geometry in which no two dimensions agree by accident, and checkpoints of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from torch_mps_fusion.models import GDNConfig, write_model
from torch_mps_fusion.models.config import layer_pattern

SMALL = GDNConfig(
    hidden_size=40,
    num_k_heads=2,
    num_v_heads=6,
    head_k_dim=32,
    head_v_dim=64,
    conv_kernel_size=4,
    rms_norm_eps=1e-6,
    model_type="qwen3_5",
    layer_types=layer_pattern(4),
)


@pytest.fixture
def config() -> GDNConfig:
    return SMALL


@pytest.fixture
def next_config() -> GDNConfig:
    return replace(SMALL, model_type="qwen3_next")


@pytest.fixture
def model_dir(tmp_path: Path, config: GDNConfig) -> Path:
    """A Qwen3.5 directory with one file and layer 0."""
    return write_model(tmp_path / "model", config)


@pytest.fixture
def edit(model_dir: Path) -> Callable[[Callable[[dict[str, Tensor]], object]], Path]:
    """Rewrites the tensors of ``model_dir`` through a function on the dictionary."""

    def apply(change: Callable[[dict[str, Tensor]], object]) -> Path:
        file = model_dir / "model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)
        return model_dir

    return apply


@pytest.fixture
def edit_config(model_dir: Path) -> Callable[..., Path]:
    """Changes fields of the text_config of ``model_dir``; ``...`` removes a field."""

    def apply(**fields: object) -> Path:
        file = model_dir / "config.json"
        content = json.loads(file.read_text())
        for name, value in fields.items():
            if value is ...:
                del content["text_config"][name]
            else:
                content["text_config"][name] = value
        file.write_text(json.dumps(content))
        return model_dir

    return apply
