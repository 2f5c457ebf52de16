"""Schedules of a persistent launch that `explore` tries: drawn by seed, as text, and simpler ones.

Kinds, and how a launch may end:

- fair: nobody is starved. It gives the right bits.
- starved: what has started does not run while others can. Right bits, or a wait expires.
- lost: workers stop for good. Right bits, a wait expires, or a worker did not finish.
- cancel, broken, lag: the cancellation word is set, the counters are left over from a launch that
  failed, a counter lags by one. The call fails and says so.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, replace

from .metal_host import LaunchError, Options

CLEAN, EXPIRED, UNFINISHED, CANCELLED, BROKEN = (
    "clean", "expired", "unfinished", "cancelled", "broken",
)  # fmt: skip
KINDS = {
    "fair": (CLEAN,),
    "starved": (CLEAN, EXPIRED),
    "lost": (CLEAN, EXPIRED, UNFINISHED),
    "cancel": (CANCELLED,),
    "broken": (BROKEN,),
    "lag": (EXPIRED,),
}
VARIANTS = ("hybrid", "mega")
STATES = ("in_place", "slots")
DTYPES = ("bfloat16", "float16", "float32")
FAIR = ("fifo", "random", "priority", "reverse")
# Launches so far: none, many, and so many that the counters wrap within the launch or the next.
EPOCHS = (0, 0, 0, 41, 2**31 - 1, 2**32 - 1)
MOST_ROWS = 32  # of a persistent call
WORKERS = (1, 2, 2, 3, 3, 4, 5, 8, 13, 40)
# Polls after which a wait gives up: enough for every fair schedule, and soon over for the others.
FAIR_SPINS, SPINS = 50_000, (200, 700, 2000)
# Unchanged polls before metal_host calls it a livelock: soon, or after the shader's own bounds.
FAIR_POLLS, POLLS = 100_000, 10_000_000


@dataclass(frozen=True)
class Schedule:
    """One launch: the call, the workers, and who runs when (`metal_host.Options`).

    variant: one of VARIANTS. kind: one of KINDS. states: one of STATES: gdn_layer_ or
    gdn_layer_slots_. batch, tokens: sequences, and rows of each. workers: threadgroups, as many as
    there are tasks at most. spins: polls of one wait. epoch: launches before this one. counter:
    the one that lags, modulo those that are waited for.
    """

    variant: str
    kind: str = "fair"
    states: str = "in_place"
    dtype: str = "bfloat16"
    batch: int = 1
    tokens: int = 1
    workers: int = 2
    spins: int = FAIR_SPINS
    epoch: int = 0
    counter: int = 0
    seed: int = 0
    schedule: str = "fifo"
    order: str = "forward"
    residency: int = 0
    preempt: int = 0
    stale: int = 0
    lost: int = 0
    lost_within: int = 32

    def __post_init__(self) -> None:
        for name, accepted in (
            ("variant", VARIANTS),
            ("kind", tuple(KINDS)),
            ("states", STATES),
            ("dtype", DTYPES),
        ):
            if getattr(self, name) not in accepted:
                raise ValueError(
                    f"{name}: got {getattr(self, name)!r}; accepted: {', '.join(accepted)}"
                )
        for name in ("batch", "tokens", "workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}; accepted: 1 or more")
        if self.lost and self.lost >= (self.residency or self.workers):
            raise ValueError(
                f"lost: got {self.lost}; accepted: fewer than workers and than residency"
            )
        self.options()

    def options(self) -> Options:
        """For metal_host."""
        try:
            return Options(
                seed=self.seed,
                schedule=self.schedule,
                order=self.order,
                residency=self.residency,
                preempt=self.preempt,
                stale=self.stale,
                lost=self.lost,
                lost_within=self.lost_within,
                time_limit=600.0,
                spin_limit=FAIR_POLLS if self.kind == "fair" else POLLS,
            )
        except LaunchError as error:
            raise ValueError(str(error)) from None

    def __str__(self) -> str:
        """What `parse` reads: fields that are not the default."""
        changed = [
            f"{f.name}={getattr(self, f.name)}"
            for f in fields(self)
            if f.default is MISSING or getattr(self, f.name) != f.default
        ]
        return ",".join(changed)


def parse(text: str) -> Schedule:
    """The schedule of such a text; ValueError, naming the field."""
    known = {f.name: int if f.default.__class__ is int else str for f in fields(Schedule)}
    given: dict[str, int | str] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in known:
            raise ValueError(
                f"schedule: got {part!r}; accepted: FIELD=VALUE, with {', '.join(known)}"
            )
        try:
            given[name] = known[name](value)
        except ValueError:
            raise ValueError(f"{name}: got {value!r}; accepted: a whole number") from None
    if "variant" not in given:
        raise ValueError(f"schedule: got {text!r}; accepted: a text with variant=")
    # Every value has the type of its field: `known` made it.
    return Schedule(**given)  # type: ignore[arg-type]


def drawn(
    seed: int,
    number: int,
    variants: Sequence[str] = VARIANTS,
    dtypes: Sequence[str] = ("bfloat16",),
    rows: Sequence[int] = (1, 1, 3, 9),
) -> Schedule:
    """The schedule with this number of the sequence that `seed` starts."""
    r = random.Random(f"{seed} {number}")
    kind = r.choices(list(KINDS), (10, 3, 4, 1, 1, 2))[0]
    workers = r.choice(WORKERS)
    lost = min(r.choice((1, 1, 2, 3)), workers - 1) if kind == "lost" else 0
    if kind == "lost" and not lost:
        workers, lost = 2, 1
    residency = r.choice((0, 0, 1, 2, 3, 5))
    tokens = r.choice(rows)
    return Schedule(
        variant=r.choice(variants),
        kind=kind,
        dtype=r.choice(dtypes),
        states=r.choice(STATES),
        batch=r.choice((1, 1, 2)) if 2 * tokens <= MOST_ROWS else 1,
        tokens=tokens,
        workers=workers,
        spins=FAIR_SPINS if kind == "fair" else r.choice(SPINS),
        epoch=r.choice(EPOCHS),
        counter=r.randrange(100) if kind == "lag" else 0,
        seed=r.randrange(2**32),
        schedule="unfair" if kind == "starved" else r.choice(FAIR),
        order=r.choice(("forward", "reversed", "shuffled")),
        residency=max(residency, lost + 1) if residency else 0,
        preempt=r.choice((0, 0, 500, 100, 20)),
        stale=r.choice((0, 8, 2)),
        lost=lost,
        lost_within=r.choice((8, 32, 200, 1500)),
    )


def simpler(s: Schedule) -> Iterator[Schedule]:
    """Schedules that are simpler in one thing, the most telling first."""
    if s.batch * s.tokens > 1:
        yield replace(s, batch=1, tokens=1)
    if s.batch > 1:
        yield replace(s, batch=1)
    for workers in range(s.lost + 1 if s.lost else 1, s.workers):
        if workers <= 4 or workers * 2 == s.workers:
            yield replace(s, workers=workers)
    if s.kind != "fair" and CLEAN in KINDS[s.kind]:
        yield replace(s, kind="fair", lost=0, spins=FAIR_SPINS, schedule="random")
    if s.lost > 1:
        yield replace(s, lost=1)
    if s.states != "in_place":
        yield replace(s, states="in_place")
    plain = Schedule(s.variant)
    for name in ("epoch", "preempt", "stale", "order", "residency"):
        if getattr(s, name) != getattr(plain, name):
            yield replace(s, **{name: getattr(plain, name)})
    if s.kind != "starved":
        for schedule in FAIR[: FAIR.index(s.schedule)]:
            yield replace(s, schedule=schedule)
