"""What the report refuses. Each refusal has its case, and a case that is not refused beside it."""

from __future__ import annotations

import copy

import pytest
from bench_receipts import HASH, receipt, steady

from benchmarks import claims, figures
from benchmarks.commands import report
from benchmarks.errors import ReportRefusal
from benchmarks.stats import Comparison, Ratio

OURS = {"pack": HASH, "geometry": HASH, "replay": "CUDA graph", "launch": "k"}


def pair(**changes):
    return receipt(
        core={**OURS, "samples_s": steady(8e-6)},
        packed={**OURS, **changes, "samples_s": steady(10e-6)},
    )


def run(verdict: str, mean: float = 0.8, a: str = "core") -> Comparison:
    reasons = ["the interval includes 1"] if verdict == "not established" else []
    ratio = Ratio(mean, mean - 0.05, mean + 0.05, 20, 20)
    return Comparison(a, "packed", ratio, 0.0, 0.0, verdict, reasons)


def test_arithmetic_across_scopes_is_refused():
    layer, serving = pair(), pair()
    assert claims.difference(layer, "packed", layer, "core") == pytest.approx(2e-6, rel=0.01)
    serving["scope"] = "serving"
    with pytest.raises(ReportRefusal, match="scopes layer, serving"):
        claims.difference(layer, "packed", serving, "core")


def test_systems_and_os_builds_share_no_axis():
    one, other = pair(), pair()
    claims.same_system(one, other)
    other["device"]["os_build"] = "24A335"
    with pytest.raises(ReportRefusal, match="os_build"):
        claims.difference(one, "packed", other, "core")


@pytest.mark.parametrize("field", ["pack", "geometry"])
def test_a_fusion_claim_needs_equal_packs_and_geometry(field):
    assert "faster" in claims.fusion(pair(), "core", "packed")
    with pytest.raises(ReportRefusal, match=f"{field}_sha256"):
        claims.fusion(pair(**{field: "b" * 64}), "core", "packed")
    with pytest.raises(ReportRefusal, match=f"{field}_sha256"):
        claims.fusion(pair(**{field: None}), "core", "packed")


def test_a_fusion_claim_needs_one_replay_mode():
    with pytest.raises(ReportRefusal, match="replay mode"):
        claims.fusion(pair(replay="plain calls"), "core", "packed")


def test_a_fusion_claim_needs_one_randomised_run():
    found = pair()
    found["comparisons"] = []
    with pytest.raises(ReportRefusal, match="not compared in one"):
        claims.fusion(found, "core", "packed")


def test_the_best_of_a_sweep_is_no_rate():
    arm = {"samples_s": steady(1e-3), "payload_bytes": 10**9, "launch": "striped 4 x 256"}
    gb_s, kind = claims.rate(receipt(stream=dict(arm)), "stream")
    assert gb_s == pytest.approx(1000, rel=0.01) and kind == "rate"
    with pytest.raises(ReportRefusal, match="best of a sweep"):
        claims.rate(receipt(stream={**arm, "selection": "best of sweep"}), "stream")


def test_a_rate_names_its_pattern_and_payload():
    arm = {"samples_s": steady(1e-3), "payload_bytes": 10**9}
    with pytest.raises(ReportRefusal, match="pattern and geometry"):
        claims.rate(receipt(stream=dict(arm)), "stream")
    with pytest.raises(ReportRefusal, match="payload"):
        claims.rate(receipt(stream={**arm, "payload_bytes": None, "launch": "x"}), "stream")


def test_a_rate_without_a_recorded_warm_up_is_an_observed_reference():
    arm = {"samples_s": steady(1e-3), "payload_bytes": 10**9, "launch": "striped"}
    found = receipt(stream=arm)
    found["warm_up_gpu_s"] = None
    assert claims.rate(found, "stream")[1] == "observed reference"


