"""Offsets, strides and expanded tensors: handled, or refused by name; neighbours stay untouched."""

import pytest
import torch
from cases import (
    DTYPES,
    SMALL,
    guarded,
    guards_intact,
    make_hidden,
    make_layer,
    make_states,
    offset_view,
    strided_view,
)
from compare import assert_close, assert_equal, reference_layer, run_layer, run_layer_in_place

TENSORS = ("hidden", "in_proj", "conv_weight", "A_log", "dt_bias", "norm_weight", "out_proj",
           "input_norm_weight", "conv_state")  # fmt: skip


def changed(layer, hidden, states, name, view):
    """The same call with one argument as a view of the given kind."""
    if name == "hidden":
        return layer, view(hidden), states
    if name == "conv_state":
        return layer, hidden, (view(states[0]), states[1])
    value = getattr(layer, name)
    replaced = [view(t) for t in value] if isinstance(value, list) else view(value)
    fields = {**layer.__dict__, name: replaced}
    return type(layer)(**fields), hidden, states


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("view", (offset_view, strided_view))
@pytest.mark.parametrize("name", TENSORS)
def test_A1_every_argument_as_a_view(name, view, dtype, variant):
    layer = make_layer(SMALL, dtype, input_norm=True)
    hidden, states = make_hidden(SMALL, 2, 6, dtype), make_states(SMALL, 2, dtype)
    plain = run_layer(layer, hidden, states, variant=variant)
    layer, hidden, states = changed(layer, hidden, states, name, view)
    actual = run_layer(layer, hidden, states, variant=variant)
    if name in ("in_proj", "out_proj"):  # aten may take another product, with other sums
        assert_close(actual, plain, dtype)
    else:
        assert_equal(actual, plain)


@pytest.mark.parametrize("tokens", (1, 6, 40))
def test_A2_states_sliced_out_of_a_pool(tokens, variant):
    layer = make_layer(SMALL, torch.bfloat16)
    hidden = make_hidden(SMALL, 2, tokens, torch.bfloat16)
    conv, recurrent = make_states(SMALL, 2, torch.bfloat16)
    conv_pool = torch.full((2, 3, *conv.shape[1:]), 9.0).bfloat16()
    recurrent_pool = torch.full((2, 3, *recurrent.shape[1:]), 9.0).transpose(-1, -2)
    conv_pool[:, 1], recurrent_pool[:, 1] = conv, recurrent
    expected = run_layer(layer, hidden, (conv, recurrent), variant=variant)
    output = run_layer_in_place(
        layer, hidden, (conv_pool[:, 1], recurrent_pool[:, 1]), variant=variant
    )
    assert_equal((output, conv_pool[:, 1], recurrent_pool[:, 1]), expected)
    for pool in (conv_pool, recurrent_pool):
        assert (pool[:, ::2] == 9.0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", (1, 5, 70))
@pytest.mark.parametrize("dk_contiguous", (True, False))
def test_A3_guard_words_around_states(dk_contiguous, tokens, dtype, variant):
    layer = make_layer(SMALL, dtype)
    hidden = make_hidden(SMALL, 2, tokens, dtype)
    pairs = [guarded(s) for s in make_states(SMALL, 2, dtype, dk_contiguous=dk_contiguous)]
    views = tuple(view for view, _ in pairs)
    expected = reference_layer(layer, hidden, views)
    output = run_layer_in_place(layer, hidden, views, variant=variant)
    assert_close((output, *views), expected, dtype)
    assert all(guards_intact(view, buffer) for view, buffer in pairs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", (1, 7, 33))
def test_A4_convolution_of_slices_and_transposes(tokens, dtype, variant):
    """x as transpose(1, 2) of a projection and as a channel slice of it."""
    weight = torch.randn(48, 4).to(dtype)
    projection = torch.randn(2, tokens, 100).to(dtype)
    x = projection[..., 20:68].transpose(1, 2)
    call = torch.ops.mps_fusion.causal_conv1d
    actual = call(x, weight, activation="silu", variant=variant)
    expected = call(x.contiguous(), weight, activation="silu", variant=variant)
    assert all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))


