"""The gate of a layer: float64 on the CPU before anything is timed, bits again after."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torch_mps_fusion import reference
from torch_mps_fusion.tolerances import tolerance

from . import facts
from .layers import EPS, Arm, Fla, Layer, Linears, Ours, Results
from .numeric_classes import errors

# flash-linear-attention rounds elsewhere than the checkpoint does: it is checked, not matched.
FLA_TOLERANCE = 2e-2


def expected(layer: Layer, hidden: Tensor) -> Results:
    """Float64 on the CPU, with the checkpoint's roundings."""
    return reference.gdn_layer(
        hidden.cpu(),
        [layer.in_proj.cpu()],
        *(t.cpu() for t in layer.small()),
        [layer.out_proj.cpu()],
        layer.input_norm_weight.cpu(),
        layer.conv_state.cpu(),
        layer.state.cpu(),
        **layer.shape.keywords,
        eps=EPS,
        rounding=layer.dtype,
    )


def gate(arms: Sequence[Arm], layer: Layer, hidden: Tensor) -> dict[str, dict[str, float]]:
    """Errors of every arm in units of what is accepted, from non-zero states; fresh tensors are
    poisoned, so that an element that nobody wrote is seen. Our shaders must all give one result,
    bit by bit ("same bits")."""
    want = expected(layer, hidden)
    found: dict[str, dict[str, float]] = {}
    first: Results | None = None
    with poisoned():
        for arm in arms:
            if isinstance(arm, Linears):  # no layer
                found[arm.name] = {}
                continue
            got = arm(layer, hidden, layer.states(arm))
            if isinstance(arm, Fla):
                found[arm.name] = {
                    n: e * tolerance(n, layer.dtype).rms / FLA_TOLERANCE
                    for n, e in errors(got, want, layer.dtype).items()
                }
                continue
            found[arm.name] = errors(got, want, layer.dtype)
            if isinstance(arm, Ours) and arm.shader:
                first = first or got
                same = all(map(torch.equal, got, first))
                found[arm.name]["same bits"] = 0.0 if same else float("inf")
    return found


def digest(arm: Arm, layer: Layer, hidden: Tensor) -> str:
    """Of output and both states of one call from the layer's own states."""
    return facts.tensor_sha256(arm(layer, hidden, layer.states(arm)))


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Every fresh tensor starts as NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.utils.deterministic.fill_uninitialized_memory = fill
