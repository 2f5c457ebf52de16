"""Reads the weights of one GDN layer from a checkpoint, in either style, as Qwen3.5 names them.

Everything is checked against the config from the files' headers before a weight is read, and the
result is complete or an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_mps_fusion.models import convert, names, operands
from torch_mps_fusion.models.checkpoint import Checkpoint, CheckpointError, TensorInfo
from torch_mps_fusion.models.config import GDNConfig

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_QUANTISED_DTYPES = ("U8", "I8", "U16", "I16", "U32", "I32", "F4", "F6", "F8")
# What quantisers add beside, or put in place of, a weight.
_QUANTISED_MARKS = (
    "scales",
    "biases",
    "scale",
    "weight_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "weight_packed",
    "weight_shape",
    "input_scale",
    "qweight",
    "qzeros",
    "g_idx",
    "absmax",
    "quant_map",
)


@dataclass(frozen=True)
class _Layer:
    """The tensors of one layer in a checkpoint: parameter name -> full name and header."""

    checkpoint: Checkpoint
    full_names: Mapping[str, str]
    infos: Mapping[str, TensorInfo]
    is_mlx: bool

    def read(self, name: str, device: torch.device, dtype: torch.dtype) -> Tensor:
        tensor = self.checkpoint.read(self.full_names[name])
        if self.is_mlx and name == "conv1d.weight":
            tensor = convert.conv_from_mlx(tensor)
        if self.is_mlx and name == names.INPUT_NORM:
            tensor = convert.norm_from_mlx(tensor)
        return _cast(tensor, self.full_names[name], device, dtype)


def load_layer(
    path: str | os.PathLike[str],
    layer_idx: int,
    *,
    config: GDNConfig | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    with_input_norm: bool = False,
) -> tuple[GDNConfig, dict[str, Tensor]]:
    """Loads one GDN layer. Nothing of the result shares memory with the files.

    Args:
        path: a ``.safetensors`` file, a model directory, or a ``.safetensors.index.json``.
        layer_idx: the layer in the model; it must be a GDN layer.
        config: the model's geometry; None reads ``config.json`` beside the weights.
        device: where the weights go; None is the CPU. ``"mps"`` and ``"mps:0"`` are the same.
        dtype: float32, float16 or bfloat16; None keeps the dtype of the projections. ``A_log`` and
            ``dt_bias`` are never rounded: where their stored dtype is not that of the layer they
            become float32 (transformers rounds them).
        with_input_norm: also load the decoder layer's ``input_layernorm`` weight (the w of 1 + w),
            as ``input_norm_weight``.

    Returns:
        The config and the weights by parameter name (``names.parameter_shapes``).

    Raises:
        FileNotFoundError: no checkpoint, or no config, at ``path``.
        ConfigError: an incomplete config, or ``layer_idx`` is not a GDN layer.
        CheckpointError: a file, tensor, shape or dtype is not what it should be.
        ValueError: a ``device`` or ``dtype`` that cannot be used.
    """
    target = resolve_device(device)
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype}; accepted: {', '.join(map(str, DTYPES))} or None")
    checkpoint = Checkpoint.open(path)
    config = config or _config_beside(checkpoint)
    config.check_layer(layer_idx)
    if with_input_norm and not config.has_plain_residual:
        raise ValueError(
            f"with_input_norm: a {config.model_type} layer is not x + mixer(norm(x)); "
            "load the mixer alone"
        )
    layer = _find_layer(checkpoint, config, layer_idx, with_input_norm)
    model_dtype = dtype or _projection_dtype(layer)
    return config, _read_layer(layer, config, target, model_dtype)


def resolve_device(device: torch.device | str | None) -> torch.device:
    """The device, proved usable by an allocation. Weights are read on the CPU and moved."""
    try:
        resolved = torch.device("cpu" if device is None else device)
        torch.empty(1, device=resolved)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {str(device)!r} cannot be used here: {reason}") from error
    return resolved


def _config_beside(checkpoint: Checkpoint) -> GDNConfig:
    file = checkpoint.directory / "config.json"
    if not file.exists():
        raise FileNotFoundError(f"no config at {file}; put it beside the weights or give config=")
    return GDNConfig.from_json(file)


def _find_layer(
    checkpoint: Checkpoint, config: GDNConfig, layer_idx: int, with_input_norm: bool
) -> _Layer:
    prefix = _prefix(checkpoint, layer_idx)
    mixer = prefix + names.MIXER
    present = {name[len(mixer) :] for name in checkpoint.files if name.startswith(mixer)}
    _refuse_quantised_names(checkpoint, mixer, present)
    projections = _projections(checkpoint, mixer, present)
    wanted = {name: mixer + name for name in (*projections, *names.SHARED)}
    shapes = names.parameter_shapes(config) | names.grouped_shapes(config)
    if with_input_norm:
        wanted[names.INPUT_NORM] = prefix + names.INPUT_NORM
        shapes[names.INPUT_NORM] = (config.hidden_size,)
    _check_complete(checkpoint, wanted, mixer, present)
    infos = {name: checkpoint.info(full) for name, full in wanted.items()}
    for name, info in infos.items():
        _check_dtype(wanted[name], info)
    is_mlx = _is_mlx(config, infos["conv1d.weight"])
    if is_mlx:
        shapes["conv1d.weight"] = (config.conv_dim, config.conv_kernel_size, 1)
    for name, info in infos.items():
        if info.shape != shapes[name]:
            raise CheckpointError(
                f"{info.file}: {wanted[name]} has shape {list(info.shape)}, the config "
                f"({config.model_type}) asks for {list(shapes[name])}"
            )
    return _Layer(checkpoint, wanted, infos, is_mlx)


def _prefix(checkpoint: Checkpoint, layer_idx: int) -> str:
    """The one known prefix under which this layer's mixer is stored."""
    tried = [prefix.format(layer_idx) for prefix in names.PREFIXES]
    found = [p for p in tried if any(n.startswith(p + names.MIXER) for n in checkpoint.files)]
    if len(found) > 1:
        raise CheckpointError(f"{checkpoint.source} has layer {layer_idx} under {_listed(found)}")
    if found:
        return found[0]
    kind = ""
    if any(n.startswith(p + "self_attn.") for p in tried for n in checkpoint.files):
        kind = " (its layer of that index is an attention layer, unlike the config says)"
    raise CheckpointError(
        f"{checkpoint.source} has no tensor of GDN layer {layer_idx}{kind}; "
        f"tried the prefixes {_listed(p + names.MIXER for p in tried)}"
    )