def test_expanded_inputs(variant):
    layer = make_layer(SMALL, torch.float32)
    hidden = make_hidden(SMALL, 1, 5, torch.float32).expand(3, 5, -1)
    conv, recurrent = make_states(SMALL, 1, torch.float32)
    states = (conv.expand(3, -1, -1), recurrent.expand(3, -1, -1, -1))
    plain = run_layer(layer, hidden.contiguous(), tuple(s.clone() for s in states), variant=variant)
    assert_equal(run_layer(layer, hidden, states, variant=variant), plain)


def test_expanded_state_is_refused_in_place(variant):
    layer, hidden = make_layer(SMALL, torch.float32), make_hidden(SMALL, 3, 5, torch.float32)
    conv, recurrent = make_states(SMALL, 1, torch.float32)
    with pytest.raises(ValueError, match="conv_state: got strides .* share memory"):
        run_layer_in_place(
            layer, hidden, (conv.expand(3, -1, -1), recurrent.repeat(3, 1, 1, 1)), variant=variant
        )
    with pytest.raises(ValueError, match="recurrent_state: got strides .* share memory"):
        run_layer_in_place(
            layer, hidden, (conv.repeat(3, 1, 1), recurrent.expand(3, -1, -1, -1)), variant=variant
        )


def test_K2_both_states_as_views_of_one_buffer(variant):
    layer, hidden = make_layer(SMALL, torch.float32), make_hidden(SMALL, 2, 5, torch.float32)
    conv, recurrent = make_states(SMALL, 2, torch.float32, dk_contiguous=False)
    expected = reference_layer(layer, hidden, (conv, recurrent))
    buffer = torch.cat([conv.flatten(), recurrent.flatten()])
    views = (
        buffer[: conv.numel()].view(conv.shape),
        buffer[conv.numel() :].view(recurrent.shape),
    )
    output = run_layer_in_place(layer, hidden, views, variant=variant)
    assert_close((output, *views), expected, torch.float32)


def test_written_state_that_overlaps_is_refused(variant):
    layer, hidden = make_layer(SMALL, torch.float32), make_hidden(SMALL, 2, 5, torch.float32)
    conv, recurrent = make_states(SMALL, 2, torch.float32, dk_contiguous=False)
    buffer = torch.zeros(conv.numel() + recurrent.numel())
    views = (buffer[: conv.numel()].view(conv.shape),
             buffer[8 : 8 + recurrent.numel()].view(recurrent.shape))  # fmt: skip
    with pytest.raises(ValueError, match="conv_state: got memory shared with recurrent_state"):
        run_layer_in_place(layer, hidden, views, variant=variant)
    assert (buffer == 0).all()


def test_outputs_do_not_alias(variant):
    layer, hidden = make_layer(SMALL, torch.float32), make_hidden(SMALL, 2, 3, torch.float32)
    states = make_states(SMALL, 2, torch.float32)
    results = run_layer(layer, hidden, states, variant=variant)
    storages = [t.untyped_storage().data_ptr() for t in (*results, hidden, *states)]
    assert len(set(storages)) == len(storages)


@pytest.mark.parametrize("tokens", (1, 5, 70))
def test_rule_arguments_as_views(tokens, variant):
    """q, k, v as column slices of one row, last dim strided too; g and beta transposed."""
    call = torch.ops.mps_fusion.gated_delta_rule
    rows = torch.randn(2, tokens, 2 * 32 + 2 * 32 + 4 * 32)
    q, k, v = (
        part.unflatten(-1, (-1, 32)) for part in rows.split([2 * 32, 2 * 32, 4 * 32], dim=-1)
    )
    g = -torch.rand(4, 2, tokens).permute(1, 2, 0)
    beta = torch.rand(2, 4, tokens).transpose(1, 2)
    _, state = make_states(SMALL, 2, torch.float32)
    keywords = {"head_map": "block", "qk_l2norm": True, "variant": variant}
    plain = call(*(t.contiguous() for t in (q, k, v, g, beta)), state, **keywords)
    for args in ((q, k, v, g, beta), tuple(strided_view(t) for t in (q, k, v, g, beta))):
        actual = call(*args, state, **keywords)
        assert all(torch.equal(a, p) for a, p in zip(actual, plain, strict=True))
