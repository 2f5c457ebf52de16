"""torch.library.opcheck for every op, dtype and layout: schema, fake kernels, strides, AOT."""

import pytest
import torch
from cases import (
    DTYPES,
    SMALL,
    make_hidden,
    make_layer,
    make_states,
    offset_view,
    pack_layer,
    strided_view,
)
from torch.library import opcheck

from torch_mps_fusion import packing

ops = torch.ops.mps_fusion


@pytest.fixture(autouse=True)
def poisoned_allocations():
    """opcheck compares runs bit by bit, NaN included: allocations stay as they come."""
    yield


def plain(t):
    return t


def transposed(t):
    """The same values with the last two dims swapped in memory."""
    return t.mT.contiguous().mT if t.dim() > 1 else t


LAYOUTS = (plain, strided_view, transposed, offset_view)


def layouts_and_dtypes(dtypes=DTYPES):
    """Every pair; those off the diagonals, on which each layout and dtype stands, are long."""
    pairs = []
    for i, layout in enumerate(LAYOUTS):
        for j, dtype in enumerate(dtypes):
            marks = () if (i - j) % len(dtypes) == 0 else pytest.mark.long
            name = f"{layout.__name__}-{dtype}"
            pairs.append(pytest.param(layout, dtype, marks=marks, id=name))
    return pytest.mark.parametrize("layout, dtype", pairs)


@layouts_and_dtypes()
@pytest.mark.parametrize("given", (True, False))
def test_A7_gdn_layer(given, layout, dtype):
    layer = make_layer(SMALL, dtype, input_norm=True)
    hidden = layout(make_hidden(SMALL, 2, 3, dtype))
    states = make_states(SMALL, 2, dtype, width=5) if given else (None, None)
    mask = torch.tensor([[True, True, True], [False, True, True]])
    args = (hidden, *layer.weights, layer.input_norm_weight, *states, mask)
    opcheck(ops.gdn_layer.default, args, layer.keywords)


@layouts_and_dtypes()
@pytest.mark.parametrize("dk_contiguous", (True, False))
def test_A7_gdn_layer_in_place(dk_contiguous, layout, dtype):
    layer, hidden = make_layer(SMALL, dtype), layout(make_hidden(SMALL, 2, 3, dtype))
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


def rule_arguments(dtype):
    q, k = torch.randn(2, 3, 2, 32).to(dtype), torch.randn(2, 3, 2, 32).to(dtype)
    v, beta = torch.randn(2, 3, 4, 32).to(dtype), torch.rand(2, 3, 4).to(dtype)
    return q, k, v, -torch.rand(2, 3, 4), beta, torch.randn(2, 4, 32, 32).transpose(-1, -2)


@layouts_and_dtypes()
def test_A7_gated_delta_rule(layout, dtype):
    *tokens, state = rule_arguments(dtype)
    q, k, v, g, beta = (layout(t) for t in tokens)
    keywords = {"head_map": "block", "qk_l2norm": True}
    opcheck(ops.gated_delta_rule.default, (q, k, v, g, beta), keywords)
    opcheck(ops.gated_delta_rule.default, (q, k, v, g, beta, state), keywords)
    opcheck(ops.gated_delta_rule_.default, (q, k, v, g, beta, state), keywords)


@layouts_and_dtypes()
def test_A7_causal_conv1d(layout, dtype):
    x, weight = layout(torch.randn(2, 24, 5).to(dtype)), torch.randn(24, 4).to(dtype)
    state = torch.randn(2, 24, 3).to(dtype)
    opcheck(ops.causal_conv1d.default, (x, weight), {"activation": "silu"})
    opcheck(ops.causal_conv1d.default, (x, weight, state))
    opcheck(ops.causal_conv1d_.default, (x, state, weight))


# ------------------------------------------------------------------------------------ gradients


def differentiable(tensors):
    return [t.detach().clone().requires_grad_() if t.is_floating_point() else t for t in tensors]


@layouts_and_dtypes()
@pytest.mark.parametrize("given", (True, False))
def test_K8_gdn_layer_with_gradients(given, layout, dtype):
    layer = make_layer(SMALL, dtype, input_norm=True)
    hidden = layout(make_hidden(SMALL, 2, 3, dtype)).requires_grad_()
    states = make_states(SMALL, 2, dtype, width=5) if given else (None, None)
    layer.in_proj, layer.out_proj = differentiable(layer.in_proj), differentiable(layer.out_proj)
    args = (hidden, *layer.weights, layer.input_norm_weight.requires_grad_(), *states)
    opcheck(ops.gdn_layer.default, args, layer.keywords)


@layouts_and_dtypes()
def test_K8_rule_and_convolution_with_gradients(layout, dtype):
    q, k, v, g, beta, state = rule_arguments(dtype)
    tensors = [layout(t).requires_grad_() for t in (q, k, v, g, beta)]
    keywords = {"head_map": "tiled", "qk_l2norm": True}
    opcheck(ops.gated_delta_rule.default, (*tensors, state.requires_grad_()), keywords)
    x, weight = layout(torch.randn(2, 24, 5).to(dtype)), torch.randn(24, 4).to(dtype)
    opcheck(ops.causal_conv1d.default, (x.requires_grad_(), weight.requires_grad_()),
            {"activation": "silu"})  # fmt: skip


@layouts_and_dtypes((*DTYPES, torch.float64))
def test_A7_backward_ops(layout, dtype):
    q, k, v, g, beta, state = rule_arguments(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    g, state = g.to(wide), state.to(wide)
    tensors = [layout(t) for t in (q, k, v, g, beta)]
    rule = ops._gated_delta_rule_backward.default
    opcheck(rule, (layout(v), None, *tensors), {"head_map": "block"})
    opcheck(rule, (None, state, *tensors, state), {"head_map": "tiled", "qk_l2norm": True})
    x, weight = layout(torch.randn(2, 24, 5).to(dtype)), torch.randn(24, 4).to(dtype)
    opcheck(ops._causal_conv1d_backward.default, (x, None, x, weight))

    layer = make_layer(SMALL, dtype, input_norm=True)
    hidden = layout(make_hidden(SMALL, 2, 3, dtype))
    needed = [True, False, True, True, True, False, True, True, True, True, True, True, True]
    args = (hidden, None, None, needed, hidden, *layer.weights, layer.input_norm_weight)
    opcheck(ops._gdn_layer_backward.default, args, layer.keywords)


# ------------------------------------------------------------------------------------- linears


@layouts_and_dtypes()
def test_A7_packed_linear(layout, dtype):
    weight = [packing.pack(torch.randn(40, 64).to(dtype), "tiles16-apple")]
    keywords = {"out_features": 40, "weight_format": "tiles16-apple"}
    for size in [(64,), (2, 3, 64), (40, 64)]:
        opcheck(ops.packed_linear.default, (layout(torch.randn(size).to(dtype)), weight), keywords)
