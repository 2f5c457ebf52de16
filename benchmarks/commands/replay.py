"""Replay of what was encoded once: host and GPU time apart, the same dispatches.

CPU: a recorded list gives the bits of the op, twice. NVIDIA: plain calls against a CUDA graph. Mac:
encoding against an indirect command buffer. Fusion claims compare arms of one replay mode.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .. import facts, receipts
from ..errors import GateFailed
from ..harness import Arm, measure, options_of
from ..layers import SHAPES, Layer, Ours, ours
from ..metal_queue import MetalQueue, memory_bytes
from ..replaying import RecordedList
from ..timers import CudaEvents, Submission, capture
from .layer import memory, record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", nargs=1, choices=SHAPES, default=["0.8b"])
    parser.add_argument("--rows", type=int, default=1)


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    name = "small" if options.smoke or options.device == "cpu" else options.shape[0]
    layer = Layer(SHAPES[name], options.device, options.seed)
    kind = {"cpu": listed, "cuda": graphed, "mps": indirect}[options.device]
    for arm in ours(layer.shape, options.device, options.rows, torch.bfloat16):
        if arm.shader:
            with torch.no_grad():
                yield kind(options, arm, layer)


def shared(options: argparse.Namespace, arm: Ours) -> dict[str, Any]:
    return {
        "scope": "layer",
        "tier": 1,
        "rows": options.rows,
        "dtype": "bfloat16",
        "results": {"part": arm.name},
    }


def given(arm: Ours, layer: Layer, hidden: torch.Tensor) -> dict[str, bytes]:
    return {name: memory_bytes(t) for name, t in memory(arm, layer, hidden).items()}


def listed(options: argparse.Namespace, arm: Ours, layer: Layer) -> receipts.Receipt:
    hidden = layer.hidden(options.rows)
    program = arm.plan(layer.shape, "cpu", options.rows, torch.bfloat16)
    output, _, state = arm(layer, hidden, layer.states())
    want = {"output": memory_bytes(output), "state_out": memory_bytes(state)}
    operands = given(arm, layer, hidden)
    recorded = RecordedList(program, operands)
    for i in range(2):
        recorded.restore(operands)
        recorded.replay()
        for name, bits in want.items():
            if recorded.read(name) != bits:
                raise GateFailed(f"{arm.name}: replay {i + 1} gives other bits in {name}")
    calls = len(program.calls.splitlines())
    print(
        f"{arm.name}: {len(program.dispatches)} dispatches, {calls} encoder calls recorded; two "
        "replays give the bits of the op"
    )
    return receipts.new(
        options,
        "cpu-emulation",
        arms=[
            record(
                arm,
                layer,
                options.rows,
                replay="recorded list",
                emulated=True,
                counts={"encoder_calls": calls},
            )
        ],
        numerics={"replay": "bytes"},
        needs=["host and GPU times: a Mac, or an NVIDIA GPU"],
        **shared(options, arm),
    )


def paired(
    options: argparse.Namespace,
    arm: Ours,
    layer: Layer,
    works: dict[str, Any],
    gpu: Any,
    submit: dict[str, Callable[[], Any]],
    modes: dict[str, str],
    settle: Callable[[], Any],
) -> receipts.Receipt:
    """GPU times of both works, and host times of submitting each."""
    keywords = {"rounds": options.rounds or 21, **options_of(options)}
    calls = 1 if options.smoke else 16
    measured = measure(
        [Arm(n, w, calls) for n, w in works.items()],
        gpu,
        warm_up_s=options.warm_up_gpu_seconds,
        **keywords,
    )
    host = measure(
        [Arm(n, w, calls) for n, w in submit.items()],
        Submission(settle),
        warm_up_s=min(0.01, options.warm_up_gpu_seconds),
        control=False,
        **keywords,
    )
    for n in works:
        print(
            f"{arm.name}, {n}: GPU {measured.median(n) * 1e6:.2f} us, host "
            f"{host.median(n) * 1e6:.2f} us"
        )
    names = list(works)
    rest = shared(options, arm)
    rest["results"] |= {"host_seconds": host.samples}
    return receipts.new(
        options,
        options.device,
        measured=measured,
        cache_mode="warm",
        working_set_bytes=layer.shape.payload,
        arms=[{**record(arm, layer, options.rows, replay=modes[n]), "name": n} for n in names],
        comparisons=[measured.compare(names[1], names[0]).as_dict()],
        **rest,
    )


def graphed(options: argparse.Namespace, arm: Ours, layer: Layer) -> receipts.Receipt:
    hidden, states = layer.hidden(options.rows), layer.states()
    kept: list[torch.Tensor] = []

    def call() -> None:
        kept[:] = arm(layer, hidden, states)

    works = {"plain calls": call, "CUDA graph": capture(call).replay}
    want = arm(layer, hidden, layer.states())
    for own, fresh in zip(states, layer.states(), strict=True):
        own.copy_(fresh)
    works["CUDA graph"]()
    if not all(torch.equal(a, b) for a, b in zip(kept, want, strict=True)):
        raise GateFailed(f"{arm.name}: a replay of the graph gives other bits than the op")
    modes = {n: n for n in works}
    timer = CudaEvents(options.deadline)
    return paired(options, arm, layer, works, timer, works, modes, torch.cuda.synchronize)


def indirect(options: argparse.Namespace, arm: Ours, layer: Layer) -> receipts.Receipt:
    queue = MetalQueue(options.deadline)
    hidden = layer.hidden(options.rows)
    program = arm.plan(layer.shape, "mps", options.rows, torch.bfloat16)
    operands = memory(arm, layer, hidden)
    encoded = queue.encoded(program, operands)
    commands = queue.indirect(queue.encoded(program, operands, indirect=True))
    queue.seconds(encoded, 1)
    queue.interval(commands.encode)
    if facts.sha256(encoded.read("output")) != facts.sha256(commands.read("output")):
        raise GateFailed(f"{arm.name}: the indirect command buffer gives other bits")

    def host(work: Any) -> Callable[[], float]:
        """Encoding only: the command buffer is dropped, not committed."""

        def encode() -> float:
            encoder = queue.queue.commandBuffer().computeCommandEncoder()
            start = time.perf_counter()
            work.encode(encoder)
            encoder.endEncoding()
            return time.perf_counter() - start

        return encode

    works = {"encoded": encoded, "indirect": commands}
    modes = {"encoded": "command buffer", "indirect": "indirect command buffer"}
    submit = {n: host(w) for n, w in works.items()}
    return paired(options, arm, layer, works, queue, submit, modes, lambda: None)
