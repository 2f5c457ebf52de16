"""GDNConfig: the geometry of a model's Gated DeltaNet layers, read from a Hugging Face config.

Nothing is filled in. A field that the file does not have is an error that names the field and the
file, because the defaults of other programs are not the geometry of any released model.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GDN_LAYER = "linear_attention"
LAYER_TYPES = (GDN_LAYER, "full_attention", "indexed_attention")

# Model types whose config this package reads. A wrapper keeps its fields in a nested text_config.
WRAPPER_TYPES = ("qwen3_5", "qwen3_5_moe", "qwen4_exp")
MODEL_TYPES = ("qwen3_next", *(t for w in WRAPPER_TYPES for t in (w, f"{w}_text")))

# Field of GDNConfig <- field of the Hugging Face config.
_INTEGERS = {
    "hidden_size": "hidden_size",
    "num_k_heads": "linear_num_key_heads",
    "num_v_heads": "linear_num_value_heads",
    "head_k_dim": "linear_key_head_dim",
    "head_v_dim": "linear_value_head_dim",
    "conv_kernel_size": "linear_conv_kernel_dim",
}


class ConfigError(ValueError):
    """A config that is unreadable, incomplete or out of what this package runs."""


@dataclass(frozen=True)
class GDNConfig:
    """Geometry of the GDN layers of one model. Every field is required and checked.

    Attributes:
        hidden_size: width H of the model.
        num_k_heads, num_v_heads: key heads Hk and value heads Hv; Hv is a multiple of Hk.
        head_k_dim, head_v_dim: head sizes Dk and Dv.
        conv_kernel_size: width K of the causal convolution, at least 2.
        rms_norm_eps: eps of the norms, positive.
        model_type: one of ``MODEL_TYPES``, as the config's outermost level spells it.
        layer_types: the mixer of every layer; ``linear_attention`` marks a GDN layer.
    """

    hidden_size: int
    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    conv_kernel_size: int
    rms_norm_eps: float
    model_type: str
    layer_types: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_model_type(self.model_type, "GDNConfig")
        for name in _INTEGERS:
            _check_integer(getattr(self, name), f"GDNConfig.{name}", 2 if "conv" in name else 1)
        _check_eps(self.rms_norm_eps, "GDNConfig.rms_norm_eps")
        object.__setattr__(self, "layer_types", tuple(self.layer_types))
        _check_layer_types(self.layer_types, "GDNConfig.layer_types")
        if self.num_v_heads % self.num_k_heads:
            raise ConfigError(
                f"num_v_heads (linear_num_value_heads) is {self.num_v_heads}, which is not a "
                f"multiple of num_k_heads (linear_num_key_heads) {self.num_k_heads}"
            )

    @property
    def num_layers(self) -> int:
        """Layers of the whole model, GDN and attention together."""
        return len(self.layer_types)

    @property
    def gdn_layers(self) -> tuple[int, ...]:
        """Indices of the GDN layers."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == GDN_LAYER)

    @property
    def key_dim(self) -> int:
        return self.num_k_heads * self.head_k_dim

    @property
    def value_dim(self) -> int:
        return self.num_v_heads * self.head_v_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: q, k and v."""
        return 2 * self.key_dim + self.value_dim

    @property
    def has_plain_residual(self) -> bool:
        """Whether the decoder layer is ``x + mixer(norm(x))``; qwen4_exp mixes several streams."""
        return not self.model_type.startswith("qwen4_exp")

    def check_layer(self, layer_idx: int) -> None:
        """Raises ConfigError unless ``layer_idx`` is the index of a GDN layer."""
        if isinstance(layer_idx, bool) or not isinstance(layer_idx, int):
            raise ConfigError(f"layer_idx must be an int, got {layer_idx!r}")
        where = f"the GDN layers of this {self.model_type} model are {list(self.gdn_layers)}"
        if not 0 <= layer_idx < self.num_layers:
            raise ConfigError(f"layer_idx {layer_idx} is outside 0..{self.num_layers - 1}; {where}")
        kind = self.layer_types[layer_idx]
        if kind != GDN_LAYER:
            raise ConfigError(f"layer {layer_idx} is a {kind} layer, not a GDN layer; {where}")

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> GDNConfig:
        """Reads a ``config.json``, given as the file or as the directory that holds it.

        Raises:
            FileNotFoundError: there is no such file.
            ConfigError: the file is not JSON, lacks a field, or holds a value that is not accepted.
        """
        file = Path(path)
        if file.is_dir():
            file = file / "config.json"
        if not file.is_file():
            raise FileNotFoundError(f"no config at {file}")
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{file} is not a JSON file: {error}") from error
        return cls.from_dict(content, source=str(file))

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], *, source: str = "config") -> GDNConfig:
        """Reads a Hugging Face config; ``source`` names it in errors. See ``from_json``."""
        if not isinstance(config, Mapping):
            raise ConfigError(f"{source} must be a JSON object, got {type(config).__name__}")
        model_type = _check_model_type(_field(config, "model_type", source), source)
        text, at = _text_level(config, model_type, source)
        for name in ("hidden_act", "output_gate_type"):
            _check_activation(text, name, at)
        integers = {
            mine: _check_integer(
                _field(text, theirs, at), f"{at}: {theirs}", 2 if "conv" in mine else 1
            )
            for mine, theirs in _INTEGERS.items()
        }
        eps = _check_eps(_field(text, "rms_norm_eps", at), f"{at}: rms_norm_eps")
        layer_types = _layer_types(text, at)
        try:
            return cls(**integers, rms_norm_eps=eps, model_type=model_type, layer_types=layer_types)
        except ConfigError as error:
            raise ConfigError(f"{at}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """The same as a Hugging Face config, nested where the model type nests it."""
        text: dict[str, Any] = {theirs: getattr(self, mine) for mine, theirs in _INTEGERS.items()}
        text["rms_norm_eps"] = self.rms_norm_eps
        text["hidden_act"] = "silu"
        text["num_hidden_layers"] = self.num_layers
        text["layer_types"] = list(self.layer_types)
        if self.model_type in WRAPPER_TYPES:
            text["model_type"] = f"{self.model_type}_text"
            return {"model_type": self.model_type, "text_config": text}
        return {"model_type": self.model_type, **text}


def _field(config: Mapping[str, Any], name: str, source: str) -> Any:
    if config.get(name) is None:
        state = "is null" if name in config else "is missing"
        raise ConfigError(f"{source}: field '{name}' {state}; it has no default")
    return config[name]


def _text_level(
    config: Mapping[str, Any], model_type: str, source: str
) -> tuple[Mapping[str, Any], str]:
    """The level that holds the language model's fields, and its name for errors."""
    if "text_config" not in config:
        return config, source
    text = config["text_config"]
    at = f"{source}: text_config"
    if not isinstance(text, Mapping):
        raise ConfigError(f"{at} must be a JSON object, got {type(text).__name__}")
    nested = text.get("model_type", model_type)
    if nested not in (model_type, f"{model_type}_text"):
        raise ConfigError(f"{at}: model_type is {nested!r} inside a {model_type!r} config")
    return text, at


