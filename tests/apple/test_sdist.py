"""The sdist builds, installs and runs outside the repository: all that a Mac's build needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import clang
import needs
import pytest

TIME_LIMIT = 900
SCRIPT = """
import sys, torch, torch_mps_fusion
assert torch_mps_fusion.__file__.startswith(sys.argv[1]), torch_mps_fusion.__file__
assert "kernel" in torch.ops.mps_fusion._shader_text("core")
x, weight = torch.randn(2, 64, 9), torch.randn(64, 4)
y, _ = torch.ops.mps_fusion.causal_conv1d(x, weight)
padded = torch.nn.functional.pad(x, (3, 0))
torch.testing.assert_close(y, torch.nn.functional.conv1d(padded, weight[:, None], groups=64))
"""


def run(*arguments: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, arguments)),
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist of the tracked files, unpacked."""
    needs.asked()
    tree = tmp_path_factory.mktemp("tree")
    listed = run("git", "ls-files", cwd=clang.ROOT).splitlines()
    for name in filter(lambda n: (clang.ROOT / n).is_file(), listed):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(clang.ROOT / name, tree / name)
    out = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "setup.py", "-q", "sdist", "--dist-dir", out, cwd=tree)
    (archive,) = out.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(out, filter="data")
    (folder,) = (p for p in out.iterdir() if p.is_dir())
    return folder


def test_it_has_what_a_build_on_darwin_reads(unpacked: Path) -> None:
    for folder, pattern in (("csrc", "*.*"), ("shaders", "*.metal"), ("shaders", "*.h")):
        for file in (clang.ROOT / folder).rglob(pattern):
            assert (unpacked / file.relative_to(clang.ROOT)).is_file(), file
    assert (unpacked / "tools" / "embed_shaders.py").is_file()
    assert not (unpacked / "build").exists()  # generated, never shipped


def build_options(tree: Path) -> tuple[Path, dict[str, str]]:
    """The Python to build a tree with, and the environment.

    With ccache the build is the real one and finds the objects of ./dev, which names everything
    relative to its folder as here, its environment in .venv too. Without, it only has to work.
    """
    python = Path(sys.executable)
    if not shutil.which("ccache"):
        return python, {"TMF_OPTIMIZE": "-O0", "TMF_JOIN": "1"}
    (tree / ".venv").symlink_to(sys.prefix)
    found = {"CCACHE_BASEDIR": str(tree), "CCACHE_NOHASHDIR": "1", "CCACHE_DEPEND": "1"}
    return tree / ".venv" / "bin" / python.name, found


def test_it_builds_and_runs_elsewhere(unpacked: Path, tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    python, environment = build_options(unpacked)
    run(
        *(python, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps"),
        *("--target", site, unpacked),
        cwd=elsewhere,
        MAX_JOBS=str(clang.JOBS),
        PATH=f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        **environment,
    )
    run(sys.executable, "-c", SCRIPT, site, cwd=elsewhere, PYTHONPATH=str(site))
