"""Eight-row projection sweep: our packed kernel by launch geometry, with aten's linear as an arm.

Rates differ by shape: a streaming rate does not predict them. On a CPU outputs are checked against
float64 and bytes are counted for a slice of the outputs; there are no times.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from torch_mps_fusion import device as devices
from torch_mps_fusion import packing, plan
from torch_mps_fusion.explain import aligned
from torch_mps_fusion.tolerances import error, tolerance

from .. import emulation, facts, models, receipts
from ..harness import Arm, check, measure, options_of
from ..metal_queue import MetalQueue
from ..timers import capture, for_torch

GEOMETRIES = ("", ";tile=nt2u2p", ";tile=nt1u4")
ROWS = (1, 2, 4, 8, 16)
EMULATED_OUTPUTS = 64


def shapes(name: str = "qwen3.8-27b") -> dict[str, tuple[int, int]]:
    """(outputs, inputs) by projection."""
    m = models.MODELS[name]
    c, hidden = m.gdn, m.gdn.hidden_size
    return {
        "gdn_in": (c.conv_dim + c.value_dim + 2 * c.num_v_heads, hidden),
        "gdn_qkv": (c.conv_dim, hidden),
        "gdn_z": (c.value_dim, hidden),
        "gdn_ab": (2 * c.num_v_heads, hidden),
        "gdn_out": (hidden, c.value_dim),
        "ffn_gateup": (2 * m.ffn, hidden),
        "ffn_down": (hidden, m.ffn),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", nargs="+", choices=list(shapes()), default=list(shapes()))
    parser.add_argument("--rows", type=int, nargs="+", help="default: by device")
    parser.add_argument("--geometry", nargs="+", default=list(GEOMETRIES))


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    if options.smoke:
        options.shape, options.rows = ["gdn_ab"], [8]
    if options.rows is None:
        options.rows = [1, 8] if options.device == "cpu" else list(ROWS)
    print("formats: bf16; q8 and q4 are deferred, because quantised weights are not packed yet")
    for name in options.shape:
        n, k = shapes()[name]
        if options.device == "cpu":
            n, k = min(n, EMULATED_OUTPUTS), 64 if options.smoke else k
        with torch.no_grad():
            weight = Weight(n, k, options.device, options.seed)
            for rows in options.rows:
                yield cell(options, name, weight, rows)


class Weight:
    """One seeded matrix as aten and as our kernels take it."""

    def __init__(self, n: int, k: int, device: str, seed: int) -> None:
        self.n, self.k, self.format = n, k, devices.current(device).weight_format
        generator = torch.Generator().manual_seed(seed)
        self.rows = (torch.randn(n, k, generator=generator) * k**-0.5).bfloat16().to(device)
        self.packed = packing.pack(self.rows, self.format)
        self.sha256 = facts.tensor_sha256([self.packed])


def packed_call(x: Tensor, weight: Weight, geometry: str) -> Tensor:
    if geometry:
        torch.ops.mps_fusion._override_geometry(geometry)
    try:
        return torch.ops.mps_fusion.packed_linear(
            x, [weight.packed], out_features=weight.n, weight_format=weight.format
        )
    finally:
        if geometry:
            torch.ops.mps_fusion._override_geometry("")


def cell(options: argparse.Namespace, name: str, weight: Weight, rows: int) -> receipts.Receipt:
    device, generator = options.device, torch.Generator().manual_seed(options.seed + rows)
    x = torch.randn(rows, weight.k, generator=generator).bfloat16().to(device)
    want = x.cpu().double() @ weight.rows.cpu().double().T
    works: dict[str, Callable[[], Any]] = {"aten linear": partial(linear, x, weight.rows)}
    programs: dict[str, plan.Program] = {}
    for geometry in options.geometry:
        arm = f"packed{geometry}"
        works[arm] = partial(packed_call, x, weight, geometry)
        programs[arm] = plan_of(device, rows, weight, geometry)
    limit = tolerance("output", torch.bfloat16).rms
    outputs, errors = {}, {}
    for arm, work in works.items():
        outputs[arm] = work()
        errors[arm] = {"output": error(outputs[arm].cpu(), want) / limit}
        if arm in programs:
            same = torch.equal(outputs[arm], outputs[f"packed{options.geometry[0]}"])
            errors[arm]["same bits"] = 0.0 if same else float("inf")
        check(errors[arm], f"{name}, {rows} rows, {arm}")
    records = {
        arm: receipts.arm(
            arm,
            variant=[name, rows],
            pack=weight.sha256 if arm in programs else None,
            launch=programs[arm].kernels[0].kernel if arm in programs else "aten",
            emulated=device == "cpu" and arm in programs,
            replay="none" if device == "cpu" else "plain calls",
            payload_bytes=weight.rows.nbytes,
        )
        for arm in works
    }
    shared: dict[str, Any] = {
        "scope": "operator",
        "tier": 1,
        "rows": rows,
        "dtype": "bfloat16",
        "numerics": {"errors": errors, "class": "bytes among geometries, else tolerance"},
        "results": {"part": f"{name}-{rows}", "outputs": weight.n, "inputs": weight.k},
    }
    if device == "cpu":
        return counted(options, name, works, records, shared)
    return timed(options, name, works, programs, records, shared, (x, weight.packed))


def plan_of(device: str, rows: int, weight: Weight, geometry: str) -> plan.Program:
    name = devices.current(device).name
    return plan.plan_linear(
        rows, weight.k, weight.n, torch.bfloat16, device=name, geometry=geometry
    )


def counted(
    options: argparse.Namespace,
    name: str,
    works: dict[str, Callable[[], Any]],
    records: dict[str, dict[str, Any]],
    shared: dict[str, Any],
) -> receipts.Receipt:
    n, rows = shared["results"]["outputs"], shared["rows"]
    for arm, work in works.items():
        if arm != "aten linear":
            _, launches = emulation.counted(work)
            records[arm]["counts"] = emulation.total(launches)
    worst = max(max(e.values()) for e in shared["numerics"]["errors"].values())
    print(
        f"{name} {rows} rows ({n} outputs): {len(works)} arms right (error {worst:.2f} of what is "
        "accepted), our geometries bit-identical; emulated, no times"
    )
    return receipts.new(
        options,
        "cpu-emulation",
        arms=list(records.values()),
        needs=["times: a Mac"],
        caveats=["a slice of the outputs"],
        **shared,
    )


def timed(
    options: argparse.Namespace,
    name: str,
    works: dict[str, Callable[[], Any]],
    programs: dict[str, plan.Program],
    records: dict[str, dict[str, Any]],
    shared: dict[str, Any],
    operands: tuple[Tensor, Tensor],
) -> receipts.Receipt:
    """CUDA: graphs of all arms. MPS: our arms on our own queue; aten's time needs the host clock,
    which is another clock: see `layer`."""
    mps, calls = options.device == "mps", 1 if options.smoke else 64
    if mps:
        queue = MetalQueue(options.deadline)
        given = {"x": operands[0], "weight": operands[1]}
        arms = [Arm(a, queue.encoded(p, given), calls) for a, p in programs.items()]
        timer: Any = queue
        records = {a: {**records[a], "replay": "command buffer"} for a in programs}
    else:
        arms = [Arm(a, capture(work).replay, calls) for a, work in works.items()]
        timer = for_torch(options.device, options.deadline)
        records = {a: {**r, "replay": "CUDA graph"} for a, r in records.items()}
    measured = measure(
        arms,
        timer,
        rounds=options.rounds or 11,
        warm_up_s=options.warm_up_gpu_seconds,
        **options_of(options),
    )
    lines = [(f"{name} {shared['rows']} rows", "median us", "payload GB/s")]
    for a in arms:
        seconds = measured.median(a.name)
        rate = records[a.name]["payload_bytes"] / seconds / 1e9
        lines.append((a.name, f"{seconds * 1e6:.2f}", f"{rate:.0f}"))
    print("\n".join(aligned(lines)))
    print(receipts.LABELS[options.device])
    return receipts.new(
        options,
        options.device,
        measured=measured,
        arms=list(records.values()),
        cache_mode="warm",
        working_set_bytes=operands[1].nbytes,
        comparisons=[measured.compare(a.name, arms[0].name).as_dict() for a in arms[1:]],
        **shared,
    )
