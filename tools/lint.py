"""Every linter of the project, and the report of file sizes. Exit status 1 if one complains."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHON = ["torch_mps_fusion", "models", "examples", "tests", "benchmarks", "tools", "setup.py"]
SOFT_LIMIT, HARD_LIMIT, TEST_LIMIT = 400, 600, 800
SIZED = (".py", ".cpp", ".h", ".mm", ".metal")
FORMATTED = (".cpp", ".h", ".mm", ".metal")
TEXTS = "tests/metal_host/"  # its shaders are read by line


def tracked(*suffixes: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    return [f for f in listed if f.endswith(suffixes) and (ROOT / f).is_file()]


def run(title: str, command: list[str]) -> bool:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(f"{'ok' if result.returncode == 0 else 'FAILED':6} {title}")
    if result.returncode:
        print(result.stdout + result.stderr)
    return result.returncode == 0


def sizes() -> bool:
    """Prints files over the soft limit; fails on one over the hard limit."""
    good = True
    for file in sorted(tracked(*SIZED)):
        lines = len((ROOT / file).read_text().splitlines())
        limit = TEST_LIMIT if file.startswith("tests/") else HARD_LIMIT
        if lines > limit:
            good = False
        if lines > SOFT_LIMIT:
            print(f"       {lines} lines (limit {limit}) {file}")
    print(f"{'ok' if good else 'FAILED':6} sizes")
    return good


def main() -> int:
    module = [sys.executable, "-m"]
    clang_format = str(Path(sys.executable).parent / "clang-format")
    python = [p for p in PYTHON if (ROOT / p).exists()]
    results = [
        run("ruff check", [*module, "ruff", "check", *python]),
        run("ruff format", [*module, "ruff", "format", "--check", *python]),
        run("mypy", [*module, "mypy"]),
        run(
            "clang-format",
            [
                clang_format,
                "--dry-run",
                "-Werror",
                *(f for f in tracked(*FORMATTED) if not f.startswith(TEXTS)),
            ],
        ),
        sizes(),
    ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
