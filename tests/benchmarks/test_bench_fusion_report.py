"""The report on fusion, from receipts that were made up for these tests."""

from __future__ import annotations

import pytest
from bench_receipts import HASH, receipt, steady

from benchmarks import fusion_report
from benchmarks.commands import report

OURS = {"pack": HASH, "geometry": HASH, "replay": "CUDA graph"}


def synthetic(fused: float, part: str = "0.8b-1", arm: str = "mega", **changes) -> dict:
    """A receipt of no device: `fused` is the fused arm's time over the control's."""
    arms = {
        arm: {"samples_s": steady(fused * 1e-5), **OURS, **changes},
        "packed": {"samples_s": [1.0000001 * t for t in steady(1e-5)], **OURS},
    }
    made = receipt(**arms)
    made["device"]["name"] = "a synthetic GPU"
    made["caveats"] = ["synthetic: made for a test, measured nowhere"]
    made["results"], made["smoke"] = {"part": part}, False
    return made


@pytest.mark.parametrize(
    ("time", "words"),
    [(0.9, "10.0 % faster (10.0 to 10.0 %)"), (1.2, "20.0 % slower (20.0 to 20.")],
)
def test_either_way_is_printed_with_its_interval(time, words):
    page = "\n".join(report.text([synthetic(time)]))
    assert "a synthetic GPU" in page and words in page
    verdict = "faster in 1, slower in 0" if time < 1 else "faster in 0, slower in 1"
    assert f"mega against packed: {verdict}, not established in 0 of 1 cells" in page


def test_two_runs_of_a_cell_must_agree():
    runs = [synthetic(0.9, "9b-8-run1"), synthetic(1.1, "9b-8-run2")]
    (line,) = fusion_report.sums(runs)
    assert "faster in 0, slower in 0, not established in 1 of 1 cells" in line
    (line,) = fusion_report.sums([runs[0], synthetic(0.8, "9b-8-run2")])
    assert "faster in 1" in line


def test_what_is_no_difference_of_fusion_is_refused():
    other = synthetic(0.5, pack="b" * 64)
    assert "packed operands differ" in fusion_report.cells([other])[0][-1]
    assert fusion_report.sums([other])[0].startswith("No GPU was measured")


def test_a_cpu_says_nothing_of_fusion():
    native = synthetic(0.5)
    native["backend"] = "cpu-native"
    assert fusion_report.cells([native]) == []


def test_a_smoke_run_says_nothing_of_fusion():
    assert fusion_report.cells([{**synthetic(0.5), "smoke": True}]) == []


def test_an_interval_over_nothing_has_two_signs():
    assert fusion_report.effect({"mean": 0.99, "low": 0.97, "high": 1.01}) == (
        "1.0 % faster (-1.0 to 3.0 %)"
    )
    assert fusion_report.effect({"mean": 1.01, "low": 0.99, "high": 1.03}) == (
        "1.0 % slower (-1.0 to 3.0 %)"
    )


def test_counted_differences_are_in_the_page():
    made = receipt("cpu-emulation", packed={"emulated": True, "replay": "none"})
    made["results"] = {
        "fusion": {
            "mega": {
                "bytes_by_stage": {"head": {"requested": -5, "distinct": -4, "written": -3}},
                "counters": {"barriers": 1, "atomics": 2, "fences": 3, "spins": 4},
                "tasks_by_stage": {"in_proj": {"tasks": 6, "waits": 0, "signals": 7}},
            }
        }
    }
    page = "\n".join(report.text([made]))
    assert "| mega | in_proj | +0 | +0 | +0 | 6 | 0 | 7 |" in page
    assert "| mega | head | -5 | -4 | -3 |" in page
    assert "all stages: barriers +1, atomics +2, fences +3, spins +4" in page
