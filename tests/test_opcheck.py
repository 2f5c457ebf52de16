"""torch.library.opcheck for every op, dtype and layout: schema, fake kernels, strides, AOT."""

import pytest
import torch
from cases import DTYPES, SMALL, make_hidden, make_layer, make_states, pack_layer, strided_view
from torch.library import opcheck

ops = torch.ops.mps_fusion


@pytest.fixture(autouse=True)
def poisoned_allocations():
    """opcheck compares runs bit by bit, NaN included: allocations stay as they come."""
    yield


def plain(t):
    return t


LAYOUTS = (plain, strided_view)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("given", (True, False))
def test_A7_gdn_layer(given, layout, dtype):
    layer = make_layer(SMALL, dtype, input_norm=True)
    hidden = layout(make_hidden(SMALL, 2, 3, dtype))
    states = make_states(SMALL, 2, dtype, width=5) if given else (None, None)
    mask = torch.tensor([[True, True, True], [False, True, True]])
    args = (hidden, *layer.weights, layer.input_norm_weight, *states, mask)
    opcheck(ops.gdn_layer.default, args, layer.keywords)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dk_contiguous", (True, False))
def test_A7_gdn_layer_in_place(dk_contiguous, dtype):
    layer, hidden = make_layer(SMALL, dtype), make_hidden(SMALL, 2, 3, dtype)
    states = make_states(SMALL, 2, dtype, dk_contiguous=dk_contiguous)
    opcheck(ops.gdn_layer_.default, (hidden, *states, *layer.weights), layer.keywords)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("variant", ("packed", "core"))
def test_A7_packed_weights(variant, dtype):
    layer = pack_layer(make_layer(SMALL, dtype, input_norm=True))
    keywords = {**layer.keywords, "variant": variant}
    hidden, states = strided_view(make_hidden(SMALL, 2, 3, dtype)), make_states(SMALL, 2, dtype)
    norm = layer.input_norm_weight
    opcheck(ops.gdn_layer.default, (hidden, *layer.weights, norm, *states), keywords)
    opcheck(ops.gdn_layer_.default, (hidden, *states, *layer.weights, norm), keywords)


@pytest.mark.parametrize("variant", ("hybrid", "mega"))
def test_A7_slots(variant):
    dtype = torch.bfloat16
    layer = pack_layer(make_layer(SMALL, dtype, input_norm=True))
    keywords = {**layer.keywords, "variant": variant}
    conv, recurrent = make_states(SMALL, 2, dtype)
    recurrent = torch.stack([recurrent.mT] * 2).mT
    slots = torch.stack([conv] * 2), recurrent, torch.zeros(16, dtype=torch.int32)
    hidden = make_hidden(SMALL, 2, 3, dtype)
    norm = layer.input_norm_weight
    opcheck(ops.gdn_layer_slots_.default, (hidden, *slots, *layer.weights, norm), keywords)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_A7_gated_delta_rule(layout, dtype):
    q, k = layout(torch.randn(2, 3, 2, 32).to(dtype)), layout(torch.randn(2, 3, 2, 32).to(dtype))
    v = layout(torch.randn(2, 3, 4, 32).to(dtype))
    g, beta = layout(-torch.rand(2, 3, 4)), layout(torch.rand(2, 3, 4).to(dtype))
    state = torch.randn(2, 4, 32, 32).transpose(-1, -2)
    keywords = {"head_map": "block", "qk_l2norm": True}
    opcheck(ops.gated_delta_rule.default, (q, k, v, g, beta), keywords)
    opcheck(ops.gated_delta_rule.default, (q, k, v, g, beta, state), keywords)
    opcheck(ops.gated_delta_rule_.default, (q, k, v, g, beta, state), keywords)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", (*LAYOUTS, lambda t: t.transpose(1, 2).contiguous().mT))
def test_A7_causal_conv1d(layout, dtype):
    x, weight = layout(torch.randn(2, 24, 5).to(dtype)), torch.randn(24, 4).to(dtype)
    state = torch.randn(2, 24, 3).to(dtype)
    opcheck(ops.causal_conv1d.default, (x, weight), {"activation": "silu"})
    opcheck(ops.causal_conv1d.default, (x, weight, state))
    opcheck(ops.causal_conv1d_.default, (x, state, weight))
