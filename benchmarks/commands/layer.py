"""One mixer layer: every variant that runs here, against aten and against each other.

Input norm and residual included, from non-zero states. Before it is timed an arm is compared with
float64, and our shaders with each other bit by bit; after it, with itself. CUDA: a chain of layers
whose weights together exceed any cache, as replays of a graph and as plain calls ("eager"), and the
copy rate in the same rounds. MPS: our shaders by command buffers of our own queue, everything by
the host clock. CPU: times of native code; the shaders are emulated and counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_mps_fusion.explain import aligned

from .. import emulation, facts, gates, receipts
from ..harness import Arm, Measured, check, copies, measure, options_of
from ..layers import SHAPES, Fla, Layer, Linears, Ours, Shape, fla, ours
from ..layers import Arm as LayerArm
from ..metal_queue import MetalQueue
from ..timers import capture, for_torch

COPY_BYTES = 1 << 30
COLD_BYTES = {"cuda": 800_000_000, "mps": 2_000_000_000}
EAGER = " eager"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", nargs="+", choices=SHAPES, help="default: by device")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--cache", choices=("cold", "warm"), default="cold")
    parser.add_argument(
        "--geometry", nargs="+", default=[], help="more shader arms, with these launch geometries"
    )
    parser.add_argument("--only", nargs="+", help="names of the arms to measure")


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    if options.smoke:
        options.shape, options.rows = ["small"], [2]
    if options.shape is None:
        options.shape = ["small", "0.8b"] if options.device == "cpu" else ["0.8b", "9b", "27b"]
    with torch.no_grad():
        for name in options.shape:
            layer = Layer(SHAPES[name], options.device, options.seed)
            for rows in options.rows:
                yield from cell(options, name, layer, rows)


def arms_of(options: argparse.Namespace, layer: Layer, hidden: Tensor) -> list[LayerArm]:
    device, rows = options.device, hidden.shape[1]
    found: list[LayerArm] = list(ours(layer.shape, device, rows, layer.dtype, options.geometry))
    if device != "cpu":
        found.append(Linears())
    if device == "cuda" and (not options.only or Fla.name in options.only):
        other = fla(layer, hidden)
        found += [] if other is None else [other]
    return [a for a in found if not options.only or a.name in options.only]


def cell(
    options: argparse.Namespace, name: str, layer: Layer, rows: int
) -> Iterator[receipts.Receipt]:
    """One shape and number of rows: gate, times of what may be timed, counts of the rest."""
    hidden = layer.hidden(rows)
    arms = arms_of(options, layer, hidden)
    errors = gates.gate(arms, layer, hidden)
    for arm in arms:
        check(errors[arm.name], arm.name)
    print(f"{name}, {rows} rows, bfloat16, {options.device}: all {len(arms)} arms verified")
    shared: dict[str, Any] = {
        "scope": "layer",
        "tier": 1,
        "rows": rows,
        "sequences": 1,
        "dtype": "bfloat16",
        "numerics": {"errors": errors, "class": "bytes among our shaders, else tolerance"},
    }
    part = f"{name}-{rows}"
    emulated = [a for a in arms if isinstance(a, Ours) and a.emulated(options.device)]
    timed = [a for a in arms if a not in emulated]
    if timed:
        yield timed_receipt(options, layer, hidden, timed, shared, part)
    if options.device == "mps":
        yield queue_receipt(options, layer, hidden, arms, shared, f"{part}-gpu")
    if emulated:
        yield counted_receipt(options, layer, hidden, emulated, shared, part)


def record(arm: LayerArm, layer: Layer, rows: int, **more: Any) -> dict[str, Any]:
    """The arm as a receipt has it."""
    if not isinstance(arm, Ours):
        return receipts.arm(arm.name, payload_bytes=layer.shape.payload, **more)
    program = arm.plan(layer.shape, layer.device, rows, layer.dtype) if arm.shader else None
    return receipts.arm(
        arm.name,
        variant=[arm.variant, arm.geometry],
        pack=arm.pack(layer),
        geometry=arm.numeric_geometry(layer),
        launch=" ".join(f"{d.kernel}{d.grid}" for d in program.kernels) if program else "",
        dispatches=len(program.dispatches) if program else None,
        joins=sum(d.barrier for d in program.dispatches) if program else None,
        payload_bytes=layer.shape.payload,
        **more,
    )


def chain(arm: LayerArm, layers: Sequence[Layer], hidden: Tensor) -> Callable[[], Tensor]:
    """The layers one after the other, each on its own states."""
    states = [layer.states(arm) for layer in layers]

    def work() -> Tensor:
        x = hidden
        for layer, own in zip(layers, states, strict=True):
            x = arm(layer, x, own)[0]
        return x

    return work


def working_set(options: argparse.Namespace, shape: Shape) -> int:
    """Layers of a chain."""
    if options.cache == "warm":
        return 1
    if options.device == "cpu":
        most = 2 if options.smoke else 64
        return min(most, copies(shape.payload, facts.cache_bytes("cpu") or 0, 0))
    cache = facts.cache_bytes(options.device) or 0
    return max(3, copies(shape.payload, cache, COLD_BYTES[options.device]))


def timed_receipt(
    options: argparse.Namespace,
    layer: Layer,
    hidden: Tensor,
    arms: list[LayerArm],
    shared: dict[str, Any],
    part: str,
) -> receipts.Receipt:
    rows, kind = hidden.shape[1], options.device
    count = working_set(options, layer.shape)
    layers = [layer, *(layer.copy() for _ in range(1, count))]
    calls = 1 if kind == "cpu" or options.smoke else 8
    to_measure, records = [], []
    for arm in arms:
        plain, bits = chain(arm, layers, hidden), checker(arm, layer, hidden)
        if kind != "cuda":
            to_measure.append(Arm(arm.name, plain, calls, count, bits))
            records.append(record(arm, layer, rows))
            continue
        if replay := graph(arm.name, plain):
            to_measure.append(Arm(arm.name, replay, calls, count, bits))
            records.append(record(arm, layer, rows, replay="CUDA graph"))
        to_measure.append(Arm(arm.name + EAGER, plain, 1, count))
        records.append({**record(arm, layer, rows), "name": arm.name + EAGER})
    names = [a.name for a in to_measure]
    if kind == "cuda":
        to_measure.append(copy_arm())
        records.append(receipts.arm("copy", payload_bytes=2 * COPY_BYTES, launch="aten copy_"))
    measured = measure(
        to_measure,
        for_torch(kind, options.deadline),
        rounds=options.rounds or (3 if options.smoke else 21),
        warm_up_s=0.0 if options.smoke else options.warm_up_gpu_seconds,
        **options_of(options),
    )
    torch.ops.mps_fusion._check_launches(kind)
    print_table(measured, names[0])
    replayed = [n for n in names if not n.endswith(EAGER)]
    eager = [n for n in names if n.endswith(EAGER)]
    return receipts.new(
        options,
        {"cpu": "cpu-native"}.get(kind, kind),
        **shared,
        cache_mode=options.cache,
        working_set_bytes=count * layer.shape.payload,
        measured=measured,
        arms=records,
        comparisons=comparisons(measured, replayed) + comparisons(measured, eager),
        results={"part": part, "layers": count},
        caveats=["a layer alone: gains do not add up over the layers of a model"],
    )


def checker(arm: LayerArm, layer: Layer, hidden: Tensor) -> Callable[[], str] | None:
    return (lambda: gates.digest(arm, layer, hidden)) if isinstance(arm, Ours) else None


def graph(name: str, work: Callable[[], Any]) -> Callable[[], None] | None:
    """Its replay; None for work that cannot be captured, which costs no other arm."""
    try:
        return capture(work).replay
    except RuntimeError as error:
        print(f"{name}: no graph: {error}")
        return None


def copy_arm() -> Arm:
    """A copy of 1 GiB on the device: bytes read plus bytes written are its payload."""
    source = torch.randn(COPY_BYTES // 4).to("cuda")
    target = torch.empty_like(source)
    return Arm("copy", lambda: target.copy_(source), 4)


def comparisons(measured: Measured, names: list[str]) -> list[dict[str, Any]]:
    """Every pair, the later arm over the earlier."""
    pairs = [(b, a) for i, a in enumerate(names) for b in names[i + 1 :]]
    return [measured.compare(a, b).as_dict() for a, b in pairs]


def print_table(measured: Measured, base: str) -> None:
    """Minimum, median and ratio to the first arm, of one layer."""
    lines = [("arm", "min us", "median us", f"of {base}", "95 % interval", "wins", "verdict")]
    for name in measured.samples:
        if name == "copy":
            continue
        least, median = measured.minimum(name) * 1e6, measured.median(name) * 1e6
        rest = ("", "", "", "")
        if name != base:
            c = measured.compare(name, base)
            interval = f"{c.ratio.low:.3f} to {c.ratio.high:.3f}"
            wins = f"{c.ratio.wins}/{c.ratio.rounds}"
            rest = (f"{c.ratio.mean:.3f}", interval, wins, c.verdict)
        lines.append((name, f"{least:.2f}", f"{median:.2f}", *rest))
    print("\n".join(aligned(lines)))
    print(f"clock: {measured.timer}")


def memory(arm: Ours, layer: Layer, hidden: Tensor) -> dict[str, Tensor]:
    """The arm's operands by their names in a program."""
    conv, state = layer.states()
    return {
        "hidden": hidden,
        "in_proj": layer.packed[0],
        "out_proj": layer.packed[1],
        "conv_weight": layer.conv_weight,
        "A_log": layer.A_log,
        "dt_bias": layer.dt_bias,
        "norm_weight": layer.norm_weight,
        "input_norm_weight": layer.input_norm_weight,
        "conv_in": conv,
        "conv_out": conv,
        "state_in": state,
        "state_out": state,
    }


