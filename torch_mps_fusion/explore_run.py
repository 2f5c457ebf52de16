"""Runs one schedule of a persistent launch in metal_host's checking build, and judges how it ended.

The layer is the smallest whose program has every kind of task and more than one head. A call works
on the caller's states in place, so that the dispatch that commits them is part of it, or on slots.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from . import host_kernels, packing, plan
from .explore_schedule import (
    BROKEN,
    CANCELLED,
    CLEAN,
    EXPIRED,
    FAIR_SPINS,
    KINDS,
    UNFINISHED,
    Schedule,
)
from .models import GDNConfig
from .models.names import INPUT_NORM_PARAMETER
from .models.random_weights import random_weights

NAMES = ("output", "conv_state", "recurrent_state")
WORD = 2**32
CONFIG = GDNConfig(
    hidden_size=64,
    num_k_heads=1,
    num_v_heads=2,
    head_k_dim=32,
    head_v_dim=32,
    conv_kernel_size=4,
    rms_norm_eps=1e-6,
    model_type="qwen3_5_text",
    layer_types=("linear_attention",),
)
_SAID = {
    EXPIRED: r"task (?P<task>\d+) \(\w+, tile \d+, part \d+\) waited too long for counter "
    r"(?P<counter>\d+): expected (?P<expected>\d+), seen (?P<seen>\d+)",
    UNFINISHED: "a worker did not finish",
    CANCELLED: r"cancelled at task \d+",
    BROKEN: "an earlier launch failed and was not cleared",
}


class Violation(Exception):
    """A launch ended as none may: other bits, a fault of the checker, a broken contract."""


@functools.cache
def _words() -> dict[str, int]:
    """Constants of shaders/include/tasks.h: kCounterEpoch is "CounterEpoch"."""
    found = re.findall(r"\bk(C\w+) = (\d+)", host_kernels.text("persistent"))
    return {name: int(value) for name, value in found}


def _control_and_counters() -> list[tuple[Tensor, Tensor]]:
    """The blocks of each program that has run on CPU tensors."""
    blocks = torch.ops.mps_fusion._task_blocks("cpu")
    return list(zip(blocks[::2], blocks[1::2], strict=True))


def _signed(value: int) -> int:
    value %= WORD
    return value - WORD if value >= WORD // 2 else value


@contextlib.contextmanager
def _setting(geometry: str) -> Iterator[None]:
    """Launch geometry of the calls inside; memory that nobody wrote holds NaN."""
    before = torch.ops.mps_fusion._override_geometry(geometry)
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.ops.mps_fusion._override_geometry(before)


@dataclass
class States:
    """Both states as a call works on them: in place, or two slots of each and a control block."""

    conv: Tensor
    recurrent: Tensor
    control: Tensor | None = None

    @property
    def slot(self) -> int:
        return -1 if self.control is None else int(self.control[_words()["ControlSlot"]])

    @property
    def committed(self) -> tuple[Tensor, Tensor]:
        if self.control is None:
            return self.conv, self.recurrent
        return self.conv[self.slot], self.recurrent[self.slot]


@dataclass
class Call:
    """A layer call, what it gives, and the blocks that its workers go by.

    states: conv and recurrent, before. expected: output and states after the first such call and
    after the second.
    """

    arguments: tuple
    keywords: dict
    hidden: Tensor
    states: tuple[Tensor, Tensor]
    mask: Tensor
    expected: list[tuple[Tensor, ...]] = field(default_factory=list)
    tasks: plan.Tasks = field(default_factory=lambda: plan.Tasks(0, 0))
    control: Tensor = field(default_factory=lambda: torch.empty(0))
    counters: Tensor = field(default_factory=lambda: torch.empty(0))

    def fresh(self, slots: bool = False, slot: int = 0) -> States:
        """The states before; in slots, the one that is not committed holds NaN."""
        if not slots:
            conv, recurrent = self.states
            return States(conv.clone(), recurrent.clone())
        control = torch.zeros(_words()["ControlWords"], dtype=torch.int32)
        control[_words()["ControlSlot"]] = slot
        conv, recurrent = self.states[0], self.states[1].transpose(-1, -2)
        kept = [torch.full((2, *t.shape), float("nan"), dtype=t.dtype) for t in (conv, recurrent)]
        kept[0][slot], kept[1][slot] = conv, recurrent
        return States(kept[0], kept[1].transpose(-1, -2), control)

    def run(self, variant: str, states: States) -> tuple[Tensor, ...]:
        """Output and the states after. Raises what the op raises."""
        given = [states.conv, states.recurrent]
        op = torch.ops.mps_fusion.gdn_layer_
        if states.control is not None:
            given.append(states.control)
            op = torch.ops.mps_fusion.gdn_layer_slots_
        output = op(
            self.hidden, *given, *self.arguments, self.mask, **self.keywords, variant=variant
        )
        return (output, *states.committed)

    def counts(self, launches: int) -> list[int]:
        """The words of the counter block after so many launches that went well."""
        w, tasks, block = _words(), self.tasks, self.counters
        once = [0] * block.numel()
        once[w["CounterEpoch"]] = 1
        once[w["CounterTicket"]] = len(tasks.records) + tasks.workers
        once[w["CounterArrived"]] = tasks.workers
        for record in tasks.records:
            for counter, count in tasks.signals(record):
                once[w["CounterFirst"] + w["CounterStride"] * counter] += count
        return [_signed(launches * n) for n in once]


def _layer(dtype: torch.dtype) -> tuple:
    """Arguments of gdn_layer_ behind the states, up to the mask."""
    weights = random_weights(CONFIG, dtype=dtype, seed=0, with_input_norm=True, decay_dtype=dtype)
    form = packing.format_name("apple")
    by_name = [weights[f"in_proj_{name}.weight"] for name in ("qkv", "z", "b", "a")]
    return (
        [packing.pack(by_name, form)],
        weights["conv1d.weight"].squeeze(1),
        weights["A_log"],
        weights["dt_bias"],
        weights["norm.weight"],
        [packing.pack([weights["out_proj.weight"]], form)],
        weights[INPUT_NORM_PARAMETER],
    )


def _geometry(workers: int, spins: int) -> str:
    return f";workers={workers};spins={spins}"


@functools.cache
def call_of(variant: str, dtype: str, batch: int, tokens: int, workers: int) -> Call:
    """The call, its bits (those of `packed`) and its blocks, by a launch without anything odd."""
    kind, c = getattr(torch, dtype), CONFIG
    generator = torch.Generator().manual_seed(1)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator)

    mask = normal(batch, tokens) > -1
    mask[:, -1] = True
    keywords = {
        "num_k_heads": c.num_k_heads,
        "num_v_heads": c.num_v_heads,
        "head_k_dim": c.head_k_dim,
        "head_v_dim": c.head_v_dim,
        "head_map": "block",
        "weight_format": packing.format_name("apple"),
    }
    conv = normal(batch, c.conv_dim, c.conv_kernel_size).to(kind)
    recurrent = normal(batch, c.num_v_heads, c.head_v_dim, c.head_k_dim).transpose(-1, -2)
    hidden = normal(batch, tokens, c.hidden_size).to(kind)
    call = Call(_layer(kind), keywords, hidden, (conv, recurrent), mask)
    with _setting(_geometry(workers, FAIR_SPINS)), host_kernels.running():
        states = call.fresh()
        for _ in range(2):
            call.expected.append(tuple(t.clone() for t in call.run("packed", states)))
        words = _words()
        for control, counters in _control_and_counters():
            counters.zero_()
            control.zero_()
        _check_plain(call, variant, call.fresh(), call.expected[0], "the plain launch")
        call.control, call.counters = next(
            pair for pair in _control_and_counters() if int(pair[1][words["CounterEpoch"]]) == 1
        )
        program = plan.plan_layer(
            hidden, *call.arguments, *call.states, mask, **keywords, variant=variant,
            device="host", geometry=_geometry(workers, FAIR_SPINS),
        )  # fmt: skip
    call.tasks = next(d.tasks for d in program.dispatches if d.tasks is not None)
    return call


def run(s: Schedule) -> str:
    """How the launch ended: one of KINDS[s.kind]. Raises Violation for every other end."""
    call = call_of(s.variant, s.dtype, s.batch, s.tokens, s.workers)
    options = s.options()
    fields = dataclasses.asdict(options)
    with _setting(_geometry(s.workers, s.spins)):
        states = call.fresh(s.states == "slots", s.epoch % 2)
        _prepare(call, s, states)
        slot = states.slot
        running = host_kernels.running(checked=True, family="persistent", **fields)
        with running as launches:
            try:
                results, said = call.run(s.variant, states), ""
            except RuntimeError as error:
                results, said = (), str(error).splitlines()[0]
        outcome = _failed(call, s, states, slot, said) if said else _clean(call, s, results)
        if outcome not in KINDS[s.kind]:
            raise Violation(f"{outcome}, which a {s.kind} schedule may not be: {said}")
        if states.control is not None and states.slot != (slot if said else 1 - slot):
            raise Violation(f"{outcome}, and the committed slot went from {slot} to {states.slot}")
        result = next(i for i in launches if i.family == "persistent").result
        if result.finished + result.lost != result.started:
            raise Violation(f"not drained: {result.started} workers, {result.finished} finished")
        # Nothing needs to be cleared by hand: the next call goes on from the committed states.
        _check_plain(call, s.variant, states, call.expected[not said], "the next call")
    return outcome


def _prepare(call: Call, s: Schedule, states: States) -> None:
    """The blocks as `s.epoch` launches leave them, and the fault put in."""
    w, counters = _words(), call.counters
    call.control.zero_()
    control = call.control if states.control is None else states.control
    counters.copy_(torch.tensor(call.counts(s.epoch), dtype=torch.int32))
    if s.kind == "cancel":
        control[w["ControlCancel"]] = 1
    elif s.kind == "broken":
        counters[w["CounterBroken"]] = 1
    elif s.kind == "lag":
        waited = {c for r in call.tasks.records for c, count in call.tasks.waits(r) if count}
        counter = sorted(waited)[s.counter % len(waited)]
        at = w["CounterFirst"] + w["CounterStride"] * counter
        counters[at] = _signed(int(counters[at]) - 1)


def _clean(call: Call, s: Schedule, results: tuple[Tensor, ...]) -> str:
    _compare(results, call.expected[0], "the call")
    if call.counters.tolist() != call.counts(s.epoch + 1):
        raise Violation("the counters are not those of one launch more")
    return CLEAN


def _failed(call: Call, s: Schedule, states: States, slot: int, said: str) -> str:
    """The outcome that the error names, after checking what it promises."""
    if f"variant '{s.variant}' failed, " not in said:
        raise Violation(said)
    if states.slot != slot:
        raise Violation(f"slot {states.slot} was committed by a call that failed: {said}")
    for name, now, before in zip(NAMES[1:], states.committed, call.states, strict=True):
        if not torch.equal(now, before):
            raise Violation(f"{name} was changed by a call that failed: {said}")
    for outcome, pattern in _SAID.items():
        if found := re.search(pattern, said):
            if outcome == EXPIRED:
                _check_expiry(call, s, {k: int(v) for k, v in found.groupdict().items()})
            return outcome
    raise Violation(f"the call does not say why: {said}")


def _check_expiry(call: Call, s: Schedule, said: dict[str, int]) -> None:
    """The record is about a wait of that task, for what it waits for, and for what is not there."""
    waits = dict(call.tasks.waits(call.tasks.records[said["task"]]))
    count = waits.get(said["counter"])
    if count is None or said["expected"] != (s.epoch + 1) * count % WORD:
        raise Violation(f"no wait of the program is the one that is reported: {said}")
    missing = (said["expected"] - said["seen"]) % WORD
    if not 1 <= missing <= count + (s.kind == "lag"):
        raise Violation(f"a wait gave up, and its counter cannot have held that: {said}")


def _check_plain(
    call: Call, variant: str, states: States, expected: tuple[Tensor, ...], what: str
) -> None:
    """A call in turn, without checks: right bits."""
    with host_kernels.running():
        try:
            results = call.run(variant, states)
        except RuntimeError as error:
            raise Violation(f"{what}: {error}") from None
    _compare(results, expected, what)


def _compare(results: tuple[Tensor, ...], expected: tuple[Tensor, ...], what: str) -> None:
    for name, got, wanted in zip(NAMES, results, expected, strict=True):
        if not torch.equal(got, wanted):
            n = int((got != wanted).sum())
            raise Violation(f"{what}: {name} differs from packed in {n} of {wanted.numel()}")