def test_an_emulation_has_no_time():
    emulated = receipt("cpu-emulation", core={**OURS, "emulated": True})
    with pytest.raises(ReportRefusal, match="an emulation has no time"):
        claims.time_of(emulated, "core")
    smuggled = pair()
    smuggled["backend"] = "cpu-emulation"
    with pytest.raises(ReportRefusal, match="an emulation has no time"):
        claims.time_of(smuggled, "core")


def test_instrumented_times_are_barred():
    found = receipt(core={**OURS, "instrumented": True, "samples_s": steady(1e-6)})
    with pytest.raises(ReportRefusal, match="instrumented"):
        claims.time_of(found, "core")


def test_diagnostics_of_different_variants_are_not_summed():
    one, other = pair(), copy.deepcopy(pair())
    assert claims.total([(one, 1e-6), (one, 2e-6)]) == pytest.approx(3e-6)
    other["variant_hash"] = "0" * 64
    with pytest.raises(ReportRefusal, match="different variants"):
        claims.total([(one, 1e-6), (other, 2e-6)])


def test_an_attribution_must_repeat():
    assert "registers: core is faster" in claims.attribution(
        run("faster"), run("faster"), "registers"
    )
    for second in (run("slower", 1.2), run("not established", 1.0)):
        with pytest.raises(ReportRefusal, match="not established"):
            claims.attribution(run("faster"), second, "registers")
    with pytest.raises(ValueError, match="different arms"):
        claims.attribution(run("faster"), run("faster", a="mega"), "registers")


def test_a_stream_is_no_bound():
    bound = claims.Bound(10**9, 1000.0, "weights are read once: audit", "vendor's bus limit")
    assert bound.seconds == pytest.approx(1e-3)
    for proof in ("", "best of run", "the stream probe"):
        with pytest.raises(ReportRefusal):
            claims.Bound(10**9, 570.0, "audit", proof)
    with pytest.raises(ReportRefusal, match="both"):
        claims.Bound(10**9, 570.0, "", "bus limit")


def test_the_page_leaves_the_apple_column_empty_and_says_so():
    page = "\n".join(report.text([pair()]))
    assert "There is no Apple receipt" in page
    row = next(line for line in page.splitlines() if line.startswith("| layer (smoke) | core"))
    apple, nvidia, cpu = [cell.strip() for cell in row.split("|")[3:6]]
    assert (apple, cpu) == ("", "") and float(nvidia) == pytest.approx(8, rel=0.01)


def test_the_page_shows_an_apple_receipt_in_its_own_column():
    found = pair()
    found["backend"], found["label"] = "mps", "Apple GPU"
    page = "\n".join(report.text([found]))
    assert "no Apple receipt" not in page
    row = next(line for line in page.splitlines() if line.startswith("| layer (smoke) | core"))
    assert float(row.split("|")[3]) == pytest.approx(8, rel=0.01)


def test_systems_have_figures_of_their_own(tmp_path):
    one, other = pair(), pair()
    other["device"]["os_build"] = "24A335"
    drawn = figures.draw([one, other], tmp_path)
    assert len(set(drawn)) == 2 and all(path.is_file() for path in drawn)


def test_rates_are_of_one_fixed_kernel_on_a_gpu():
    arms = {
        "copy": {"payload_bytes": 10**6, "launch": "aten copy_", "samples_s": steady(1e-6)},
        "best": {
            "payload_bytes": 10**6,
            "launch": "blocked",
            "selection": "best of sweep",
            "samples_s": steady(1e-7),
        },
    }
    found = receipt(**copy.deepcopy(arms))
    rows = report.rates([found])
    assert len(rows) == 3 and "| copy | aten copy_ | 1000 | rate |" in rows[2]
    assert report.rates([{**found, "backend": "cpu-native"}]) == ["None."]


def test_the_page_prints_no_time_of_an_emulation():
    emulated = receipt("cpu-emulation", core={**OURS, "emulated": True})
    assert report.times([emulated]) == ["None."]
    refused = pair(pack="b" * 64)
    assert "refused: packed operands differ" in "\n".join(report.comparisons([refused]))
