"""Projections of a single row, seen in the conv state (the projected q, k, v) and the output."""

import pytest
import torch
from cases import Shape, make_hidden, make_layer, strided_view
from native import one_thread

from torch_mps_fusion.tolerances import error, tolerance

DTYPES = (torch.float32, torch.bfloat16)
HIDDEN = (8, 72, 256)  # less than a vector, not whole vectors, and enough work for two threads
pytestmark = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def run(layer, x):
    return torch.ops.mps_fusion.gdn_layer(x, *layer.weights, **layer.keywords, variant="native")


def make(hidden, dtype, **keywords):
    shape = Shape(hidden, num_k_heads=8, num_v_heads=16, head_k_dim=64, head_v_dim=64)
    return make_layer(shape, dtype, **keywords), make_hidden(shape, 1, 1, dtype)


@pytest.mark.parametrize("hidden", HIDDEN)
def test_rows_are_the_exact_products_rounded_once(hidden, dtype):
    layer, x = make(hidden, dtype)
    _, conv_state, _ = run(layer, x)
    expected = (layer.in_proj[0].double() @ x.double().flatten()).to(dtype)
    assert error(conv_state[0, :, -1], expected) <= tolerance("conv_state", dtype).rms


@pytest.mark.parametrize("hidden", HIDDEN)
def test_rows_do_not_depend_on_their_place_or_strides(hidden, dtype):
    """One joined tensor, four, and views of wider ones: the same bits."""
    layer, x = make(hidden, dtype)
    expected = run(layer, x)
    joined, _ = make(hidden, dtype, joined=True)
    views, _ = make(hidden, dtype)
    for weights in (views.in_proj, views.out_proj):
        weights[:] = [torch.cat([w, w], 1)[:, : w.shape[1]] for w in weights]
    for other in (joined, views):
        assert all(map(torch.equal, run(other, strided_view(x)), expected))


def test_rows_by_one_thread(dtype):
    layer, x = make(256, dtype)
    expected = run(layer, x)
    with one_thread():
        assert all(map(torch.equal, run(layer, x), expected))


def test_rows_of_transposed_weights(dtype):
    layer, x = make(72, dtype)
    expected, *_ = run(layer, x)
    layer.in_proj = [w.t().contiguous().t() for w in layer.in_proj]
    found, *_ = run(layer, x)
    assert error(found, expected) <= tolerance("output", dtype).rms
