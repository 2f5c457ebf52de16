"""What a launch measured."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class BufferCounters:
    """Traffic of one buffer in bytes: every access (total), and every byte once (distinct).

    Atomics are counted as operations and not as bytes.
    """

    read: int
    written: int
    read_distinct: int
    written_distinct: int
    atomics: int


@dataclasses.dataclass(frozen=True)
class Counters:
    """Of a whole launch. A barrier counts once for the threadgroup, a simdgroup operation once
    for the simdgroup; atomics and fences count for each thread. `spins` are repeated reads that
    saw the same value. The last three need a checked build, else they are 0.
    """

    switches: int
    barriers: int
    simd_barriers: int
    simd_ops: int
    atomics: int
    fences: int
    spins: int
    threadgroup_bytes: int
    accesses: int
    threadgroup_read: int
    threadgroup_written: int


@dataclasses.dataclass(frozen=True)
class Result:
    """`trace` is a hash of the schedule: equal for equal seeds. `buffers` is by parameter name and
    None unless the build is checked. `lost` threadgroups stopped before their end.
    """

    trace: int
    counters: Counters
    buffers: dict[str, BufferCounters] | None
    started: int
    finished: int
    lost: int
    seconds: float
