"""The instrumented build of the persistent kernels: the same bits; what its tasks waited for."""

import re
from collections import defaultdict

import pytest
import torch
from compare import assert_equal
from settings import BLOCK, RAGGED, Setting
from test_persistent_variants import PERSISTENT, Call, geometry, planned

from torch_mps_fusion import host_kernels, instrumented, shaders
from torch_mps_fusion.metal_host import ptx, source
from torch_mps_fusion.plan import TASK_STAGES

BF16 = torch.bfloat16
WORKERS = ";workers=4"
WAY = {"schedule": "random", "seed": 1}
COUNTED = "#ifdef MSL_TICKS"  # with another name there, the shader's own clock counts
OWN_CLOCK = "#ifdef NO_SUCH_CLOCK"


def run(call, variant, changes=WORKERS, **options):
    """Results, what was noted, and the launch's counters."""
    with instrumented.build(changes), host_kernels.running(**options) as launches:
        results = call(variant)
    tasks = next(d.tasks for d in planned(call, variant, changes).dispatches if d.tasks)
    return results, instrumented.read(tasks, "cpu"), launches[-1].result


def check_order(found, workers):
    """Every task ran once, on a worker, behind all that it waits for."""
    tasks = found.tasks
    assert [t.task for t in found.timed] == list(range(len(tasks.records)))
    signalled, by_worker = defaultdict(float), defaultdict(list)
    for t in found.timed:
        for counter, _ in tasks.signals(tasks.records[t.task]):
            signalled[counter] = max(signalled[counter], t.over)
    for t in found.timed:
        waits = instrumented.waits_of(tasks, tasks.records[t.task])
        assert t.drawn <= t.ready <= t.over and 0 <= t.worker < workers
        assert len(t.waits) == (instrumented.SIMDS if waits else 0)
        assert t.ready >= max([0.0, *(signalled[counter] for counter, _ in waits)])
        assert {w.counter for w in t.waits if w.polls > 1} <= {counter for counter, _ in waits}
        assert all(w.begin <= w.end <= t.over for w in t.waits)
        by_worker[t.worker].append(t)
    for mine in by_worker.values():
        ends = [0.0, *(t.over for t in mine)]
        assert all(t.drawn >= end for t, end in zip(mine, ends, strict=False))


@pytest.mark.parametrize("variant", PERSISTENT)
def test_the_bits_of_packed_and_times_in_order(variant):
    call = Call(Setting(BLOCK, masked=True), BF16, 1, 9)
    packed = call("packed")
    for checked in (False, True):
        results, found, result = run(call, variant, checked=checked, **WAY)
        assert_equal(results, packed)
        check_order(found, 4)
        assert result.started == 5  # a threadgroup for the clock
        assert sum(t.over > t.drawn for t in found.timed) > 0.9 * len(found.timed)
    assert {t.worker for t in found.timed} == set(range(4))
    waited = any(w.polls > 1 for t in found.timed for w in t.waits)
    assert waited or variant == "hybrid"  # whose heads wait for nothing


@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_the_clock_that_counts_in_device_memory(order):
    """As on Metal. Started last, it may find no worker any more, and ends."""
    call = Call(Setting(BLOCK), BF16, 1, 3)
    packed = call("packed")
    flat = host_kernels.text("persistent")
    assert flat.count(COUNTED) == 1
    with host_kernels.replaced("persistent", flat.replace(COUNTED, OWN_CLOCK)):
        for way in (WAY | {"order": order}, {"order": order, "residency": 1}):
            for checked in (False, True):
                results, found, _ = run(call, "mega", checked=checked, **way)
                assert_equal(results, packed)
                check_order(found, 4)
    assert_equal(call("mega"), packed)


def test_a_lone_worker_never_waits():
    _, found, _ = run(Call(Setting(BLOCK), BF16, 1, 3), "mega", ";workers=1", **WAY)
    assert {w.polls for t in found.timed for w in t.waits} == {1}


def test_what_the_plain_build_moves_is_what_it_moved():
    """All that is added are the notes themselves."""
    call = Call(Setting(RAGGED), BF16, 1, 3)
    one = {"checked": True, "count_only": True}
    with host_kernels.running(**one) as launches, geometry(";workers=1"):
        call("mega")
    plain = launches[-1].result
    _, found, timed = run(call, "mega", ";workers=1", **one)
    n = len(found.tasks.records)
    notes = [timed.buffers.pop(name) for name in ("times", "waits")]  # one buffer, counted whole
    waiting = sum(t.n_waits > 0 for t in found.tasks.records)
    for counted in notes:
        assert counted.written == 12 * n + 16 * instrumented.SIMDS * waiting
        assert not counted.read
    # how often a compiler loads a word of these again is its own affair
    tables = ("records", "edges", "args", "gdn", "in_args", "out_args")
    for name, counted in timed.buffers.items():
        before = plain.buffers[name]
        assert counted.read_distinct == before.read_distinct, name
        assert counted == before or name in tables, name
    assert plain.counters.barriers == timed.counters.barriers
    assert plain.counters.atomics == timed.counters.atomics


def test_as_ptx_only_the_instrumented_build_has_a_clock():
    flat = host_kernels.text("persistent")
    name = "tmf_persistent_bf16_f32_dk32dv32nt1u2p__grid"
    found = {}
    for times in (0, 1):
        values = {c.index: 0 for c in source.function_constants(flat)} | {400: 1, 402: times}
        module = ptx.build(
            "persistent.metal", values, text=flat, defines=shaders.defines(name), by_value=True
        )
        found[times] = re.findall(r"%globaltimer", module.text)
    assert not found[0] and len(found[1]) >= 4


def test_ticks_wrap_around():
    call = Call(Setting(BLOCK), BF16, 1, 1)
    tasks = next(d.tasks for d in planned(call, "hybrid", WORKERS).dispatches if d.tasks)
    n = len(tasks.records)
    begin = 2**32 - 3
    rows = [[i % 4, (begin + i) % 2**32, (begin + i + 2) % 2**32, 0] for i in range(n)]
    rows += [[(begin + i // 8) % 2**32, (begin + i // 8 + 1) % 2**32, 7, 3] for i in range(8 * n)]
    found = instrumented.run_of(tasks, rows)
    assert [t.drawn for t in found.timed] == list(map(float, range(n)))
    assert [t.over - t.drawn for t in found.timed] == [2.0] * n


def test_the_table_of_waits():
    call = Call(Setting(BLOCK, masked=True), BF16, 1, 3)
    _, found, _ = run(call, "mega", **WAY)
    header, *lines = found.wait_table()
    assert [line[0] for line in lines] == list(TASK_STAGES)
    columns = [dict(zip(header, line, strict=True)) for line in lines]
    assert columns[0]["ticks"] == "0" and columns[0]["longest for"] == ""
    assert float(columns[3]["ticks"]) > 0 and columns[3]["longest for"].startswith("counter ")


def test_another_program_is_refused():
    call = Call(Setting(BLOCK), BF16, 1, 3)
    run(call, "mega", **WAY)
    tasks = next(d.tasks for d in planned(call, "hybrid", WORKERS).dispatches if d.tasks)
    with pytest.raises(ValueError, match=r"tasks: got \d+; the last instrumented launch on cpu"):
        instrumented.read(tasks, "cpu")


def test_the_program_of_the_instrumented_build_is_sound():
    call = Call(Setting(BLOCK), BF16, 1, 3)
    program = planned(call, "mega", WORKERS + ";times=1")
    assert not program.faults()
    program.dispatches[-1].grid = (4, 1, 1)
    assert any("4 in a grid of 4 threadgroups" in fault for fault in program.faults())