def queue_receipt(
    options: argparse.Namespace,
    layer: Layer,
    hidden: Tensor,
    arms: list[LayerArm],
    shared: dict[str, Any],
    part: str,
) -> receipts.Receipt:
    """Our shaders on our own queue; the output must have the bits of the op's."""
    queue, rows = MetalQueue(options.deadline), hidden.shape[1]
    to_measure, records = [], []
    for arm in arms:
        if not isinstance(arm, Ours) or not arm.shader:
            continue
        program = arm.plan(layer.shape, layer.device, rows, layer.dtype)
        encoded = queue.encoded(program, memory(arm, layer, hidden))
        queue.seconds(encoded, 1)
        want = facts.sha256(arm(layer, hidden, layer.states())[0].cpu().view(torch.uint8).numpy())
        if facts.sha256(encoded.read("output")) != want:
            check({"bits of the op": float("inf")}, arm.name)
        to_measure.append(Arm(arm.name, encoded, 32))
        records.append(record(arm, layer, rows, replay="command buffer"))
    measured = measure(
        to_measure,
        queue,
        rounds=options.rounds or (3 if options.smoke else 21),
        warm_up_s=options.warm_up_gpu_seconds,
        **options_of(options),
    )
    print_table(measured, to_measure[0].name)
    return receipts.new(
        options,
        "mps",
        **shared,
        cache_mode="warm",
        working_set_bytes=layer.shape.payload,
        measured=measured,
        arms=records,
        comparisons=comparisons(measured, [a.name for a in to_measure]),
        results={"part": part, "layers": 1},
    )