def _projections(checkpoint: Checkpoint, mixer: str, present: set[str]) -> tuple[str, ...]:
    """The projections of the style that the layer is stored in."""
    split = present.intersection(names.SPLIT_PROJECTIONS)
    grouped = present.intersection(names.GROUPED_PROJECTIONS)
    if split and grouped:
        raise CheckpointError(
            f"{checkpoint.source}: {mixer} has projections of both styles: "
            f"{_listed(sorted(split | grouped))}"
        )
    return names.GROUPED_PROJECTIONS if grouped else names.SPLIT_PROJECTIONS


def _check_complete(
    checkpoint: Checkpoint, wanted: Mapping[str, str], mixer: str, present: set[str]
) -> None:
    missing = [full for full in wanted.values() if full not in checkpoint.files]
    if missing:
        raise CheckpointError(
            f"{checkpoint.source} lacks {_listed(missing)}; a GDN layer has the projections "
            f"{_listed(names.SPLIT_PROJECTIONS)} or {_listed(names.GROUPED_PROJECTIONS)}, and "
            f"{_listed(names.SHARED)}"
        )
    unknown = sorted(present.difference(wanted))
    if unknown:
        raise CheckpointError(
            f"{checkpoint.source}: {_listed(mixer + name for name in unknown)} would be ignored; "
            "a GDN layer has no such tensor"
        )


def _refuse_quantised_names(checkpoint: Checkpoint, mixer: str, present: Iterable[str]) -> None:
    marks = sorted(n for n in present if n.rsplit(".", 1)[-1] in _QUANTISED_MARKS)
    if marks:
        raise CheckpointError(
            f"{checkpoint.source}: {mixer + marks[0]} means quantised weights, which are not "
            f"supported; accepted: tensors of {_listed(_STORED)}"
        )


def _check_dtype(full_name: str, info: TensorInfo) -> None:
    if info.dtype in _STORED:
        return
    quantised = " (quantised weights)" if info.dtype.startswith(_QUANTISED_DTYPES) else ""
    raise CheckpointError(
        f"{info.file}: {full_name} has dtype {info.dtype}{quantised}, which is not supported; "
        f"accepted: {_listed(_STORED)}"
    )


def _is_mlx(config: GDNConfig, conv: TensorInfo) -> bool:
    """Whether MLX converted the file: it swaps the last two axes of the convolution weight.

    Such a file also stores 1 + w for the layer norms. K is at least 2, so one shape cannot be both.
    """
    return conv.shape == (config.conv_dim, config.conv_kernel_size, 1)


def _projection_dtype(layer: _Layer) -> torch.dtype:
    dtypes = {n: info.dtype for n, info in layer.infos.items() if n in names.PROJECTIONS}
    if len(set(dtypes.values())) > 1:
        listed = _listed(f"{layer.full_names[name]} {dtype}" for name, dtype in dtypes.items())
        raise CheckpointError(
            f"{layer.checkpoint.source}: the projections differ in dtype ({listed}); "
            "say which one to convert to with dtype="
        )
    return _STORED[next(iter(dtypes.values()))]


def _read_layer(
    layer: _Layer, config: GDNConfig, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    grouped: dict[str, Tensor] = {}
    if names.GROUPED_PROJECTIONS[0] in layer.full_names:
        qkvz, ba = (layer.read(n, torch.device("cpu"), dtype) for n in names.GROUPED_PROJECTIONS)
        grouped = convert.split_grouped(config, qkvz, ba)
    shapes = names.parameter_shapes(config)
    for operand in operands.OPERANDS.values():
        # Read into the place where they can be packed without a second copy.
        rows = [shapes[name][0] for name in operand]
        views = operands.new_buffer(rows, shapes[operand[0]][1], dtype, device)
        for name, view in zip(operand, views, strict=True):
            view.copy_(grouped[name] if name in grouped else layer.read(name, device, dtype))
            weights[name] = view
    for name in layer.full_names:
        if name in weights or name in names.GROUPED_PROJECTIONS:
            continue
        kept = name in names.DECAY_PARAMETERS and _STORED[layer.infos[name].dtype] != dtype
        own = names.INPUT_NORM_PARAMETER if name == names.INPUT_NORM else name
        weights[own] = layer.read(name, device, torch.float32 if kept else dtype)
    return weights


def _cast(tensor: Tensor, name: str, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A copy on ``device``; refuses a conversion that turns a finite weight into infinity."""
    result = tensor.to(dtype, copy=True)
    if dtype == torch.float16 and tensor.dtype != dtype:
        lost = result.isinf() & tensor.isfinite()
        if bool(lost.any()):
            largest = tensor[lost].abs().max().item()
            raise ValueError(f"dtype: {name} holds {largest:g}, which torch.float16 cannot hold")
    return result.to(device)


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))
