"""Explores schedules of the persistent kernels: `python -m torch_mps_fusion explore`.

The shaders' text runs in metal_host's checking build. Each schedule must end with the right bits
and nothing to report, or as the contract of failed launches says (explore_schedule, explore_run).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from .explore_run import Violation, run
from .explore_schedule import KINDS, Schedule, drawn, parse, simpler

COMMAND = "python -m torch_mps_fusion explore"
SECONDS = 60.0  # if nothing is asked for
SEEDS = 3  # that each simpler schedule is tried with
TRIES = 60  # launches spent on making a failure simpler


@dataclass
class Report:
    """Outcomes by kind of schedule, and the first violation."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: float = 0.0
    failed: Schedule | None = None
    why: str = ""

    @property
    def schedules(self) -> int:
        return sum(self.outcomes.values())


def explore(
    schedules: Iterator[Schedule],
    seconds: float = float("inf"),
    progress: Callable[[], object] = lambda: None,
) -> Report:
    """Runs schedules until one is violated, they end, the time is over, or Ctrl-C is pressed."""
    report, begin = Report(), time.monotonic()
    for s in schedules:
        if time.monotonic() - begin >= seconds:
            break
        try:
            report.outcomes[s.kind, run(s)] += 1
        except Violation as violation:
            report.failed, report.why = s, str(violation)
            break
        except KeyboardInterrupt:
            break
        finally:
            report.seconds = time.monotonic() - begin
        progress()
    return report


def why_violated(s: Schedule) -> str:
    """Empty if the schedule ends as it may."""
    try:
        run(s)
    except Violation as violation:
        return str(violation)
    return ""


def shrunk(s: Schedule, why: str, tries: int = TRIES) -> tuple[Schedule, str]:
    """A simpler schedule that is violated too, with few seeds for each simplification."""
    left = tries
    again = True
    while again:
        again = False
        for candidate in simpler(s):
            for seed in (s.seed, *range(SEEDS - 1)):
                if left <= 0:
                    return s, why
                left -= 1
                seeded = replace(candidate, seed=seed)
                if found := why_violated(seeded):
                    s, why, again = seeded, found, True
                    break
            if again:
                break
    return s, why


def run_explore(args: argparse.Namespace) -> int:
    """Explores as `args` say (`python -m torch_mps_fusion explore --help`); 1 on a violation."""
    if args.replay is not None:
        s = parse(args.replay)
        why = why_violated(s)
        print(f"violated: {why}" if why else f"as it may: {s}")
        return 1 if why else 0
    variants = [args.variant] if args.variant else ["hybrid", "mega"]
    rows = {"rows": args.rows} if args.rows else {}
    seconds = float("inf")
    if args.schedules is None:
        seconds = SECONDS if args.seconds is None else args.seconds
    print(f"exploring {' and '.join(variants)}, {args.dtype}, seed {args.seed}", flush=True)
    count = sys.maxsize if args.schedules is None else args.schedules
    todo = (drawn(args.seed, n, variants, [args.dtype], **rows) for n in range(count))
    with Progress(args.schedules) as progress:
        report = explore(todo, seconds, progress)
    print("\n".join(table(report)))
    if report.failed is None:
        return 0
    print(f"violated: {report.why}\n  {report.failed}\nlooking for a simpler one", flush=True)
    least, why = shrunk(report.failed, report.why)
    print(
        f"violated: {why}\nrepeat it alone:\n  python -m torch_mps_fusion explore --replay {least}"
    )
    return 1


def table(report: Report) -> list[str]:
    """One line for each kind of schedule and how its launches ended."""
    lines = [f"{report.schedules} schedules in {report.seconds:.0f} s ended as they may"]
    for kind in KINDS:
        ends = {o: n for (k, o), n in sorted(report.outcomes.items()) if k == kind}
        if ends:
            what = ", ".join(f"{n} {outcome}" for outcome, n in ends.items())
            lines.append(f"  {kind:8}{sum(ends.values()):6}: {what}")
    return lines


class Progress:
    """A tqdm bar where it is installed, else a line every ten seconds."""

    def __init__(self, total: int | None) -> None:
        self.done, self.total, self.shown = 0, total, time.monotonic()
        self.bar = None
        try:
            from tqdm import tqdm
        except ImportError:
            return
        self.bar = tqdm(total=total, unit="schedule")

    def __call__(self) -> None:
        self.done += 1
        if self.bar is not None:
            self.bar.update()
        elif time.monotonic() - self.shown >= 10:
            self.shown = time.monotonic()
            of = "" if self.total is None else f" of {self.total}"
            print(f"{self.done}{of} schedules", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()
