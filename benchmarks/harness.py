"""Paired timing: arms take turns within rounds of one process, an unchanged duplicate among them.

The order within a round is shuffled by a seed, or ABBA. Every arm first runs for some accumulated
time on its own clock, which is recorded and left out. A gate runs before and, with the same inputs,
after: an arm that is wrong is not timed, and one that gives other bits afterwards has no result.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.benchmark import Measurement, TaskSpec
from tqdm import tqdm

from .errors import BenchmarkError, DeadlineExceeded, GateFailed
from .stats import AGAIN, NOISE_BAND, Comparison, compare, drift
from .timers import Timer

ORDERS = ("shuffled", "abba")


@dataclass
class Arm:
    """`work` is one call; a sample is the mean of `calls`, divided by `units` (layers of a chain).
    `check` gives a digest of the results of a call on fixed inputs, before and after timing."""

    name: str
    work: Callable[[], Any]
    calls: int = 1
    units: int = 1
    check: Callable[[], str] | None = None


@dataclass
class Measured:
    """All samples in seconds by arm and round, and how they came about."""

    timer: str
    gpu: bool
    order: str
    seed: int
    orders: list[list[str]]
    warm_up_s: dict[str, float]
    samples: dict[str, list[float]]
    control: str | None = None
    digests: dict[str, str] = field(default_factory=dict)
    idle_s: float | None = None  # since the last run of this process ended

    def median(self, arm: str) -> float:
        return statistics.median(self.samples[arm])

    def minimum(self, arm: str) -> float:
        return min(self.samples[arm])

    def drift(self, arm: str) -> float:
        return drift(self.samples[arm])

    def spread(self, arm: str) -> Measurement:
        """The samples as torch.utils.benchmark reads them: quartiles, and a warning if they are
        too far apart."""
        return Measurement(1, self.samples[arm], TaskSpec("", "", label=arm))

    def compare(self, a: str, b: str, band: float = NOISE_BAND) -> Comparison:
        return compare(self.samples, a, b, control=self.control, band=band, seed=self.seed)


def options_of(options: argparse.Namespace) -> dict[str, Any]:
    """Keywords of `measure` that every command takes from its command line."""
    return {"order": options.order, "seed": options.seed, "deadline": options.deadline}


def measure(
    arms: Sequence[Arm],
    timer: Timer,
    *,
    rounds: int,
    order: str = "shuffled",
    seed: int = 0,
    warm_up_s: float = 0.03,
    deadline: float = 60.0,
    control: bool = True,
) -> Measured:
    """Times the arms in turn; see the module. `control` adds a duplicate of the first arm.

    Raises:
        ValueError: no arm, two of one name, an unknown order, fewer than two rounds.
        DeadlineExceeded: an arm did not return within `deadline` seconds.
        GateFailed: an arm gives other results after the timed calls than before.
    """
    names = [arm.name for arm in arms]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"arms: got {names}; accepted: one or more, of different names")
    if order not in ORDERS:
        raise ValueError(f"order: got {order!r}; accepted: {', '.join(ORDERS)}")
    if rounds < 2:
        raise ValueError(f"rounds: got {rounds}; accepted: 2 or more")
    first = arms[0]
    again = Arm(first.name + AGAIN, first.work, first.calls, first.units)
    run = _Run([*arms, *([again] if control else [])], timer, order, seed)
    idle = time.monotonic() - _ended[-1] if _ended else None
    found = _guarded(lambda beat: run(rounds, warm_up_s, beat), deadline)
    _ended[:] = [time.monotonic()]
    found.idle_s = idle
    return found


_ended: list[float] = []  # when the last run of this process ended


class _Run:
    def __init__(self, arms: list[Arm], timer: Timer, order: str, seed: int) -> None:
        self.arms, self.timer, self.order, self.seed = arms, timer, order, seed
        self.random = random.Random(seed)

    def __call__(self, rounds: int, warm_up_s: float, beat: Callable[[str], None]) -> Measured:
        before = self.digests(beat)
        warm = {arm.name: self.warm_up(arm, warm_up_s, beat) for arm in self.arms}
        samples: dict[str, list[float]] = {arm.name: [] for arm in self.arms}
        orders = []
        bar = tqdm(range(rounds), "rounds", leave=False, disable=not sys.stderr.isatty())
        for i in bar:
            turn = self.turn(i)
            orders.append([arm.name for arm in turn])
            for arm in turn:
                samples[arm.name].append(self.sample(arm, beat))
        for name, digest in self.digests(beat).items():
            if digest != before[name]:
                raise GateFailed(f"{name}: other bits after the timed calls than before")
        control = next((a.name for a in self.arms if a.name.endswith(AGAIN)), None)
        return Measured(
            self.timer.name,
            self.timer.gpu,
            self.order,
            self.seed,
            orders,
            warm,
            samples,
            control,
            before,
        )

    def turn(self, i: int) -> list[Arm]:
        if self.order == "abba":
            return self.arms[:: 1 if i % 2 == 0 else -1]
        return self.random.sample(self.arms, len(self.arms))

    def sample(self, arm: Arm, beat: Callable[[str], None]) -> float:
        beat(arm.name)
        return self.timer.seconds(arm.work, arm.calls) / arm.units

    def warm_up(self, arm: Arm, seconds: float, beat: Callable[[str], None]) -> float:
        """Accumulated seconds on the arm's own clock; the first call is not counted."""
        self.sample(arm, beat)
        done = 0.0
        while done < seconds:
            done += self.sample(arm, beat) * arm.calls * arm.units
        return done

    def digests(self, beat: Callable[[str], None]) -> dict[str, str]:
        found = {}
        for arm in self.arms:
            if arm.check is not None:
                beat(arm.name)
                found[arm.name] = arm.check()
        return found


