"""How a launch is scheduled and checked."""

from __future__ import annotations

import dataclasses

from .errors import LaunchError

SCHEDULES = {
    "fifo": "in turn; a threadgroup keeps the turn until it waits or polls",
    "random": "any thread that can run, by the seed",
    "priority": "threadgroups by priorities of the seed, which fall now and then; pollers last",
    "reverse": "the threadgroup with the highest number that can run; pollers last",
    "unfair": "a threadgroup that has started is starved while any other can run, pollers included",
}
ORDERS = ("forward", "reversed", "shuffled")


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a launch; each is also a keyword of `Kernel.__call__`.

    seed: of everything random. schedule: a key of SCHEDULES. order: in which order threadgroups
    start (ORDERS). residency: threadgroups in flight at once, 0 for as many as make 65,536 threads.
    preempt: checked builds also switch at one in so many plain accesses, 0 for never. stale: in
    checked builds one in so many atomic loads may see an older value, 0 for none. lost: so
    many threadgroups, picked by the seed, stop running for good, each before it has done
    `lost_within` atomics, barriers and pre-emptions. threads: OS threads; above 1 nothing may be
    explored or checked. time_limit: seconds, 0 for none. spin_limit: unchanged polls, for each
    thread that can run, before a livelock is reported; above the shader's own bounds, if it has
    any.
    threadgroup_limit: bytes of threadgroup memory. stack: bytes for each thread.
    allow_simdgroup_spin, allow_inactive_lanes: do not report these. count_only: a checked build
    counts but does not check.
    """

    seed: int = 0
    schedule: str = "fifo"
    order: str = "forward"
    residency: int = 0
    preempt: int = 0
    stale: int = 0
    lost: int = 0
    lost_within: int = 32
    threads: int = 1
    time_limit: float = 60.0
    spin_limit: int = 100_000
    threadgroup_limit: int = 32_768
    stack: int = 65_536
    allow_simdgroup_spin: bool = False
    allow_inactive_lanes: bool = False
    count_only: bool = False

    def __post_init__(self) -> None:
        _one_of("schedule", self.schedule, tuple(SCHEDULES))
        _one_of("order", self.order, ORDERS)
        _whole("seed", self.seed, 0, 2**64 - 1)
        _whole("residency", self.residency, 0, 2**31)
        _whole("preempt", self.preempt, 0, 2**31)
        _whole("stale", self.stale, 0, 2**31)
        _whole("lost", self.lost, 0, 2**31)
        _whole("lost_within", self.lost_within, 1, 2**31)
        _whole("threads", self.threads, 1, 256)
        _whole("spin_limit", self.spin_limit, 1, 2**31)
        _whole("threadgroup_limit", self.threadgroup_limit, 16, 2**24)
        _whole("stack", self.stack, 32_768, 2**24)
        if not isinstance(self.time_limit, (int, float)) or not 0 <= self.time_limit <= 1e6:
            raise LaunchError(f"time_limit: {self.time_limit!r} is not a number of seconds")
        if self.threads > 1:
            explored = [
                name
                for name in ("schedule", "order", "preempt", "stale", "lost", "residency")
                if getattr(self, name) != getattr(type(self), name)
            ]
            if explored:
                raise LaunchError(
                    f"threads: {self.threads} OS threads do not go with {explored[0]}"
                )

    @classmethod
    def of(cls, base: Options | None, given: dict[str, object]) -> Options:
        """`base` with keywords put over it; an unknown keyword raises LaunchError."""
        names = [f.name for f in dataclasses.fields(cls)]
        for name in given:
            if name not in names:
                names += ["poison", "threadgroup_memory", "grid_in_threads"]
                raise LaunchError(f"{name}: unknown option; there are: {', '.join(names)}")
        return dataclasses.replace(base or cls(), **given)  # type: ignore[arg-type]


def _one_of(name: str, value: object, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise LaunchError(f"{name}: {value!r} is not one of {', '.join(accepted)}")


def _whole(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise LaunchError(f"{name}: {value!r} is not a whole number from {low} to {high}")
