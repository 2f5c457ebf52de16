"""Writes model directories in the real Hugging Face format, with random weights."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from torch_mps_fusion.models import convert, names
from torch_mps_fusion.models.checkpoint import INDEX, SINGLE
from torch_mps_fusion.models.config import WRAPPER_TYPES, GDNConfig
from torch_mps_fusion.models.random_weights import random_weights

STYLES = ("split", "grouped")


def write_model(
    directory: str | os.PathLike[str],
    config: GDNConfig,
    *,
    layers: Sequence[int] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    decay_dtype: torch.dtype = torch.float32,
    style: str | None = None,
    prefix: str | None = None,
    shards: int = 1,
    mlx: bool = False,
    seed: int = 0,
) -> Path:
    """Writes ``config.json`` and safetensors files with random weights: the model knows nothing.

    Only the GDN mixers and input norms of ``layers`` are written, so the directory has the format
    of a real checkpoint but is no complete model.

    Args:
        directory: made if need be; it must be empty.
        layers: GDN layers to write; None writes the first one. Layer n has the seed ``seed + n``.
        dtype: of all tensors but ``A_log`` and ``dt_bias``, which have ``decay_dtype``.
        style: ``split`` (in_proj_qkv, z, b, a) or ``grouped`` (in_proj_qkvz, ba); None takes that
            of the model type.
        prefix: one of ``names.PREFIXES``; None takes that of the model type.
        shards: 1 writes one file, more write an index and that many shards.
        mlx: as MLX converts it: convolution axes swapped, input norms stored as 1 + w.

    Returns:
        The directory.
    """
    is_next = config.model_type == "qwen3_next"
    style = style or ("grouped" if is_next else "split")
    if style not in STYLES:
        raise ValueError(f"style is {style!r}; accepted: {', '.join(STYLES)}")
    prefix = prefix or names.PREFIXES[0 if config.model_type in WRAPPER_TYPES else 1]
    if prefix not in names.PREFIXES:
        raise ValueError(f"prefix is {prefix!r}; accepted: {', '.join(names.PREFIXES)}")
    if shards < 1:
        raise ValueError(f"shards is {shards}; it must be at least 1")
    layers = config.gdn_layers[:1] if layers is None else layers
    for layer_idx in layers:
        config.check_layer(layer_idx)
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise ValueError(f"directory {target} is not empty")
    tensors: dict[str, Tensor] = {}
    for layer_idx in layers:
        weights = random_weights(
            config,
            dtype=dtype,
            seed=seed + layer_idx,
            with_input_norm=True,
            decay_dtype=decay_dtype,
        )
        stored = _as_stored(config, weights, style, mlx)
        tensors |= {prefix.format(layer_idx) + name: tensor for name, tensor in stored.items()}
    (target / "config.json").write_text(json.dumps(config.to_dict(), indent=2) + "\n")
    save_sharded(target, tensors, shards, "mlx" if mlx else "pt")
    return target


def save_sharded(directory: Path, tensors: dict[str, Tensor], shards: int, kind: str) -> None:
    """Saves ``tensors`` in one file, or in ``shards`` files and an index. ``kind`` is metadata."""
    metadata = {"format": kind}
    if shards == 1:
        save_file(tensors, directory / SINGLE, metadata=metadata)
        return
    files = [f"model-{i:05d}-of-{shards:05d}.safetensors" for i in range(1, shards + 1)]
    weight_map = {name: files[i % shards] for i, name in enumerate(tensors)}
    for file in files:
        part = {name: tensor for name, tensor in tensors.items() if weight_map[name] == file}
        save_file(part, directory / file, metadata=metadata)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _as_stored(
    config: GDNConfig, weights: dict[str, Tensor], style: str, mlx: bool
) -> dict[str, Tensor]:
    """The tensors of one decoder layer as a checkpoint of this kind stores them."""
    mixer = dict(weights)
    input_norm = mixer.pop(names.INPUT_NORM_PARAMETER)
    if mlx:
        mixer["conv1d.weight"] = mixer["conv1d.weight"].transpose(1, 2).contiguous()
        input_norm = convert.norm_to_mlx(input_norm)
    if style == "grouped":
        mixer |= convert.join_grouped(config, mixer)
        for name in names.SPLIT_PROJECTIONS:
            del mixer[name]
    stored = {names.MIXER + name: tensor for name, tensor in mixer.items()}
    stored[names.INPUT_NORM] = input_norm
    return stored
