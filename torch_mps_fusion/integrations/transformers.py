"""Gated DeltaNet layers of a transformers model on our ops: ``fuse`` and ``unfuse``.

    from torch_mps_fusion.integrations.transformers import fuse, unfuse
    fuse(model)  # generate() as before; unfuse(model) undoes it

A fused layer reads the module's own parameters and writes the cache's own tensors. What it does
not support runs transformers' own forward, with one ``FallbackWarning`` that says why: autocast,
packed sequences (``cu_seq_lens_q``, ``seq_idx``) and any other keyword that it does not know,
caches that record their past or update in their own way, adapters and hooks on the layer's
projections. A fused layer also trains; a gradient of packed weights, or through a cache with a
past, is again transformers' own.

Models: Qwen3-Next, and those whose layers have the forward of Qwen3.5's: Qwen3.5 and its MoE,
Qwen4-Exp, Lara-Mini.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

from torch import nn

from torch_mps_fusion import packing
from torch_mps_fusion.integrations.fallback import (
    FallbackWarning,
    geometry,
    has_own_forward,
    is_plain,
    why_not_module,
    why_not_supported,
)
from torch_mps_fusion.integrations.gdn_forward import layer_class
from torch_mps_fusion.integrations.gdn_operands import drop_copies
from torch_mps_fusion.integrations.packed_linear import PackedLinear
from torch_mps_fusion.models.choice import format_for
from torch_mps_fusion.ops import VARIANTS

__all__ = ["FallbackWarning", "fuse", "fused_layers", "kernel_mapping", "unfuse"]

# The classes whose forward is Qwen3.5's, and Qwen3-Next's.
CLASSES = (
    "Qwen3_5GatedDeltaNet",
    "Qwen3_5MoeGatedDeltaNet",
    "Qwen4ExpTextGatedDeltaNet",
    "LaraMiniGatedDeltaNet",
    "Qwen3NextGatedDeltaNet",
)
# The name under which transformers offers its own hook: Qwen3.5's class and its MoE's.
HOOK = "Qwen3_5GatedDeltaNet"


def fuse(model: nn.Module, variant: str = "auto", linears: bool = False) -> nn.Module:
    """Runs the GDN layers of a transformers model by ``torch_mps_fusion``; returns the model.

    Args:
        model: any module that holds GDN layers of transformers >= 5.17. Fused again, it changes
            to the new arguments.
        variant: as in ``ops.gdn_layer``. ``auto``, ``stock`` and ``native`` read the parameters
            as they are; Qwen3-Next, whose input projections are grouped by key head, keeps a
            reordered copy of them (for 80B-A3B 1.8 GB in all). The shader variants keep a packed
            copy of the layers' projections. ``unfuse`` frees the copies.
        linears: also packs the model's other linears, for ``ops.packed_linear``: those without a
            bias, without hooks, of at least one whole block of inputs and not tied to another
            module. Their rows are given up: one copy remains.

    Raises:
        TypeError: ``model`` is not a module, ``linears`` not a bool.
        ValueError: an unknown variant; no GDN layer; a layer with adapters, hooks or another
            forward; nothing to pack for ``linears``.
        NotImplementedError: the variant (or ``linears``) does not run with this model here.
    """
    _check_arguments(model, variant, linears)
    layers = dict(gdn_layers(model))
    if not layers:
        raise ValueError(f"model: {_no_layers(model)}")
    for name, module in layers.items():
        _check_layer(name, module, variant)
    if linears:
        _check_packing(next(iter(layers.values())))
        if not any(True for _ in _packable(model)) and not _packed(model):
            raise ValueError("linears: the model has no linear that can be packed; accepted: False")
    unfuse(model)
    forward = layer_class(variant).forward
    forward._tmf_fused = True  # type: ignore[attr-defined]
    for module in layers.values():
        module.forward = MethodType(forward, module)
    if linears:
        for parent, name, linear in list(_packable(model)):
            lanes = packing.format_name("nvidia" if linear.weight.is_cuda else "apple")
            setattr(parent, name, PackedLinear(linear, lanes))
    return model


def unfuse(model: nn.Module) -> nn.Module:
    """Undoes ``fuse``, frees its copies and brings packed linears back; returns the model."""
    for module in list(model.modules()):
        if _is_fused(module):
            del module.__dict__["forward"]
            drop_copies(module)
        for name, child in module.named_children():
            if isinstance(child, PackedLinear):
                setattr(module, name, child.restore())
    return model


def fused_layers(model: nn.Module) -> list[str]:
    """The names of the layers that ``fuse`` has fused."""
    return [name for name, module in model.named_modules() if _is_fused(module)]


def kernel_mapping(
    variant: str = "auto", devices: Sequence[str] = ("cpu", "mps")
) -> dict[str, dict[str, Any]]:
    """The fused layer for transformers' own route, the package ``kernels``.

        kernels.register_kernel_mapping(kernel_mapping())
        model.set_use_kernels(True)  # or from_pretrained(.., use_kernels=True)

    Serves the classes with the hook (Qwen3.5, dense and MoE) in inference; the shader variants'
    copies and the fallbacks are those of ``fuse``.

    Args:
        variant: as in ``fuse``.
        devices: device types as ``kernels`` spells them.

    Returns:
        a mapping for ``kernels.register_kernel_mapping`` or ``kernels.use_kernel_mapping``.
    """
    from kernels import Mode

    if variant not in VARIANTS:
        raise ValueError(f"variant: got {variant!r}; accepted: {', '.join(VARIANTS)}")
    repository = _Repository(variant)
    modes = (Mode.INFERENCE, Mode.INFERENCE | Mode.TORCH_COMPILE)
    return {HOOK: {device: dict.fromkeys(modes, repository) for device in devices}}


@dataclass(frozen=True)
class _Repository:
    """What ``kernels`` takes a layer from: here nothing is downloaded."""

    variant: str
    layer_name: str = "FusedGatedDeltaNet"

    def load(self) -> type[nn.Module]:
        return layer_class(self.variant)


def gdn_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The modules that ``fuse`` takes: of transformers' own classes, by exact type."""
    for name, module in model.named_modules():
        kind = type(module)
        if kind.__name__ in CLASSES and kind.__module__.startswith("transformers."):
            yield name, module


