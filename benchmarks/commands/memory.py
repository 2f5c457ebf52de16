"""Peak memory of forward and backward on CPU: ours against autodiff of transformers' fallback.

Each arm runs in a process of its own: inputs are made, a short call warms up, then the peak of the
resident set over one forward and backward pass is read, above what was resident before it. The
gradients of both arms are compared first; a row whose gradients differ prints ``unverified``, no
ratio, and the exit code is 1. ``rule`` is the gated delta rule alone, ``layer`` the whole mixer.
Linux only: the peak is reset through ``/proc``, and glibc is told to give freed memory back at once
(``MALLOC_MMAP_THRESHOLD_``), so that the peak is that of live tensors and not of fragments.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from torch_mps_fusion.tolerances import error

from .. import receipts

DEVICE = "cpu"  # whatever the others run on
ROOT = Path(__file__).parents[2]
ARMS = ("fallback", "ours")
PARTS = ("rule", "layer")
TARGET = 0.25  # of the fallback's peak
AGREE = 1e-3  # the two arms round in different orders, over thousands of tokens


@dataclass(frozen=True)
class Shape:
    """One layer and its call; the defaults are those of the 0.8B model."""

    tokens: int = 2048
    hidden: int = 1024
    k_heads: int = 16
    v_heads: int = 16
    head_dim: int = 128

    @property
    def words(self) -> list[str]:
        return [f"--{name.replace('_', '-')}={value}" for name, value in asdict(self).items()]


SMOKE = Shape(tokens=128, hidden=64, k_heads=2, v_heads=2, head_dim=32)


@dataclass
class Row:
    part: str
    peaks: dict[str, int]  # bytes, by arm
    difference: float  # of the gradients, the worst

    @property
    def verified(self) -> bool:
        return self.difference <= AGREE

    @property
    def ratio(self) -> float:
        return self.peaks["ours"] / self.peaks["fallback"]


# ---------------------------------------------------------------------------------- one process


def rule_arm(arm: str, shape: Shape):
    from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

    repeat = shape.v_heads // shape.k_heads

    def inputs(tokens: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)

        def normal(heads: int, *size: int) -> Tensor:
            return torch.randn(1, tokens, heads, *size, generator=generator)

        q, k = (normal(shape.k_heads, shape.head_dim) for _ in range(2))
        v = normal(shape.v_heads, shape.head_dim)
        gates = -normal(shape.v_heads).abs() / 8, normal(shape.v_heads).sigmoid()
        return [t.requires_grad_() for t in (q, k, v, *gates)]

    def fallback(q, k, v, g, beta):
        q, k = (t.repeat_interleave(repeat, 2) if repeat > 1 else t for t in (q, k))
        return modeling.torch_chunk_gated_delta_rule(
            q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True
        )[0]

    def ours(q, k, v, g, beta):
        return torch.ops.mps_fusion.gated_delta_rule(
            q, k, v, g, beta, head_map="block", qk_l2norm=True
        )[0]

    return inputs, fallback if arm == "fallback" else ours


def layer_arm(arm: str, shape: Shape):
    import transformers
    from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

    torch.manual_seed(0)
    module = modeling.Qwen3_5GatedDeltaNet(
        transformers.Qwen3_5TextConfig(
            hidden_size=shape.hidden, num_hidden_layers=1, layer_types=["linear_attention"],
            linear_num_key_heads=shape.k_heads, linear_num_value_heads=shape.v_heads,
            linear_key_head_dim=shape.head_dim, linear_value_head_dim=shape.head_dim,
        ), 0,
    )  # fmt: skip
    m = module
    # Slow decays: the fallback's gradients lose digits where a chunk forgets everything.
    m.A_log.data.uniform_(0.01, 1).log_()
    in_proj = [p.weight for p in (m.in_proj_qkv, m.in_proj_z, m.in_proj_b, m.in_proj_a)]
    rest = [m.conv1d.weight, m.A_log, m.dt_bias, m.norm.weight]
    weights = [*in_proj, *rest, m.out_proj.weight]

    def inputs(tokens: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(1, tokens, shape.hidden, generator=generator)
        return [x.requires_grad_(), *weights]

    def ours(x, *_):
        return torch.ops.mps_fusion.gdn_layer(
            x, in_proj, rest[0].squeeze(1), *rest[1:], [m.out_proj.weight], head_map="block",
            num_k_heads=shape.k_heads, num_v_heads=shape.v_heads, head_k_dim=shape.head_dim,
            head_v_dim=shape.head_dim,
        )[0]  # fmt: skip

    return inputs, (lambda x, *_: module(x)) if arm == "fallback" else ours


def status(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def measure(part: str, arm: str, shape: Shape, file: Path) -> None:
    """Runs one arm here; writes its peak and its gradients to ``file``."""
    inputs, forward = (rule_arm if part == "rule" else layer_arm)(arm, shape)

    def step(tensors: list[Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(forward(*tensors).sum(), tensors)

    step(inputs(min(64, shape.tokens)))
    tensors = inputs(shape.tokens)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = status("VmRSS")
    grads = step(tensors)
    peak = status("VmHWM") - before
    torch.save({"peak": peak, "grads": [g.detach() for g in grads]}, file)


# ------------------------------------------------------------------------------------ side by side


def compare(part: str, shape: Shape) -> Row:
    """Both arms of a part, each in a process of its own."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for arm in ARMS:
            file = Path(folder) / arm
            command = [sys.executable, "-m", "benchmarks", "memory", *shape.words]
            environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**18)}
            subprocess.run(
                [*command, "--one", part, arm, str(file)], check=True, cwd=ROOT, env=environment
            )
            results[arm] = torch.load(file)
    grads = zip(results["ours"]["grads"], results["fallback"]["grads"], strict=True)
    worst = max(error(a, b) for a, b in grads)
    return Row(part, {arm: results[arm]["peak"] for arm in ARMS}, worst)


