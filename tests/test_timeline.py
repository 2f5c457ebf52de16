"""`explain --program`: the tasks of a layer over its workers, as text and as a picture."""

import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from torch_mps_fusion import explain, timeline
from torch_mps_fusion.__main__ import main
from torch_mps_fusion.models import KNOWN_SHAPES

FIGURE = Path(__file__).parent.parent / "docs" / "program.png"


def tasks_of(shape="0.8b", variant="mega", tokens=8, **keywords):
    program = explain.plan_config(
        KNOWN_SHAPES[shape], torch.bfloat16, variant=variant, tokens=tokens,
        **{"device": "M1 Max"} | keywords,
    )  # fmt: skip
    return next(d.tasks for d in program.dispatches if d.tasks)


def printed(capsys, *arguments: str) -> str:
    assert main(["explain", "--shape", "0.8b", "--rows", "8", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("variant", ["hybrid", "mega"])
def test_spans_follow_tickets_waits_and_workers(variant):
    tasks = tasks_of(variant=variant)
    found = timeline.spans(tasks)
    assert [s.task for s in found] == list(range(len(tasks.records)))
    drawn = [s.drawn for s in found]
    assert drawn == sorted(drawn)
    signalled, by_worker = defaultdict(float), defaultdict(list)
    for s, task, us in zip(found, tasks.records, tasks.times_us, strict=True):
        last = max([s.drawn, *(signalled[c] for c, n in tasks.waits(task) if n)])
        assert s.ready == last and s.end == s.ready + us and us > 0
        for counter, _ in tasks.signals(task):
            signalled[counter] = max(signalled[counter], s.end)
        by_worker[s.worker].append(s)
    assert set(by_worker) == set(range(tasks.workers))
    for mine in by_worker.values():
        ends = [0.0, *(s.end for s in mine)]
        assert [s.drawn for s in mine] == ends[:-1]  # no worker rests while there are tasks


def test_one_worker_never_waits():
    tasks = tasks_of(geometry=";workers=1")
    found = timeline.spans(tasks)
    assert all(s.ready == s.drawn for s in found)
    assert found[-1].end == pytest.approx(sum(tasks.times_us))


def test_times_follow_the_chip():
    """Bound by memory at first, by the work where memory is no limit."""
    slow, fast, faster, fastest = (
        tasks_of(device=f"M1 Max;bandwidth={b}") for b in (100, 200, 40000, 80000)
    )
    for stage in ("in_proj", "head", "out_proj"):
        i = [r.stage for r in slow.records].index(stage)
        assert slow.times_us[i] == pytest.approx(2 * fast.times_us[i], rel=1e-3), stage
        assert fast.times_us[i] > faster.times_us[i] == fastest.times_us[i] > 0, stage


def test_heads_run_while_the_projection_streams():
    """One join, before the output tiles: nobody waits before the last column is made."""
    tasks = tasks_of("27b")
    found = timeline.spans(tasks)
    inputs = [s for s in found if tasks.records[s.task].stage == "in_proj"]
    assert all(s.ready == s.drawn for s in inputs)
    waited = sum(s.ready - s.drawn for s in found)
    assert waited < 0.05 * tasks.workers * found[-1].end


def test_as_text(capsys):
    out = printed(capsys, "--variant", "mega", "--program")
    lines = out.splitlines()
    assert "M1 Max: 32 cores, 400 GB/s" in lines[0]
    assert [line.split()[:2] for line in lines[3:7]] == [
        ["in_proj", "i"], ["head", "h"], ["conv_state", "c"], ["out_proj", "o"],
    ]  # fmt: skip
    rows = [line for line in lines if line.endswith("|")]
    assert len(rows) == timeline.LINES
    assert all(row[8] == "i" and len(row) == timeline.COLUMNS + 9 for row in rows)
    assert any("h" in row for row in rows) and "Derived, not measured" in out
    assert len(printed(capsys, "--variant", "hybrid", "--program").split("|")) > 3


def test_few_workers_have_a_line_each(capsys):
    out = printed(capsys, "--variant", "mega", "--geometry", ";workers=3", "--program")
    assert [line.split()[0] for line in out.splitlines() if line.endswith("|")] == ["0", "1", "2"]


def test_as_a_picture(capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib (extra `bench`) is not installed")
    files = [tmp_path / name for name in ("a.svg", "b.svg", "c.png")]
    given = ("--variant", "mega", "--geometry", ";workers=6", "--program")
    for file in files:
        assert "written" in printed(capsys, *given, str(file))
    text = files[0].read_text()
    assert text == files[1].read_text()
    assert "estimate from nominal figures of M1 Max; nothing was measured" in text
    assert files[2].read_bytes().startswith(b"\x89PNG")
    tasks = tasks_of(geometry=";workers=6")
    description = timeline.busy_line(tasks, timeline.spans(tasks))
    assert description in text and description.encode() in files[2].read_bytes()


def test_the_readmes_figure_is_of_todays_program():
    """It is made by `python -m torch_mps_fusion explain --shape 27b --variant mega --rows 8
    --program docs/program.png`."""
    tasks = tasks_of("27b")
    assert timeline.busy_line(tasks, timeline.spans(tasks)).encode() in FIGURE.read_bytes()
    assert FIGURE.stat().st_size < 200_000


def test_refusals(capsys, monkeypatch):
    def refusal(*arguments):
        assert main(["explain", "--program", *arguments]) == 2
        return capsys.readouterr().err

    assert "--program: got variant core; accepted: hybrid, mega" in refusal("--variant", "core")
    assert "accepted: a name that ends in .svg or .png" in refusal("x.gif", "--variant", "mega")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "needs matplotlib (the extra `bench`)" in refusal("x.svg", "--variant", "mega")
    tasks = tasks_of()
    tasks.times_us.clear()
    with pytest.raises(ValueError, match="no estimated times"):
        timeline.spans(tasks)
