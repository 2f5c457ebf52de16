"""The receipt of a run on a Mac: what counts as passed there."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import mac_receipt  # noqa: E402

REPORT = """<testsuites><testsuite>
<testcase name="test_a[mps-packed]"/>
<testcase name="test_a[cpu-packed]"/>
<testcase name="test_b[mps]"><skipped message="no device"/></testcase>
<testcase name="test_c[mps]"><failure message="other numbers"/></testcase>
<testcase name="test_d[cpu]"><error message="broken"/></testcase>
</testsuite></testsuites>"""


def test_only_tests_on_the_device_count_as_passed_and_every_failure_counts(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    outcome = mac_receipt.read(report, 2.0)
    assert outcome == mac_receipt.Outcome(1, ["test_c[mps]", "test_d[cpu]"], 1, 2.0)
    text = mac_receipt.receipt([("chip", "a chip")], "the doctor's text", outcome)
    assert "1 passed, 2 failed, 1 skipped" in text
    assert "failed: test_c[mps]" in text and "the doctor's text" in text


def test_facts_name_what_is_missing() -> None:
    facts = dict(mac_receipt.about())
    assert facts["torch"] and facts["python"] and "MTL_SHADER_VALIDATION=1" in facts["validation"]
    assert mac_receipt.command("/no/such/program").startswith("(")
