"""Inputs of the native kernels in the layouts of a model, and comparison head by head."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torch_mps_fusion import reference
from torch_mps_fusion.tolerances import error, tolerance

TOKENS = (1, 2, 3, 7, 8, 9, 33, 63, 64, 65, 130)
HEAD_DIMS = (32, 64, 128, 256)


@contextmanager
def one_thread():
    """For the reference's many small steps, which threads would only slow down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass
class Rule:
    """Arguments of gated_delta_rule; q, k, v are views of one row, as a projection leaves them."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    state: Tensor | None
    mask: Tensor | None = None
    head_map: str = "block"

    @property
    def tokens(self) -> tuple[Tensor, ...]:
        return self.q, self.k, self.v, self.g, self.beta

    @property
    def keywords(self) -> dict[str, object]:
        return {"head_map": self.head_map, "qk_l2norm": True}

    def run(self) -> tuple[Tensor, Tensor]:
        return torch.ops.mps_fusion.gated_delta_rule(
            *self.tokens, self.state, self.mask, variant="native", **self.keywords
        )

    def run_in_place(self, state: Tensor) -> Tensor:
        return torch.ops.mps_fusion.gated_delta_rule_(
            *self.tokens, state, self.mask, variant="native", **self.keywords
        )

    @cached_property
    def expected(self) -> tuple[Tensor, Tensor]:
        with one_thread():
            return reference.gated_delta_rule(
                *self.tokens, self.state, self.mask, rounding=self.q.dtype, **self.keywords
            )


def make_rule(
    tokens: int,
    dtype: torch.dtype = torch.float32,
    *,
    batch: int = 1,
    heads: tuple[int, int] = (2, 4),
    dims: tuple[int, int] = (32, 32),
    state_order: str | None = "dk",
    seed: int = 0,
    **fields: object,
) -> Rule:
    """Seeded inputs; ``state_order`` is the contiguous dim of the state, None for no state."""
    generator = torch.Generator().manual_seed(seed)
    (num_k, num_v), (dk, dv) = heads, dims
    sizes = [num_k * dk, num_k * dk, num_v * dv]
    row = torch.randn(batch, tokens, sum(sizes) + 5, generator=generator).to(dtype)
    q, k, v = row[..., 3 : 3 + sum(sizes)].split(sizes, dim=-1)
    rate = torch.rand(num_v, generator=generator) * 3
    state = None
    if state_order is not None:
        state = torch.randn(batch, num_v, dv, dk, generator=generator).transpose(-1, -2)
        state = state if state_order == "dk" else state.contiguous()
    return Rule(
        q.unflatten(-1, (num_k, dk)),
        k.unflatten(-1, (num_k, dk)),
        v.unflatten(-1, (num_v, dv)),
        -rate * torch.rand(batch, tokens, num_v, generator=generator),
        torch.rand(batch, tokens, num_v, generator=generator),
        state,
        **fields,
    )


def assert_rule(actual: tuple[Tensor, Tensor], rule: Rule) -> None:
    """Output and state within the tolerance table in every row of the batch and every head."""
    output, state = rule.expected
    # The inputs are exact, so the state is as good as in float32 whatever their dtype.
    for name, got, want, dtype in (
        ("output", actual[0].transpose(1, 2), output.transpose(1, 2), rule.q.dtype),
        ("recurrent_state", actual[1], state, torch.float32),
    ):
        accepted = tolerance(name, dtype).rms
        for b in range(want.shape[0]):
            for h in range(want.shape[1]):
                found = error(got[b, h], want[b, h])
                assert found <= accepted, f"{name} row {b} head {h}: {found:.2e} > {accepted:.0e}"


def assert_same_bits(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for a, e in zip(actual, expected, strict=True):
        assert torch.equal(a, e), f"{(a != e).sum().item()} of {a.numel()} elements differ"
