"""The gated delta rule on CPU: native kernels against transformers' torch fallback.

Shape of a 9B layer: q, k 16 heads, v 32 heads, 128 wide, bfloat16; state float32, advanced from a
prior state. Every row first passes a gate: output and state against a float64 loop, by the
project's tolerance table. A row that fails prints ``unverified``, no ratio, and the exit code is 1.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from torch_mps_fusion import reference
from torch_mps_fusion.tolerances import error, tolerance

from .harness import interleaved, machine, write_json

NUM_K_HEADS, NUM_V_HEADS, HEAD_DIM = 16, 32, 128
# The ratio to reach at each number of tokens.
TARGETS = {1: 4.0, 8: 10.0, 64: 2.0, 512: 3.0, 2048: 3.0}


@dataclass
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    state: Tensor  # (1, Hv, Dk, Dv) float32

    @property
    def tokens(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.q, self.k, self.v, self.g, self.beta


@dataclass
class Row:
    """One length: the gate's errors over their tolerances, then every sample of every arm."""

    tokens: int
    target: float | None
    errors: dict[str, float]
    samples: dict[str, list[float]]  # seconds; empty unless verified

    @property
    def worst(self) -> float:
        return max(self.errors.values())

    @property
    def verified(self) -> bool:
        return all(error <= 1 for error in self.errors.values())

    def minimum(self, arm: str) -> float:
        return min(self.samples[arm])

    @property
    def ratio(self) -> float:
        return self.minimum("fallback") / self.minimum("native")


def make_inputs(tokens: int, *, dk_contiguous: bool = True) -> Inputs:
    generator = torch.Generator().manual_seed(tokens)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    rate = torch.empty(NUM_V_HEADS).uniform_(0.01, 16, generator=generator)
    state = normal(1, NUM_V_HEADS, HEAD_DIM, HEAD_DIM)
    return Inputs(
        q=normal(1, tokens, NUM_K_HEADS, HEAD_DIM).bfloat16(),
        k=normal(1, tokens, NUM_K_HEADS, HEAD_DIM).bfloat16(),
        v=normal(1, tokens, NUM_V_HEADS, HEAD_DIM).bfloat16(),
        g=-rate * torch.nn.functional.softplus(normal(1, tokens, NUM_V_HEADS) - 4),
        beta=torch.sigmoid(normal(1, tokens, NUM_V_HEADS)).bfloat16().float(),
        state=state.transpose(-1, -2) if dk_contiguous else state,
    )


def native(x: Inputs, state: Tensor) -> Tensor:
    """Advances ``state`` in place, as a decoding loop does."""
    return torch.ops.mps_fusion.gated_delta_rule_(
        *x.tokens, state, head_map="block", qk_l2norm=True, variant="native"
    )


def fallback(x: Inputs) -> tuple[Tensor, Tensor]:
    """The function that transformers calls at this length when there is a prior state."""
    from transformers.models.qwen3_5 import modeling_qwen3_5 as model

    one = x.q.shape[1] == 1
    call = model.torch_recurrent_gated_delta_rule if one else model.torch_chunk_gated_delta_rule
    return call(
        x.q, x.k, x.v, g=x.g, beta=x.beta, initial_state=x.state,
        output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip


def gate(x: Inputs) -> dict[str, float]:
    """Errors over tolerances: native against float64, and the fallback, so that both compute it."""
    output, state = reference.gated_delta_rule(
        *x.tokens, x.state, head_map="block", qk_l2norm=True, rounding=torch.bfloat16
    )
    native_state = x.state.clone()
    results = {"native": (native(x, native_state), native_state), "fallback": fallback(x)}
    worst = {}
    for name, (got, got_state) in results.items():
        of_output = error(got, output) / tolerance("output", torch.bfloat16).rms
        of_state = error(got_state, state) / tolerance("recurrent_state", torch.float32).rms
        worst[name] = max(of_output, of_state)
    return worst


def measure(tokens: int, seconds: float, *, dk_contiguous: bool) -> Row:
    print(f"T = {tokens}: checking against float64 ...", flush=True)
    x = make_inputs(tokens, dk_contiguous=dk_contiguous)
    row = Row(tokens, TARGETS.get(tokens), gate(x), {})
    if row.verified:
        print(f"T = {tokens}: timing for about {seconds:g} s ...", flush=True)
        state = x.state.clone()
        arms = {"fallback": lambda: fallback(x), "native": lambda: native(x, state)}
        row.samples = interleaved(arms, seconds)
    return row


def table_line(row: Row) -> str:
    if not row.verified:
        return f"{row.tokens:>6}  unverified (error is {row.worst:.3g} of the tolerance)"
    fall, ours = row.minimum("fallback") * 1e3, row.minimum("native") * 1e3
    aim, verdict = "-", ""
    if row.target is not None:
        aim, verdict = f"{row.target:g}x", "met" if row.ratio >= row.target else "missed"
    return (
        f"{row.tokens:>6}  {fall:>11.3f}  {ours:>9.3f}  {row.ratio:>6.1f}x  {aim:>6}  {verdict:<7}"
        f"  {row.worst:>9.2g}"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=list(TARGETS), help="default: %(default)s"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="timed seconds a row")
    parser.add_argument(
        "--state-order", choices=("dk", "dv"), default="dk", help="contiguous dim of the state"
    )
    parser.add_argument("--json", type=Path, help="write every sample to this file")


def run(options: argparse.Namespace) -> int:
    from transformers.utils import logging

    logging.set_verbosity_error()  # it warns that the fallback is slow; that is what we time
    line = machine()
    print(" · ".join(f"{key} {value}" for key, value in line.items()))
    with torch.no_grad():
        rows = [
            measure(t, options.seconds, dk_contiguous=options.state_order == "dk")
            for t in options.tokens
        ]
    print("\nminima over interleaved rounds; error: the worst, over its tolerance")
    print(f"{'T':>6}  {'fallback ms':>11}  {'native ms':>9}  {'ratio':>7}  {'target':>6}  "
          f"{'':<7}  {'error':>9}")  # fmt: skip
    for row in rows:
        print(table_line(row))
    if options.json is not None:
        write_json(options.json, line, [asdict(row) for row in rows])
        print(f"samples: {options.json}")
    return 0 if all(row.verified for row in rows) else 1
