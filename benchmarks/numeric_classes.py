"""The four numerical requirements, strongest first, and how each is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torch_mps_fusion.tolerances import error, tolerance

CLASSES = ("bytes", "tolerance", "distribution", "task")
RESULTS = ("output", "conv_state", "recurrent_state")
# KL divergence, in nats a row, of next-token distributions that count as the same.
MOST_KL = 1e-3


def errors(got: Sequence[Tensor], reference: Sequence[Tensor], dtype: torch.dtype) -> dict:
    """Errors of the three results over what the project's table accepts."""
    return {
        name: error(g.cpu(), r.cpu()) / tolerance(name, dtype).rms
        for name, g, r in zip(RESULTS, got, reference, strict=True)
    }


def bf16_ulps(a: Tensor, b: Tensor) -> Tensor:
    """Distance in units in the last place of two bfloat16 tensors, element by element."""
    if a.dtype != torch.bfloat16 or b.dtype != torch.bfloat16:
        raise ValueError(f"ulps: got {a.dtype}, {b.dtype}; accepted: bfloat16")

    def ordered(t: Tensor) -> Tensor:
        bits = t.contiguous().view(torch.int16).to(torch.int32)
        return torch.where(bits >= 0, bits, -(bits & 0x7FFF))

    return (ordered(a) - ordered(b)).abs()


def histogram(ulps: Tensor) -> dict[str, int]:
    """Elements by distance; 8 and more are one class."""
    counts = torch.bincount(ulps.flatten().clamp(max=8), minlength=9).tolist()
    return {("8+" if i == 8 else str(i)): n for i, n in enumerate(counts)}


def kl(logits: Tensor, reference: Tensor) -> float:
    """Mean KL(reference || logits) over rows, in float64."""
    p = torch.log_softmax(reference.double(), -1)
    q = torch.log_softmax(logits.double(), -1)
    return float((p.exp() * (p - q)).sum(-1).mean())


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a.double().flatten(), b.double().flatten(), dim=0))


def strongest(same_bits: bool, over: Mapping[str, float], divergence: float | None) -> str | None:
    """The strongest class that a change keeps, by what was measured; None for no class.

    The class "task" needs a task and a real checkpoint: it is never concluded here.
    """
    if same_bits:
        return "bytes"
    if over and all(e <= 1 for e in over.values()):
        return "tolerance"
    if divergence is not None and divergence <= MOST_KL:
        return "distribution"
    return None


def keeps(found: str | None, declared: str) -> bool:
    """Whether what was found is at least as strong as what was declared."""
    if declared not in CLASSES:
        raise ValueError(f"class: got {declared!r}; accepted: {', '.join(CLASSES)}")
    return found is not None and CLASSES.index(found) <= CLASSES.index(declared)
