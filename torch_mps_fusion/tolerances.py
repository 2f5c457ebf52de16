"""The one tolerance table, the same in CI and at home.

An error is measured against the float64 reference with the checkpoint's roundings
(``reference``, ``rounding=dtype``) as the root mean square of the difference over the root mean
square of the reference: it does not hide one wrong row (sizes in the tests are small enough for
that), and it does not blow up where the reference is near zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tolerance:
    """Largest accepted relative RMS error, and why it is what it is."""

    rms: float
    reason: str


_FP32 = "fp32 sums in another order: some 1e-7 a step, growing with K and T"
_FLIP = "a value next to a rounding boundary may round the other way at each rounding step"
_STATE = "the state is fp32, but what enters it was rounded: flips of q, k, v and beta"
_EXACT = "a copy of values that the projection rounded: only flips of that rounding"
_BACKWARD = "fp32 sums twice over: the states again, then the gradients through them"
_LAST = "fp32 sums, then one rounding of the gradient to the dtype"

TABLE: dict[tuple[str, torch.dtype], Tolerance] = {
    ("output", torch.float32): Tolerance(5e-6, _FP32),
    ("output", torch.float16): Tolerance(6e-4, _FLIP),
    ("output", torch.bfloat16): Tolerance(5e-3, _FLIP),
    ("recurrent_state", torch.float32): Tolerance(5e-6, _FP32),
    ("recurrent_state", torch.float16): Tolerance(3e-4, _STATE),
    ("recurrent_state", torch.bfloat16): Tolerance(2.5e-3, _STATE),
    ("conv_state", torch.float32): Tolerance(2e-6, _FP32),
    ("conv_state", torch.float16): Tolerance(1e-4, _EXACT),
    ("conv_state", torch.bfloat16): Tolerance(1e-3, _EXACT),
    ("gradient", torch.float32): Tolerance(1e-5, _BACKWARD),
    ("gradient", torch.float16): Tolerance(3e-4, _LAST),
    ("gradient", torch.bfloat16): Tolerance(2.5e-3, _LAST),
    ("layer_gradient", torch.float32): Tolerance(2e-5, _BACKWARD),
    ("layer_gradient", torch.float16): Tolerance(2e-3, _FLIP),
    ("layer_gradient", torch.bfloat16): Tolerance(1.5e-2, _FLIP),
}


def error(actual: Tensor, reference: Tensor) -> float:
    """RMS of the difference over RMS of the reference; infinite if ``actual`` is not finite."""
    if actual.shape != reference.shape:
        raise ValueError(f"actual: got {tuple(actual.shape)}; accepted: {tuple(reference.shape)}")
    if not torch.isfinite(actual).all():
        return math.inf
    difference = (actual.double() - reference.double()).square().mean().sqrt().item()
    size = reference.double().square().mean().sqrt().item()
    if size == 0.0:
        return 0.0 if difference == 0.0 else math.inf
    return difference / size


def tolerance(name: str, dtype: torch.dtype) -> Tolerance:
    """The row of ``output``, ``conv_state`` or ``recurrent_state`` for a layer of ``dtype``."""
    try:
        return TABLE[name, dtype]
    except KeyError:
        rows = sorted({f"{n} {d}" for n, d in TABLE})
        raise ValueError(f"tolerance: got {name!r}, {dtype}; accepted: {rows}") from None
