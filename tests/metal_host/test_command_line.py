"""python -m torch_mps_fusion.metal_host: output, exit status, and errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from samples import SHADERS

from torch_mps_fusion.metal_host import __main__ as command
from torch_mps_fusion.metal_host import cuda

GOOD = str(SHADERS / "rmsnorm.metal")
BAD = """#include <metal_stdlib>
using namespace metal;
kernel void k(device float* x [[buffer(0)]], threadgroup uint* t [[threadgroup(1)]],
              uint i [[thread_position_in_grid]]) {
  threadgroup half4 tile[3][5];
  float* p = 0;
  tile[0][i] = half4(x[i]);
  t[i] = p == 0;
}
"""


@pytest.fixture
def bad(tmp_path: Path) -> str:
    path = tmp_path / "bad.metal"
    path.write_text(BAD)
    return str(path)


def test_check_of_a_good_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["check", GOOD]) == 0
    said = capsys.readouterr().out
    for line in (
        f"{GOOD} (MSL 3.1)",
        "  function constant 0  bool has_residual",
        "  kernel rmsnorm_f32 = rmsnorm<float, 8>",
        "    buffer(3)  constant uint& n",
        "    thread_index_in_simdgroup  uint lane",
        "    threadgroup memory 32 bytes: part 32",
        "  no findings",
    ):
        assert line in said.split("\n"), said


def test_check_of_a_bad_file(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["check", bad, GOOD]) == 1
    said = capsys.readouterr().out
    assert f"{bad}:3: contraction: " in said
    assert f"{bad}:6: address-space: " in said
    assert "    threadgroup(1)  threadgroup uint* t" in said.split("\n")
    assert "    threadgroup memory 120 bytes: tile 120" in said.split("\n")
    assert "  2 findings" in said
    assert "rmsnorm_bf16" in said, "the files after a bad one are looked at too"


def test_check_with_a_level(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(SHADERS / "last_arriver.metal")
    assert command.main(["check", path]) == 0
    assert command.main(["check", "--msl", "3.1", path]) == 1
    assert "msl-level: coherent(...) needs MSL 3.2, declared 3.1" in capsys.readouterr().out


def test_check_of_a_file_that_does_not_compile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "k.metal"
    path.write_text(BAD.replace("p == 0", "nonsense"))
    assert command.main(["check", str(path)]) == 1
    said = capsys.readouterr().out
    assert "does not compile" in said and "k.metal:8" in said and "nonsense" in said
    assert "zig: " not in said
    path.write_text("")
    assert command.main(["check", str(path)]) == 0
    assert "  no kernels\n" in capsys.readouterr().out


def test_check_of_whole_struct_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.metal"
    path.write_text(
        "#include <metal_stdlib>\n#pragma METAL fp contract(off)\nusing namespace metal;\n"
        "struct P { uint a, b; };\n"
        "kernel void k(device P* x [[buffer(0)]]) { P p = x[0]; x[1] = p; }\n"
    )
    assert command.main(["check", str(path)]) == 1
    assert command.main(["check", "--no-address-spaces", str(path)]) == 0
    assert "no findings" in capsys.readouterr().out


def test_mutants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(SHADERS / "last_arriver.metal")
    assert command.main(["mutants", path, "--kind", "drop-fence", "--write", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.strip().split("\n")
    assert lines[-1] == "2 mutants"
    assert all(line.startswith("drop-fence@last_arriver.metal:") for line in lines[:-1])
    written = sorted(tmp_path.glob("*/last_arriver.metal"))
    assert len(written) == 2
    assert all(p.read_text().count("atomic_thread_fence") == 1 for p in written)


def test_ptx(capsys: pytest.CaptureFixture[str]) -> None:
    for constant in ("has_residual=true", "0=true"):
        assert command.main(["ptx", GOOD, "--constant", constant]) == 0
        assert ".entry rmsnorm_f32(" in capsys.readouterr().out


@pytest.mark.skipif(cuda.ptxas() is None, reason="ptxas is not installed")
def test_cubin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "k.cubin"
    path = str(SHADERS / "matmul.metal")
    assert command.main(["ptx", path, "--cubin", str(out)]) == 0
    assert out.read_bytes()[:4] == b"\x7fELF"
    assert "matmul_half: " in capsys.readouterr().out


def test_ptx_without_its_constant(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["ptx", GOOD]) == 1
    assert "has_residual (0, bool) has no value" in capsys.readouterr().err


def test_bench(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["bench"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.split("\n")]
    assert ["add_one", "1000", "32", "plain", "1"] in [row[:5] for row in rows], rows


ERRORS = {
    "no command": ([], "the following arguments are required: command"),
    "no file": (["check"], "the following arguments are required: FILE"),
    "missing file": (["check", "nowhere.metal"], "nowhere.metal: there is no such file"),
    "folder": (["check", str(SHADERS)], "it is a folder"),
    "not text": (["check", sys.executable], "cannot be read"),
    "level": (["check", "--msl", "5", GOOD], "msl: got '5', accepted: 2.3"),
    "kind": (["mutants", GOOD, "--kind", "all"], "invalid choice: 'all'"),
    "constant": (["ptx", GOOD, "--constant", "has_residual"], "without a value"),
    "constant's value": (["ptx", GOOD, "--constant", "a=b"], "got 'a=b', accepted: NAME=true"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_wrong_commands(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = ERRORS[name]
    with pytest.raises(SystemExit) as stopped:
        command.main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_reader_that_stops_early() -> None:
    run = f"{sys.executable} -m torch_mps_fusion.metal_host ptx {GOOD} --constant 0=1 | head -1"
    done = subprocess.run(run, shell=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "//\n" and done.stderr == ""


def test_as_a_module() -> None:
    run = [sys.executable, "-m", "torch_mps_fusion.metal_host", "mutants", GOOD]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.endswith("2 mutants\n"), done.stderr