class _Watch:
    """What a run is doing and since when. Reporting takes no lock: nothing wakes up for it."""

    def __init__(self) -> None:
        self.at = "start", time.monotonic()

    def __call__(self, name: str) -> None:
        self.at = name, time.monotonic()


def _guarded(work: Callable[[Callable[[str], None]], Measured], deadline: float) -> Measured:
    """Runs the work in a thread that reports before each step; a device that hangs leaves the
    thread behind and raises here."""
    watch, done = _Watch(), threading.Event()
    grad = torch.is_grad_enabled()
    result: list[Measured] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            with torch.set_grad_enabled(grad):
                result.append(work(watch))
        except BaseException as error:  # handed to the caller's thread
            failure.append(error)
        finally:
            done.set()

    threading.Thread(target=body, daemon=True).start()
    while not done.wait(min(1.0, deadline)):
        arm, since = watch.at
        if time.monotonic() - since > deadline:
            raise DeadlineExceeded(
                f"arm {arm!r} did not return within {deadline:g} s; the run was given up"
            )
    if failure:
        raise failure[0]
    return result[0]


def check(errors: dict[str, float], arm: str) -> None:
    """Raises GateFailed unless every error, in units of what is accepted, is at most 1."""
    bad = {name: e for name, e in errors.items() if not e <= 1}
    if bad:
        raise GateFailed(f"{arm}: unverified: {bad} (1 is what is accepted)")


def rotating(works: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """Cold mode: each call takes the next copy of weights and states."""
    if not works:
        raise BenchmarkError("rotation: no copies were given")
    state = {"next": 0}

    def work() -> Any:
        i = state["next"]
        state["next"] = (i + 1) % len(works)
        return works[i]()

    return work


def copies(bytes_of_one: int, cache_bytes: int, floor: int) -> int:
    """How many copies make a working set beyond the caches: 8 x their size, and the floor."""
    return max(2, -(-max(floor, 8 * cache_bytes) // max(1, bytes_of_one)))
