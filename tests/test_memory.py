"""Peak memory of forward and backward: the command's comparison at a reduced shape."""

import sys

import pytest

from benchmarks.commands.memory import TARGET, Shape, compare

pytest.importorskip("transformers", reason="transformers is a test extra")


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("part", ["layer", pytest.param("rule", marks=pytest.mark.long)])
def test_K1_under_a_quarter_of_autodiff_through_the_fallback(part):
    row = compare(part, Shape(tokens=2048, hidden=256, k_heads=4, v_heads=4, head_dim=128))
    assert row.verified, f"gradients differ by {row.difference}"
    assert row.ratio < TARGET, row.peaks
