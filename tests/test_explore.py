"""Schedule exploration of `hybrid` and `mega`: it finds what is broken, and else nothing.

The marked tests take minutes: python -m pytest -m long tests/test_explore.py
"""

import re

import abi
import pytest

from torch_mps_fusion import host_kernels, shaders
from torch_mps_fusion.__main__ import main
from torch_mps_fusion.explore import explore, shrunk
from torch_mps_fusion.explore_run import Violation, run
from torch_mps_fusion.explore_schedule import KINDS, Schedule, drawn, parse, simpler


def some(count, **fixed):
    return (drawn(0, n, **fixed) for n in range(count))


# ------------------------------------------------------------------------------------ schedules


def test_schedules_are_pure_and_can_be_read_back():
    schedules = list(some(400))
    assert schedules == list(some(400))
    assert [parse(str(s)) for s in schedules] == schedules
    assert {s.kind for s in schedules} == set(KINDS)
    assert len(set(schedules)) == 400


def test_simpler_schedules_end():
    """Every step is allowed, and there is a last one."""
    for s in some(50):
        steps = 0
        while chain := list(simpler(s)):
            s, steps = chain[-1], steps + 1
            assert steps < 100
        assert (s.batch, s.tokens, s.preempt, s.epoch) == (1, 1, 0, 0)


BAD = [
    ("kind=fair", "schedule: got 'kind=fair'; accepted: a text with variant="),
    ("variant=packed", "variant: got 'packed'; accepted: hybrid, mega"),
    ("variant=mega,kind=slow", "kind: got 'slow'; accepted: fair, starved"),
    ("variant=mega,worker=2", "schedule: got 'worker=2'; accepted: FIELD=VALUE, with variant"),
    ("variant=mega,workers=two", "workers: got 'two'; accepted: a whole number"),
    ("variant=mega,workers=0", "workers: got 0; accepted: 1 or more"),
    ("variant=mega,schedule=slow", "schedule: 'slow' is not one of fifo"),
    ("variant=mega,lost=2", "lost: got 2; accepted: fewer than workers and than residency"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_texts_are_named(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(text)


# -------------------------------------------------------------------------------------- launches

ENDS = [
    ("clean", "schedule=random,workers=3,preempt=100,epoch=4294967295"),
    ("clean", "states=slots,schedule=priority,workers=3,residency=2,tokens=3"),
    ("expired", "kind=starved,schedule=unfair,spins=200,workers=5,seed=1"),
    ("expired", "kind=lost,schedule=random,spins=200,lost=2,workers=3,states=slots"),
    ("unfinished", "kind=lost,schedule=reverse,spins=200,lost=1,workers=13,lost_within=4"),
    ("cancelled", "kind=cancel,spins=200,states=slots"),
    ("broken", "kind=broken,spins=200"),
    ("expired", "kind=lag,counter=3,spins=200,epoch=41"),
]


@pytest.mark.parametrize(("end", "text"), ENDS, ids=[f"{e}-{i}" for i, (e, _) in enumerate(ENDS)])
def test_every_end(end, text):
    assert run(parse(f"variant=mega,{text}")) == end


def test_a_short_exploration():
    report = explore(some(16, rows=(1, 3)))
    assert report.failed is None, f"{report.failed}: {report.why}"
    assert report.schedules == 16


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_long_exploration(dtype):
    report = explore(some(1000, dtypes=(dtype,)))
    assert report.failed is None, f"{report.failed}: {report.why}"


def test_a_launch_that_ends_as_it_may_not_is_a_violation(monkeypatch):
    monkeypatch.setitem(KINDS, "cancel", ("clean",))
    with pytest.raises(Violation, match="cancelled, which a cancel schedule may not be"):
        run(Schedule("mega", kind="cancel", spins=200))


# ---------------------------------------------------------------------------------- planted bugs

TEXT = shaders.flat_text(abi.SHADERS / "persistent.metal")
# What is broken, by what, what has to be said, and in how many schedules it has to be found.
BUGS = {
    "a missing fence": (
        "inline void publish(thread const Launch& l, uint edge) {\n  device_fence();",
        "inline void publish(thread const Launch& l, uint edge) {",
        "race: .* is not ordered after the write",
        3,
    ),
    "a dropped signal": (
        "if (tid < signals) publish(",
        "if (tid < signals && stage != kTaskHead) publish(",
        "waited too long for counter",
        3,
    ),
    "a commit of a failed launch": (
        "  if (peek(l.control + kControlStatus) != kStatusWell) return;\n  atomic_store",
        "  atomic_store",
        "slot|counters|changed|failed",
        20,
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug, capsys):
    old, new, said, within = BUGS[bug]
    assert TEXT.count(old) == 1
    with host_kernels.replaced("persistent", TEXT.replace(old, new)):
        report = explore(some(within, variants=("mega",), rows=(1,)))
        assert report.failed is not None, "not found"
        assert re.search(said, report.why), report.why
        if bug == "a dropped signal":
            shorter(report, capsys)
    assert run(Schedule("mega")) == "clean"


def shorter(report, capsys):
    """The command prints a schedule that is simpler and fails alone."""
    least, why = shrunk(report.failed, report.why, tries=12)
    assert why and (least.batch, least.tokens, least.preempt) == (1, 1, 0)
    assert main(["explore", "--replay", str(least)]) == 1
    assert "violated: " in capsys.readouterr().out


def test_command(capsys):
    assert main(["explore", "--schedules", "2", "--variant", "mega", "--rows", "1"]) == 0
    out = capsys.readouterr().out
    assert "exploring mega, bfloat16, seed 0" in out and "2 schedules in" in out
    assert main(["explore", "--replay", "variant=mega"]) == 0
    assert main(["explore", "--replay", "variant=mega,lost=9"]) == 2
    assert "lost: got 9" in capsys.readouterr().err
