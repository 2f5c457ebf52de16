"""Corners of the arithmetic where other implementations were wrong."""

import pytest
import torch
from cases import DTYPES, SMALL, make_hidden, make_layer, make_states
from compare import assert_close, reference_layer, run_layer

from torch_mps_fusion import reference
from torch_mps_fusion.tolerances import error, tolerance

rule = torch.ops.mps_fusion.gated_delta_rule


def rule_inputs(tokens, dtype=torch.float32, heads=(2, 4), batch=1, seed=0, dim=32):
    generator = torch.Generator().manual_seed(seed)

    def normal(*size):
        return torch.randn(*size, generator=generator).to(dtype)

    q, k = normal(batch, tokens, heads[0], dim), normal(batch, tokens, heads[0], dim)
    v = normal(batch, tokens, heads[1], dim)
    g = -torch.rand(batch, tokens, heads[1], generator=generator)
    beta = torch.rand(batch, tokens, heads[1], generator=generator).to(dtype)
    return q, k, v, g, beta


def check_rule(inputs, state, variant, dtype=torch.float32, **keywords):
    keywords = {"head_map": "block", "qk_l2norm": True, **keywords}
    actual = rule(*inputs, state, variant=variant, **keywords)
    expected = reference.gated_delta_rule(*inputs, state, rounding=dtype, **keywords)
    for name, a, e in zip(("output", "recurrent_state"), actual, expected, strict=True):
        assert error(a, e) <= tolerance(name, dtype).rms, name
    return actual


@pytest.mark.parametrize("tokens", (1, 2, 7, 8, 9, 63, 64, 65, 75, 130))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rule_alone(dtype, tokens, variant):
    _, state = make_states(SMALL, 1, dtype)
    check_rule(rule_inputs(tokens, dtype), state, variant, dtype)
    q, k, v, g, beta = rule_inputs(tokens, dtype)
    k = reference.l2_normalised(k.double()).to(dtype)  # |k|^2 beta > 2 would make the rule diverge
    check_rule((q, k, v, g, beta), None, variant, dtype, qk_l2norm=False, scale=0.01)


@pytest.mark.parametrize("tokens", (64, 100))
def test_G1_heavy_decay_stays_finite(tokens, variant):
    q, k, v, _, beta = rule_inputs(tokens)
    _, state = make_states(SMALL, 1, torch.float32)
    check_rule((q, k, v, torch.full((1, tokens, 4), -30.0), beta), state, variant)


def test_G2_random_mix_of_decays(variant):
    q, k, v, g, beta = rule_inputs(200)
    choice = torch.rand(g.shape, generator=torch.Generator().manual_seed(3))
    g = torch.where(choice < 0.3, -100.0, torch.where(choice < 0.6, -1e-4, g))
    _, state = make_states(SMALL, 1, torch.float32)
    check_rule((q, k, v, g, beta), state, variant)


@pytest.mark.parametrize("tokens", (1, 70))
def test_G4_eps_is_added_to_the_sum(tokens, variant):
    q, k, v, g, beta = rule_inputs(tokens)
    tiny = 1e-3 / q.shape[-1] ** 0.5  # |q|^2 near 1e-6
    _, state = make_states(SMALL, 1, torch.float32)
    check_rule((q * tiny, k * tiny, v, g, beta), state, variant)


@pytest.mark.parametrize("tokens", (1, 70))
def test_zero_queries_and_keys_are_finite(tokens, variant):
    q, k, v, g, beta = rule_inputs(tokens)
    _, state = make_states(SMALL, 1, torch.float32)
    check_rule((torch.zeros_like(q), torch.zeros_like(k), v, g, beta), state.clone(), variant)


@pytest.mark.parametrize("tokens", (64, 200))
def test_equal_keys_do_not_blow_up(tokens, variant):
    """One key for all tokens, no decay, beta 1: the inverse of the chunk form at its worst."""
    q, k, v, _, _ = rule_inputs(tokens)
    k = k[:, :1].expand_as(k)
    one = torch.ones(1, tokens, 4)
    check_rule((q, k, v, torch.zeros(1, tokens, 4), one), None, variant)


def test_G12_slow_decay_is_kept_over_4096_steps(variant):
    tokens = 4096
    q, k, v, _, beta = rule_inputs(tokens, heads=(1, 1))
    g = torch.full((1, tokens, 1), -0.0005)
    state = torch.randn(1, 1, 32, 32)
    check_rule((q, k, v, g, beta * 0), state, variant)


@pytest.mark.parametrize("tokens", (40_000, 70_000))
def test_B3_B9_B10_many_tokens(tokens, variant):
    inputs = rule_inputs(tokens, heads=(1, 1), dim=32)
    whole = rule(*inputs, head_map="block", qk_l2norm=True, variant=variant)
    tail = [t[:, tokens - 300 :] for t in inputs]
    head = [t[:, : tokens - 300] for t in inputs]
    _, state = rule(*head, head_map="block", qk_l2norm=True, variant=variant)
    expected, last = reference.gated_delta_rule(*tail, state, head_map="block", qk_l2norm=True)
    assert error(whole[0][:, tokens - 300 :], expected) <= tolerance("output", torch.float32).rms
    assert error(whole[1], last) <= tolerance("recurrent_state", torch.float32).rms


def test_B5_more_than_65536_channels(variant):
    channels = 65_600
    x, weight = torch.randn(1, channels, 8), torch.randn(channels, 4)
    actual = torch.ops.mps_fusion.causal_conv1d(x, weight, variant=variant)
    expected = reference.causal_conv1d(x, weight, activation=None)
    for a, e in zip(actual, expected, strict=True):
        assert error(a, e) <= tolerance("output", torch.float32).rms


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", (None, "silu", "swish"))
@pytest.mark.parametrize("width", (2, 3, 4))
def test_convolution_alone(width, activation, dtype, variant):
    x, weight = torch.randn(2, 40, 11).to(dtype), torch.randn(40, width).to(dtype)
    for state in (None, torch.randn(2, 40, width + 1).to(dtype)):
        actual = torch.ops.mps_fusion.causal_conv1d(
            x, weight, state, activation=activation, variant=variant
        )
        expected = reference.causal_conv1d(x, weight, state, activation=activation, rounding=dtype)
        assert error(actual[0], expected[0]) <= tolerance("output", dtype).rms
        assert torch.equal(actual[1].double(), expected[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_G11_convolution_of_ones_is_exact(dtype, variant):
    x, weight = torch.ones(1, 8, 6).to(dtype), torch.ones(8, 4).to(dtype)
    out, _ = torch.ops.mps_fusion.causal_conv1d(x, weight, variant=variant)
    expected = torch.tensor([1.0, 2, 3, 4, 4, 4]).expand(1, 8, 6)
    assert torch.equal(out.float(), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_G6_G10_gates_from_minus_50_to_50(dtype, variant):
    """A layer whose decay logits sweep softplus through both of its ends."""
    layer = make_layer(SMALL, dtype)
    layer.dt_bias = torch.tensor([-50.0, -12, 12, 50]).to(dtype)
    hidden, states = make_hidden(SMALL, 1, 12, dtype), make_states(SMALL, 1, dtype)
    assert_close(
        run_layer(layer, hidden, states, variant=variant),
        reference_layer(layer, hidden, states),
        dtype,
    )
