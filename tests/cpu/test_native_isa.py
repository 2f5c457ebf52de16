"""Each instruction set of the native kernels, chosen by TMF_CPU_ISA in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
LEVELS = ("baseline", "avx2", "avx512")
# These touch every kernel and layout; the rest tests what the levels share.
SELECTED = (
    "(every_length and 65) or all_head_dims or widths or masked or norm or decay or beta or rows"
)


def run(level: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "TMF_CPU_ISA": level, "OMP_NUM_THREADS": "1"},
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )


def isa_of(level: str) -> subprocess.CompletedProcess:
    code = "import torch, torch_mps_fusion.ops; print(torch.ops.mps_fusion._cpu_isa())"
    return run(level, "-c", code)


@pytest.mark.parametrize("level", LEVELS)
def test_level_passes_the_kernel_tests(level):
    if level == torch.ops.mps_fusion._cpu_isa():
        pytest.skip(f"{level} is what this process runs: the other files test it")
    chosen = isa_of(level)
    if "but this processor has" in chosen.stderr:
        pytest.skip(chosen.stderr.strip().splitlines()[-1])
    assert chosen.stdout.strip() == level, chosen.stderr
    files = [str(f) for f in sorted(HERE.glob("test_native_*.py")) if f != Path(__file__)]
    tests = run(level, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", SELECTED, *files)
    assert tests.returncode == 0, tests.stdout[-3000:]


def test_unknown_level_is_refused_by_name():
    result = isa_of("avx1024")
    assert result.returncode != 0
    assert "TMF_CPU_ISA is 'avx1024', but this processor has: " in result.stderr
    assert "baseline" in result.stderr