def table_line(row: Row) -> str:
    if not row.verified:
        return f"{row.part:<6}  unverified (gradients differ by {row.difference:.2g})"
    peaks = "  ".join(f"{row.peaks[arm] / 2**20:>10.0f}" for arm in ARMS)
    verdict = "met" if row.ratio < TARGET else "missed"
    ratio = f"{row.ratio:>6.3f}  <{TARGET:g}"
    return f"{row.part:<6}  {peaks}  {ratio}  {verdict:<6}  {row.difference:.1e}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, value in asdict(Shape()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    from transformers.utils import logging

    logging.set_verbosity_error()
    shape = Shape(**{name: getattr(options, name) for name in asdict(Shape())})
    if options.one:
        part, arm, file = options.one
        return measure(part, arm, shape, Path(file))
    if sys.platform != "linux":
        print("not here: the peak is read through Linux's /proc")
        yield receipts.new(options, "arithmetic", needs=["peak memory: Linux"])
        return
    if options.device != "cpu":
        raise ValueError(f"device: got {options.device}; accepted: cpu")
    shape = SMOKE if options.smoke else shape
    print(" · ".join(f"{key} {value}" for key, value in asdict(shape).items()) + " · float32")
    parts = options.parts[:1] if options.smoke else options.parts
    rows = [compare(part, shape) for part in parts]
    print("\npeak of forward + backward above what was resident before, MiB")
    print(f"{'part':<6}  {'fallback':>10}  {'ours':>10}  {'ratio':>6}  target         difference")
    for row in rows:
        print(table_line(row))
    yield receipts.new(
        options,
        "cpu-native",
        scope="operator",
        tier=1,
        rows=shape.tokens,
        sequences=1,
        dtype="float32",
        results={
            "shape": asdict(shape),
            "peak_bytes": {row.part: row.peaks for row in rows},
            "ratio": {row.part: row.ratio for row in rows if row.verified},
            "failed": [
                f"{row.part}: gradients differ by {row.difference:.2g}"
                for row in rows
                if not row.verified
            ],
        },
        numerics={"gradient_difference": {row.part: row.difference for row in rows}},
    )
