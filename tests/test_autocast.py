"""Autocast: cast by rule, whatever mixture comes in; what must stay float32 does."""

import pytest
import torch
from cases import SMALL, make_hidden, make_layer, make_states, pack_layer
from compiling import counted

from torch_mps_fusion import packing

ops = torch.ops.mps_fusion
F32, BF16 = torch.float32, torch.bfloat16


def autocast(enabled=True):
    return torch.autocast("cpu", dtype=BF16, enabled=enabled)


def cast_layer(layer, dtype):
    """The operands of a layer in ``dtype``, the decays as they are."""
    in_proj, conv, A_log, dt_bias, norm, out_proj = layer.weights
    return ([w.to(dtype) for w in in_proj], conv.to(dtype), A_log, dt_bias, norm.to(dtype),
            [w.to(dtype) for w in out_proj])  # fmt: skip


def assert_equal(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize("hidden_dtype", (F32, BF16, torch.float16), ids=str)
def test_K7_layer(hidden_dtype):
    layer = make_layer(SMALL, F32, input_norm=True)
    hidden = make_hidden(SMALL, 2, 5, hidden_dtype)
    conv, recurrent = make_states(SMALL, 2, F32)
    norm = layer.input_norm_weight
    with autocast():
        found = ops.gdn_layer(hidden, *layer.weights, norm, conv, recurrent, **layer.keywords)
    expected = ops.gdn_layer(
        hidden.to(BF16), *cast_layer(layer, BF16), norm.to(BF16), conv.to(BF16), recurrent,
        **layer.keywords,
    )  # fmt: skip
    assert_equal(found, expected)
    assert found[2].dtype == F32


def test_K7_off_means_off():
    layer, hidden = make_layer(SMALL, F32), make_hidden(SMALL, 2, 5, F32)
    expected = ops.gdn_layer(hidden, *layer.weights, **layer.keywords)
    with autocast(), autocast(enabled=False):
        assert_equal(ops.gdn_layer(hidden, *layer.weights, **layer.keywords), expected)
        with pytest.raises(ValueError, match="got dtype float32; accepted: dtype bfloat16"):
            ops.gdn_layer(hidden.to(BF16), *layer.weights, **layer.keywords)


@pytest.mark.parametrize("state_dtype", (F32, BF16), ids=str)
def test_K7_a_state_in_place_fixes_the_dtype(state_dtype):
    layer, hidden = make_layer(SMALL, F32), make_hidden(SMALL, 2, 5, F32)
    states = make_states(SMALL, 2, state_dtype)
    copies = [s.clone() for s in states]
    with autocast():
        output = ops.gdn_layer_(hidden.to(BF16), *states, *layer.weights, **layer.keywords)
    expected = ops.gdn_layer_(
        hidden.to(BF16).to(state_dtype), *copies, *cast_layer(layer, state_dtype), **layer.keywords
    )
    assert_equal((output, *states), (expected, *copies))


def test_K7_a_recurrent_state_of_another_dtype_is_refused_not_cast():
    layer, hidden = make_layer(SMALL, F32), make_hidden(SMALL, 2, 5, F32)
    conv, recurrent = make_states(SMALL, 2, F32)
    message = "recurrent_state: got dtype bfloat16; accepted: dtype float32"
    with autocast(), pytest.raises(ValueError, match=message):
        ops.gdn_layer_(hidden, conv, recurrent.to(BF16), *layer.weights, **layer.keywords)


def test_K7_rule_of_mixed_dtypes():
    q, k = torch.randn(2, 5, 2, 32), torch.randn(2, 5, 2, 32)
    v = torch.randn(2, 5, 4, 32, dtype=BF16)
    g, beta = -torch.rand(2, 5, 4, dtype=BF16), torch.rand(2, 5, 4, dtype=torch.float16)
    state = torch.randn(2, 4, 32, 32)
    expected = ops.gated_delta_rule(
        q.to(BF16), k.to(BF16), v, g.float(), beta.float(), state, head_map="block"
    )
    with autocast():
        found = ops.gated_delta_rule(q, k, v, g, beta, state, head_map="block")
        output = ops.gated_delta_rule_(q, k, v, g, beta, state, head_map="block")
    assert_equal(found, expected)
    assert_equal((output, state), expected)


def test_K7_convolution():
    x, weight, state = torch.randn(2, 24, 5), torch.randn(24, 4, dtype=BF16), torch.randn(2, 24, 4)
    expected = ops.causal_conv1d(x.to(BF16), weight, state.to(BF16))
    written = state.clone()
    with autocast():
        assert_equal(ops.causal_conv1d(x, weight, state), expected)
        output = ops.causal_conv1d_(x, written, weight)
    copy = state.clone()
    assert_equal((output, written), (ops.causal_conv1d_(x, copy, weight.float()), copy))


@pytest.mark.parametrize("dtype", (F32, BF16), ids=str)
def test_K7_packed_weights_fix_the_dtype(dtype):
    weight = [packing.pack(torch.randn(48, 96).to(dtype), "tiles16-apple")]
    keywords = {"out_features": 48, "weight_format": "tiles16-apple"}
    x = torch.randn(3, 96)
    layer = pack_layer(make_layer(SMALL, dtype))
    hidden = make_hidden(SMALL, 2, 3, F32)
    expected = (
        ops.packed_linear(x.to(dtype), weight, **keywords),
        *ops.gdn_layer(hidden.to(dtype), *layer.weights, **layer.keywords, variant="core"),
    )
    other = torch.float16
    with autocast():
        found = (
            ops.packed_linear(x, weight, **keywords),
            *ops.gdn_layer(hidden, layer.weights[0], layer.conv_weight.to(other),
                           *layer.weights[2:], **layer.keywords, variant="core"),
        )  # fmt: skip
    assert found[0].dtype == dtype
    assert torch.equal(found[0], expected[0])
    assert [t.dtype for t in found] == [t.dtype for t in expected]


def test_K7_gradients_come_back_in_the_dtype_of_the_parameters():
    layer, hidden = make_layer(SMALL, F32), make_hidden(SMALL, 2, 5, F32)
    tensors = [w.requires_grad_() for w in layer.in_proj]
    with autocast():
        output = ops.gdn_layer(hidden.requires_grad_(), *layer.weights, **layer.keywords)[0]
    assert output.dtype == BF16
    output.sum().backward()
    for t in (hidden, *tensors):
        assert t.grad.dtype == F32 and torch.isfinite(t.grad).all()


@pytest.mark.parametrize("name", ("layer", "rule"))
def test_K7_a_backward_pass_inside_the_region_is_the_one_outside(name):
    layer, x = make_layer(SMALL, F32), make_hidden(SMALL, 2, 5, F32).requires_grad_()
    k, v = torch.randn(2, 5, 3, 32), torch.randn(2, 5, 3, 32)
    g, beta = -torch.rand(2, 5, 3), torch.rand(2, 5, 3)

    def run(x):
        if name == "layer":
            return ops.gdn_layer(x, *layer.weights, **layer.keywords)[0]
        return ops.gated_delta_rule(x.unflatten(2, (3, 32)), k, v, g, beta, head_map="block")[0]

    with autocast():
        loss = run(x).float().square().sum()
        inside = torch.autograd.grad(loss, x, retain_graph=True)
    assert_equal(inside, torch.autograd.grad(loss, x))


def test_K7_compiled():
    layer = make_layer(SMALL, F32)

    def function(x, conv, recurrent):
        with autocast():
            y = ops.gdn_layer(torch.nn.functional.linear(x, torch.eye(96)), *layer.weights,
                              **layer.keywords)[0]  # fmt: skip
            return y, ops.gdn_layer_(y, conv, recurrent, *layer.weights, **layer.keywords)

    compiled, counter = counted(function, dynamic=True)
    for tokens in (3, 9):
        hidden, states = make_hidden(SMALL, 2, tokens, F32), make_states(SMALL, 2, F32)
        copies = [s.clone() for s in states]
        assert_equal((*compiled(hidden, *states), *states), (*function(hidden, *copies), *copies))
    assert counter.frame_count == 1