def counted_receipt(
    options: argparse.Namespace,
    layer: Layer,
    hidden: Tensor,
    arms: list[LayerArm],
    shared: dict[str, Any],
    part: str,
) -> receipts.Receipt:
    """Emulated arms: what they moved and did, and no time."""
    rows = hidden.shape[1]
    records, lines = [], [("arm", "dispatches", "bytes", "least", "barriers", "spins")]
    for arm in arms:
        assert isinstance(arm, Ours)
        program = arm.plan(layer.shape, layer.device, rows, layer.dtype)
        _, launches = emulation.counted(lambda a=arm: a.to_new_states(layer, hidden))
        counts = emulation.total(launches)
        counts["planned_bytes"], counts["least_bytes"] = program.bytes, program.minimum_bytes
        records.append(record(arm, layer, rows, replay="none", emulated=True, counts=counts))
        moved = counts["read_bytes"] + counts["written_bytes"]
        lines.append(
            (
                arm.name,
                str(counts["launches"]),
                f"{moved:,}",
                f"{program.minimum_bytes:,}",
                str(counts["barriers"]),
                str(counts["spins"]),
            )
        )
    print("\n".join(aligned(lines)))
    print("emulated: counted, not timed")
    return receipts.new(
        options,
        "cpu-emulation",
        **shared,
        arms=records,
        results={"part": part},
        needs=["times: a Mac, or an NVIDIA GPU (which says nothing about Apple)"],
    )
