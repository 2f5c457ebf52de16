"""Peak memory of forward and backward: the command's comparison, the rule at a reduced shape."""

import sys

import pytest

from benchmarks.commands.memory import TARGET, Shape, compare

pytest.importorskip("transformers", reason="transformers is a test extra")


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(
    ("part", "shape"),
    [
        ("rule", Shape(hidden=256, k_heads=4, v_heads=4)),
        pytest.param("layer", Shape(), marks=pytest.mark.long),
    ],
    ids=["rule", "layer"],
)
def test_K1_under_a_quarter_of_autodiff_through_the_fallback(part, shape):
    row = compare(part, shape)
    assert row.verified, f"gradients differ by {row.difference}"
    assert row.ratio < TARGET, row.peaks
