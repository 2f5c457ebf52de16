"""The operands of ``gdn_layer`` from one of transformers' modules, read at each call.

Split projections (Qwen3.5) in ``rows`` format are the module's own parameters. Grouped ones
(Qwen3-Next) have their rows in another order, and packed formats are another layout: those are
copies, made anew when a parameter is replaced, moved or written in place. (A write through
``.data`` leaves no trace and is not seen.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torch_mps_fusion import packing
from torch_mps_fusion.models.convert import split_grouped

ROWS = "rows"
SPLIT = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
GROUPED = ("in_proj_qkvz", "in_proj_ba")
_ATTRIBUTE = "_tmf_copies"


def projection_names(module: nn.Module) -> tuple[str, ...]:
    """The names of the input projections: four in Qwen3.5's style, two in Qwen3-Next's."""
    return SPLIT if "in_proj_qkv" in module._modules else GROUPED


def copies_needed(module: nn.Module, weight_format: str) -> bool:
    return weight_format != ROWS or projection_names(module) is GROUPED


def operands(module: Any, weight_format: str) -> tuple[list[Tensor], list[Tensor]]:
    """``in_proj`` and ``out_proj`` of the op, in this format."""
    children = module._modules
    weights = [children[name]._parameters["weight"] for name in projection_names(module)]
    out_proj = children["out_proj"]._parameters["weight"]
    if not copies_needed(module, weight_format):
        return weights, [out_proj]
    if weight_format == ROWS and torch.compiler.is_compiling():
        # A graph cannot ask whether a copy is fresh: it reorders the rows in each call.
        return _split_rows(module, weights), [out_proj]
    if weight_format == ROWS and _differentiable(weights):
        # Gradients flow to the parameters, through rows reordered for the call.
        drop_copies(module)
        return _split_rows(module, weights), [out_proj]
    return _copied(module, weight_format, weights, out_proj)


def drop_copies(module: nn.Module) -> None:
    """Frees the copies; the next call that needs them makes them anew."""
    module.__dict__.pop(_ATTRIBUTE, None)


def _differentiable(weights: list[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(w.requires_grad for w in weights)


def _split_rows(module: Any, weights: list[Tensor]) -> list[Tensor]:
    if len(weights) == len(SPLIT):
        return weights
    return list(split_grouped(module, *weights).values())


@torch.compiler.disable(reason="packed weights are looked up outside of the graph")
def _copied(
    module: Any, weight_format: str, weights: list[Tensor], out_proj: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    used = weights if weight_format == ROWS else [*weights, out_proj]
    key = (weight_format, *map(_identity, used))
    copies = module.__dict__.get(_ATTRIBUTE)
    if copies is None or copies.key != key:
        rows = _split_rows(module, [w.detach() for w in weights])
        if weight_format == ROWS:
            copies = _Copies(key, torch.cat(rows), None)
        else:
            copies = _Copies(
                key,
                packing.pack(rows, weight_format),
                packing.pack(out_proj.detach(), weight_format),
            )
        module.__dict__[_ATTRIBUTE] = copies
    return [copies.in_proj], [out_proj if copies.out_proj is None else copies.out_proj]


class _Copies:
    """Copied operands and the state of the parameters that they were made of."""

    def __init__(self, key: tuple, in_proj: Tensor, out_proj: Tensor | None) -> None:
        self.key, self.in_proj, self.out_proj = key, in_proj, out_proj

    def __reduce__(self) -> tuple:
        # A copied or pickled module makes its own.
        return type(None), ()


def _identity(weight: Tensor) -> tuple:
    return weight.data_ptr(), weight._version, weight.shape, weight.dtype, weight.device