def _is_fused(module: nn.Module) -> bool:
    return hasattr(module.__dict__.get("forward"), "_tmf_fused")


def _check_arguments(model: object, variant: object, linears: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: got {type(model).__name__}; accepted: a torch.nn.Module")
    if variant not in VARIANTS:
        raise ValueError(f"variant: got {variant!r}; accepted: {', '.join(VARIANTS)}")
    if not isinstance(linears, bool):
        raise TypeError(f"linears: got {linears!r}; accepted: True or False")


def _no_layers(model: nn.Module) -> str:
    seen = sorted({t.__name__ for m in model.modules() if "DeltaNet" in (t := type(m)).__name__})
    found = f"its {', '.join(seen)} is none of these" if seen else "it has none"
    return f"no Gated DeltaNet layer in {type(model).__name__}: {found}; accepted: " + ", ".join(
        CLASSES
    )


def _check_layer(name: str, module: Any, variant: str) -> None:
    if not has_own_forward(module) and not _is_fused(module):
        raise ValueError(
            f"model: {name}.forward has been replaced already (hooks of accelerate, another "
            "kernel); accepted: the class's own"
        )
    reason = why_not_module(module)
    if reason:
        raise ValueError(f"model: {name}: {reason}")
    weight = module.out_proj.weight
    reason = why_not_supported(
        variant,
        weight.device.type,
        weight.dtype,
        *geometry(module, format_for(variant, weight.device)),
    )
    if reason:
        raise NotImplementedError(f"model: {name}: {reason}")


def _check_packing(module: Any) -> None:
    weight = module.out_proj.weight
    weight_format = format_for("packed", weight.device)
    # Whether shaders run on this device at all; the sizes are any that they have.
    reason = why_not_supported(
        "packed", weight.device.type, weight.dtype, 1, 1, 32, 32, 4, 32, weight_format
    )
    if reason:
        raise NotImplementedError(f"linears: {reason}")


def _packed(model: nn.Module) -> bool:
    return any(isinstance(module, PackedLinear) for module in model.modules())


def _packable(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    uses: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    inside = {id(part) for _, layer in gdn_layers(model) for part in layer.modules()}
    for parent in model.modules():
        for name, child in parent.named_children():
            if id(parent) in inside or not isinstance(child, nn.Linear):
                continue
            plain = is_plain(child, nn.Linear) and child.bias is None
            fits = child.weight.dtype in packing.DTYPES and child.in_features % packing.BLOCK_K == 0
            if plain and fits and uses[id(child.weight)] == 1:
                yield parent, name, child
