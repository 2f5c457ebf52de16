"""Runs task programs as the kernel would, on symbols: the judge of the program verifier.

It shares no idea with csrc/plan/verify.cpp. Counters are 32-bit words that go on from launch to
launch. A worker can be stopped inside a task for good: what every other worker then still comes to
touch is not ordered behind that task.
"""

from collections import defaultdict

import numpy as np

from torch_mps_fusion.plan import Dispatch, Program, Task, Tasks, Touch

SEGMENTS = 8
HALF, WORD = 2**31, 2**32


def complete(tasks: Tasks) -> bool:
    """Whether the records stay inside of the tables, and list as many waits as the body takes."""
    for r in tasks.records:
        if r.first_wait + r.n_waits > len(tasks.edges):
            return False
        if r.first_signal + r.n_signals > len(tasks.edges):
            return False
        if r.n_waits != {"in_proj": 0, "out_proj": SEGMENTS}.get(r.stage, r.n_waits):
            return False
    return all(counter < tasks.counters for counter, _ in tasks.edges)


class Launch:
    """Launch number `epoch`; all before it ended well."""

    def __init__(self, tasks: Tasks, epoch: int):
        self.tasks, self.epoch = tasks, epoch
        totals = [0] * tasks.counters
        for r in tasks.records:
            for counter, count in tasks.signals(r):
                totals[counter] += count
        self.words = [epoch * total % WORD for total in totals]

    def met(self, wait: tuple[int, int]) -> bool:
        counter, count = wait
        return (self.words[counter] - (self.epoch + 1) * count) % WORD < HALF

    def finish(self, task: Task) -> None:
        for counter, count in self.tasks.signals(task):
            self.words[counter] = (self.words[counter] + count) % WORD


def ends(tasks: Tasks, epoch: int) -> bool:
    """Whether a lone worker comes to the end: then any number does."""
    launch = Launch(tasks, epoch)
    for r in tasks.records:
        if not all(launch.met(w) for w in tasks.waits(r)):
            return False
        launch.finish(r)
    return True


def passed_without(tasks: Tasks, stopped: int, epoch: int) -> set[tuple[int, int]]:
    """(task, wait) that are passed while `stopped` never signals; wait -1: all of the task's."""
    launch, passed = Launch(tasks, epoch), set()
    left = {t for t in range(len(tasks.records)) if t != stopped}
    progress = True
    while progress:
        progress = False
        for t in sorted(left):
            r = tasks.records[t]
            waits = tasks.waits(r)
            met = [i for i, w in enumerate(waits) if (t, i) in passed or launch.met(w)]
            passed |= {(t, i) for i in met}
            if len(met) == len(waits):
                passed.add((t, -1))
                launch.finish(r)
                left.discard(t)
                progress = True
    return passed


def byte_numbers(t: Touch) -> np.ndarray:
    rows = t.offset + t.pitch * np.arange(t.rows)[:, None]
    return (rows + np.arange(t.bytes)).ravel()


Access = tuple[int, int]  # a task, and the wait that it is behind


def conflicts(program: Program, tasks: Tasks) -> set[tuple[Access, Access]]:
    """Pairs of accesses to the same bytes of one storage, of which one writes."""
    found = set()
    by_storage: dict[int, list[Touch]] = defaultdict(list)
    for t in tasks.touches:
        by_storage[program.buffers[t.buffer].storage].append(t)
    for touches in by_storage.values():
        size = max(program.buffers[t.buffer].bytes for t in touches)
        masks = np.zeros((len(touches), size), bool)
        for mask, t in zip(masks, touches, strict=True):
            mask[byte_numbers(t)] = True
        for mask, write in zip(masks, touches, strict=True):
            if write.access != "write":
                continue
            for i in np.flatnonzero((masks & mask).any(axis=1)):
                if touches[i] is not write:
                    found.add(((write.task, write.wait), (touches[i].task, touches[i].wait)))
    return found


def in_order(program: Program, dispatch: Dispatch) -> bool:
    """Whether tasks that run by ticket, one at a time, read what was made for them, write each byte
    of a buffer once, and leave whole what they make."""
    tasks, makes = dispatch.tasks, {v.buffer for v in dispatch.views if "write" in v.access}
    memory: dict[int, np.ndarray] = {}  # by storage: the buffer that each byte was last written as
    done = {b: np.zeros(program.buffers[b].bytes, bool) for b in makes}
    for ticket in range(len(tasks.records)):
        mine = [t for t in tasks.touches if t.task == ticket]
        for t in sorted(mine, key=lambda t: t.access):  # reads first
            buffer = program.buffers[t.buffer]
            size = max(b.bytes for b in program.buffers if b.storage == buffer.storage)
            held = memory.setdefault(buffer.storage, np.full(size, -1))
            at = byte_numbers(t)
            if at[-1] >= buffer.bytes:
                return False
            if t.access == "read":
                if (held[at] != (t.buffer if t.buffer in makes else -1)).any():
                    return False
                continue
            if t.buffer not in makes or done[t.buffer][at].any():
                return False
            done[t.buffer][at] = True
            held[at] = t.buffer
    for v in dispatch.views:
        if "write" not in v.access or program.buffers[v.buffer].role == "control":
            continue
        if done[v.buffer].sum() != v.written:
            return False
        held = memory[program.buffers[v.buffer].storage][: len(done[v.buffer])]
        kept = program.buffers[v.buffer].role != "scratch"
        if kept and (held[done[v.buffer]] != v.buffer).any():
            return False
    return True


def sound(program: Program) -> bool:
    """Whether every launch of the program's persistent dispatch, by any number of workers in any
    order, ends and computes what its tasks computed one after the other."""
    (dispatch,) = [d for d in program.dispatches if d.tasks]
    tasks = dispatch.tasks
    if not complete(tasks) or not in_order(program, dispatch):
        return False
    totals = {total for total in Launch(tasks, 1).words if total}
    # The last ones: a counter's word is about to pass its sign.
    if not all(ends(tasks, epoch) for epoch in [0, 1, 7, *(-(-HALF // n) for n in totals)]):
        return False
    pairs = conflicts(program, tasks)
    for epoch in (0, 1, 7):
        reached = [passed_without(tasks, t, epoch) for t in range(len(tasks.records))]
        for a, b in pairs:
            if a[0] == b[0] or (b in reached[a[0]] and a in reached[b[0]]):
                return False
    return True
