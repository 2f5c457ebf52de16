"""The gated delta rule on CPU: native kernels against transformers' torch fallback.

Shape of a 9B layer: q, k 16 heads, v 32 heads, 128 wide, bfloat16; state float32, advanced from a
prior state. Every row first passes a gate: output and state against a float64 loop, by the
project's tolerance table. A row that fails stops the command: nothing of it is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_mps_fusion import reference
from torch_mps_fusion.tolerances import error, tolerance

from .. import receipts
from ..harness import Arm, Measured, check, measure, options_of
from ..timers import HostClock

DEVICE = "cpu"  # whatever the others run on
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
        x.q,
        x.k,
        x.v,
        g=x.g,
        beta=x.beta,
        initial_state=x.state,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )


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


def timed(x: Inputs, options: argparse.Namespace) -> Measured:
    state = x.state.clone()
    arms = [Arm("native", lambda: native(x, state)), Arm("fallback", lambda: fallback(x))]
    return measure(
        arms,
        HostClock(),
        rounds=options.rounds or (3 if options.smoke else 15),
        warm_up_s=0.0 if options.smoke else options.warm_up_gpu_seconds,
        **options_of(options),
    )


def line(tokens: int, measured: Measured, worst: float) -> str:
    c = measured.compare("native", "fallback")
    ratio, target = 1 / c.ratio.mean, TARGETS.get(tokens)
    aim, met = (
        ("-", "") if target is None else (f"{target:g}x", "met" if ratio >= target else "missed")
    )
    fall, ours = measured.median("fallback") * 1e3, measured.median("native") * 1e3
    return (
        f"{tokens:>6}  {fall:>11.3f}  {ours:>9.3f}  {ratio:>6.1f}x  {aim:>6}  {met:<7}  {worst:.2g}"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=list(TARGETS), help="default: %(default)s"
    )
    parser.add_argument(
        "--state-order", choices=("dk", "dv"), default="dk", help="contiguous dim of the state"
    )


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    from transformers.utils import logging

    logging.set_verbosity_error()  # it warns that the fallback is slow; that is what we time
    if options.smoke:
        options.tokens = [1]
    print(
        f"{'T':>6}  {'fallback ms':>11}  {'native ms':>9}  {'ratio':>7}  {'target':>6}  "
        f"{'':<7}  error of what is accepted"
    )
    for tokens in options.tokens:
        with torch.no_grad():
            x = make_inputs(tokens, dk_contiguous=options.state_order == "dk")
            errors = gate(x)
            check(errors, f"T = {tokens}")
            measured = timed(x, options)
        print(line(tokens, measured, max(errors.values())), flush=True)
        yield receipts.new(
            options,
            "cpu-native",
            scope="operator",
            tier=1,
            rows=tokens,
            sequences=1,
            dtype="bfloat16",
            cache_mode="warm",
            measured=measured,
            arms=[receipts.arm("native"), receipts.arm("fallback")],
            comparisons=[measured.compare("native", "fallback").as_dict()],
            results={"part": str(tokens)},
            numerics={"errors": errors, "class": "tolerance"},
        )
