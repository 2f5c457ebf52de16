"""What one op call costs besides its work: the smallest calls, interleaved in one process.

The work of these calls (a convolution of 8 channels over one token) is far below a microsecond, so
that the time is checks and dispatch. ``aten`` is an aten op of the same inputs for scale,
``python`` our op behind ``torch.library.custom_op``: what registration in Python would cost.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from .harness import interleaved, machine, write_json

CALLS = 200  # of an arm in one sample


@torch.library.custom_op("mps_fusion_bench::conv_", mutates_args={"state"})
def python_conv_(x: Tensor, state: Tensor, weight: Tensor) -> Tensor:
    return torch.ops.mps_fusion.causal_conv1d_(x, state, weight)


def arms() -> dict:
    x, state, weight = torch.randn(1, 8, 1), torch.zeros(1, 8, 4), torch.randn(8, 4)
    needs_grad = x.clone().requires_grad_()
    ops = torch.ops.mps_fusion

    def repeated(call):
        def sample():
            for _ in range(CALLS):
                call()

        return sample

    return {
        "aten": repeated(lambda: torch.conv1d(state, weight[:, None], groups=8)),
        "in place": repeated(lambda: ops.causal_conv1d_(x, state, weight)),
        "functional": repeated(lambda: ops.causal_conv1d(x, weight, state)),
        "with grad": repeated(lambda: ops.causal_conv1d(needs_grad, weight, state)),
        "python": repeated(lambda: python_conv_(x, state, weight)),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", type=Path, help="write every sample to this file")


def run(options: argparse.Namespace) -> int:
    line = machine()
    print(" · ".join(f"{key} {value}" for key, value in line.items()))
    samples = interleaved(arms(), options.seconds)
    print("\nmicroseconds a call, minimum over interleaved rounds")
    for name, seconds in samples.items():
        print(f"{name:<12}{min(seconds) / CALLS * 1e6:>8.2f}")
    if options.json is not None:
        write_json(options.json, line, [{"arm": n, "samples": s} for n, s in samples.items()])
    return 0
