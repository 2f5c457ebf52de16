"""transformers' own common model tests: what passes as transformers is passes with fused layers.

They come from the sdist of the installed transformers: from TMF_TRANSFORMERS_TESTS, its folder
``tests``, else downloaded by pip once. ``transformers_suite.py`` runs them, each time in a process
of its own.
"""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import downloads
import pytest
import transformers

SUITE = Path(__file__).with_name("transformers_suite.py")
TIME_LIMIT = 900
# What fails as transformers is; what needs another device or package, or has nothing to look at in
# these models, skips itself. Nothing else is left out.
DOES_NOT_APPLY = {
    "test_attention_outputs": "wants attentions of every layer; a GDN layer has none",
    "test_generation_tester_mixin_inheritance": "the generation tests are not in the sdist",
    "test_model_rope_scaling_frequencies": "in 5.17 it gives Qwen3.5 one position a token, not 3",
}


def unpacked(version: str) -> Path:
    """The tests of an sdist. OSError if pip cannot get it."""
    folder = downloads.cache_folder("transformers") / version
    with downloads.locked(folder):
        if not (folder / ".ready").exists():
            options = ("--no-binary", "transformers", "--no-build-isolation")
            requirement = f"transformers=={version}"
            file = downloads.by_pip(requirement, folder, "*.tar.gz", *options)
            with tarfile.open(file) as archive:
                chosen = [m for m in archive if Path(m.name).parts[1:2] == ("tests",)]
                archive.extractall(folder, chosen, filter="data")
            (folder / ".ready").touch()
    (tests,) = folder.glob("*/tests")
    return tests


@pytest.fixture(scope="module")
def tests_folder() -> Path:
    pytest.importorskip("parameterized", reason="transformers' tests need parameterized")
    if asked := os.environ.get("TMF_TRANSFORMERS_TESTS"):
        return Path(asked)
    try:
        return unpacked(transformers.__version__)
    except OSError as error:
        pytest.skip(f"no sdist of transformers: {error}")


def outcomes(*arguments: str | Path) -> dict[str, dict]:
    """The suite's report, by the name of the test."""
    result = subprocess.run(
        [sys.executable, SUITE, *arguments],
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        # Of models this small, several threads mostly wait for each other.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout)


def those(found: dict[str, dict], outcome: str) -> dict[str, str]:
    return {name: t.get("reason", "") for name, t in found.items() if t["outcome"] == outcome}


@pytest.mark.parametrize(
    "family", ["qwen3_5", "qwen3_next", pytest.param("qwen3_5_moe", marks=pytest.mark.long)]
)
def test_what_passes_as_transformers_is_passes_fused(family, tests_folder):
    original = outcomes(tests_folder, family)
    fused = outcomes(tests_folder, family, "--fused")
    assert len(those(original, "passed")) >= 100
    assert those(original, "failed").keys() <= DOES_NOT_APPLY.keys(), those(original, "failed")
    for outcome in ("failed", "passed", "skipped"):
        assert those(fused, outcome).keys() == those(original, outcome).keys(), those(
            fused, outcome
        )
    # Every call of a GDN layer, in every test, was an op's: no layer unfused, no fallback.
    calls = {name: t["layers"].get("transformers", 0) for name, t in original.items()}
    ran = {name: t["layers"] for name, t in fused.items()}
    others = {n: c for n, c in ran.items() if c.keys() - {"fused models", "ops"}}
    assert not others
    assert {name: counts.get("ops", 0) for name, counts in ran.items()} == calls
    assert sum(calls.values()) > 400
