"""Comparison of a layer call with the float64 reference, by the one tolerance table."""

from __future__ import annotations

import torch
from cases import Layer
from torch import Tensor

from torch_mps_fusion import reference
from torch_mps_fusion.tolerances import error, tolerance

NAMES = ("output", "conv_state", "recurrent_state")
Results = tuple[Tensor, Tensor, Tensor]


def run_layer(layer: Layer, hidden: Tensor, states=(None, None), mask=None, **keywords) -> Results:
    """``gdn_layer`` with the layer's weights; keywords override the layer's own."""
    return torch.ops.mps_fusion.gdn_layer(
        hidden,
        *layer.weights,
        layer.input_norm_weight,
        *states,
        mask,
        **{**layer.keywords, **keywords},
    )


def run_layer_in_place(
    layer: Layer, hidden: Tensor, states: tuple[Tensor, Tensor], mask=None, **keywords
) -> Tensor:
    """``gdn_layer_``: ``states`` are written."""
    return torch.ops.mps_fusion.gdn_layer_(
        hidden,
        *states,
        *layer.weights,
        layer.input_norm_weight,
        mask,
        **{**layer.keywords, **keywords},
    )


def reference_layer(layer: Layer, hidden: Tensor, states=(None, None), mask=None) -> Results:
    """The reference with the roundings of the dtype of ``hidden``."""
    return reference.gdn_layer(
        hidden,
        *layer.weights,
        layer.input_norm_weight,
        *states,
        mask,
        **layer.keywords,
        rounding=hidden.dtype,
    )


def assert_close(actual: Results, expected: Results, dtype: torch.dtype) -> None:
    """Each of output, conv_state and recurrent_state within its row of the tolerance table."""
    for name, a, e in zip(NAMES, actual, expected, strict=True):
        found, accepted = error(a, e), tolerance(name, dtype).rms
        assert found <= accepted, f"{name} {dtype}: error {found:.2e}, accepted {accepted:.0e}"


def assert_equal(actual: Results, expected: Results) -> None:
    """Bit for bit."""
    for name, a, e in zip(NAMES, actual, expected, strict=True):
        assert torch.equal(a, e), f"{name} differs in {(a != e).sum().item()} of {a.numel()}"
