"""What a Mac shows: the doctor, the device suite under Metal's validation, one receipt.

python tools/mac_receipt.py [OUT.txt] (./dev mac). Exit status 1 if a test failed or none ran on the
device.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
TIME_LIMIT = 3600
# Metal checks every call and every access of a shader.
VALIDATION = {"MTL_DEBUG_LAYER": "1", "MTL_SHADER_VALIDATION": "1"}


@dataclass
class Outcome:
    """Of a pytest run: tests on the device by outcome, and what failed."""

    passed: int
    failed: list[str]
    skipped: int
    seconds: float


def command(*arguments: str) -> str:
    """The output of a command, or why there is none."""
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"({error})"
    return (done.stdout or done.stderr).strip()


def about() -> list[tuple[str, str]]:
    import torch

    return [
        ("date", time.strftime("%Y-%m-%d %H:%M:%S %Z")),
        ("commit", command("git", "describe", "--always", "--dirty")),
        ("chip", command("sysctl", "-n", "machdep.cpu.brand_string")),
        ("macOS", platform.mac_ver()[0] or f"none: {platform.platform()}"),
        ("python", platform.python_version()),
        ("torch", f"{torch.__version__}, mps available: {torch.backends.mps.is_available()}"),
        ("validation", " ".join(f"{k}={v}" for k, v in VALIDATION.items())),
    ]


def read(report: Path, seconds: float) -> Outcome:
    """Counts the tests on "mps" of a junit report; those on other devices only if they failed."""
    passed, failed, skipped = 0, [], 0
    for case in xml.parse(report).getroot().iter("testcase"):
        name = case.get("name", "")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif "mps" in name:
            skipped += case.find("skipped") is not None
            passed += case.find("skipped") is None
    return Outcome(passed, failed, skipped, seconds)


def suite() -> Outcome:
    """The device suite, on "mps"."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        begin = time.monotonic()
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-k", "mps", f"--junitxml={report}"),
                str(ROOT / "tests" / "test_shader_devices.py"),
            ],
            cwd=ROOT,
            env={**os.environ, **VALIDATION},
            timeout=TIME_LIMIT,
        )
        if not report.exists():
            return Outcome(0, ["pytest wrote no report"], 0, time.monotonic() - begin)
        return read(report, time.monotonic() - begin)


def receipt(facts: list[tuple[str, str]], doctor: str, outcome: Outcome) -> str:
    lines = ["torch_mps_fusion on a Mac", ""]
    lines += [f"{name:<12}{value}" for name, value in facts]
    lines += ["", doctor, "", "Tests on the device"]
    lines.append(
        f"  {outcome.passed} passed, {len(outcome.failed)} failed, {outcome.skipped} skipped, "
        f"{outcome.seconds:.0f} s"
    )
    lines += [f"  failed: {name}" for name in outcome.failed]
    return "\n".join(lines) + "\n"


def main() -> int:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "mac-receipt.txt")
    doctor = command(sys.executable, "-m", "torch_mps_fusion", "doctor")
    outcome = suite()
    text = receipt(about(), doctor, outcome)
    out.write_text(text, encoding="utf-8")
    print(text)
    print(f"written to {out}")
    return 0 if outcome.passed and not outcome.failed else 1


if __name__ == "__main__":
    sys.exit(main())