def _check_model_type(value: Any, source: str) -> str:
    if value not in MODEL_TYPES:
        accepted = ", ".join(MODEL_TYPES)
        raise ConfigError(f"{source}: model_type {value!r} is not supported; accepted: {accepted}")
    return value


def _check_integer(value: Any, name: str, minimum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(f"{name} must be an integer of at least {minimum}, got {value!r}")
    return value


def _check_eps(value: Any, name: str) -> float:
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{name} must be a positive number, got {value!r}")
    return float(value)


def _check_activation(config: Mapping[str, Any], name: str, source: str) -> None:
    # Only newer models have output_gate_type; where it is absent or null, hidden_act is the gate.
    value = config.get(name) if name == "output_gate_type" else _field(config, name, source)
    if value not in ("silu", None):
        raise ConfigError(f"{source}: {name} is {value!r}; accepted: 'silu'")


def _check_layer_types(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not value:
        raise ConfigError(f"{name} must be a list with one entry for each layer, got {value!r}")
    for i, kind in enumerate(value):
        if kind not in LAYER_TYPES:
            accepted = ", ".join(LAYER_TYPES)
            raise ConfigError(f"{name}[{i}] is {kind!r}; accepted: {accepted}")
    return tuple(value)


def _layer_types(config: Mapping[str, Any], source: str) -> tuple[str, ...]:
    """The list itself, or the pattern that ``full_attention_interval`` stands for."""
    count = _check_integer(
        _field(config, "num_hidden_layers", source), f"{source}: num_hidden_layers", 1
    )
    if config.get("layer_types") is not None:
        kinds = _check_layer_types(config["layer_types"], f"{source}: layer_types")
        if len(kinds) != count:
            raise ConfigError(
                f"{source}: layer_types has {len(kinds)} entries, num_hidden_layers is {count}"
            )
        return kinds
    interval = config.get("full_attention_interval")
    if interval is None:
        raise ConfigError(
            f"{source}: fields 'layer_types' and 'full_attention_interval' are both missing; "
            "one of them must say which layers are GDN layers"
        )
    _check_integer(interval, f"{source}: full_attention_interval", 1)
    return layer_pattern(count, interval)


def layer_pattern(count: int, interval: int = 4) -> tuple[str, ...]:
    """Layer types where every ``interval``-th layer is full attention and the rest are GDN."""
    return tuple("full_attention" if i % interval == 0 else GDN_LAYER for i in range(1, count + 1))


def _qwen3_5(hidden_size: int, layers: int, num_v_heads: int) -> GDNConfig:
    return GDNConfig(
        hidden_size=hidden_size,
        num_k_heads=16,
        num_v_heads=num_v_heads,
        head_k_dim=128,
        head_v_dim=128,
        conv_kernel_size=4,
        rms_norm_eps=1e-6,
        model_type="qwen3_5",
        layer_types=layer_pattern(layers),
    )


# Shapes of released models, for demonstrations and benchmarks with random weights only; a real
# checkpoint brings its own config. 2b and 4b are unverified: not all of their numbers were read
# in a released config.
KNOWN_SHAPES: Mapping[str, GDNConfig] = {
    "0.8b": _qwen3_5(1024, 24, 16),
    "2b": _qwen3_5(2048, 24, 16),
    "4b": _qwen3_5(2560, 32, 32),
    "9b": _qwen3_5(4096, 32, 32),
    "27b": _qwen3_5(5120, 64, 48),
}
UNVERIFIED_SHAPES = frozenset({"2b", "4b"})
