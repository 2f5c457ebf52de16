"""The functions that carry other packages' names: their order, defaults, values, refusals."""

import inspect

import pytest
import torch
from cases import DTYPES

from torch_mps_fusion import ops, reference
from torch_mps_fusion.tolerances import error, tolerance


def rule_inputs(tokens=9, dtype=torch.float32, batch=2):
    q, k = torch.randn(batch, tokens, 2, 32).to(dtype), torch.randn(batch, tokens, 2, 32).to(dtype)
    v = torch.randn(batch, tokens, 4, 32).to(dtype)
    g, beta = -torch.rand(batch, tokens, 4), torch.rand(batch, tokens, 4).to(dtype)
    return q, k, v, g, beta


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", (1, 9, 70))
def test_both_rules_agree_with_fp64(tokens, dtype):
    q, k, v, g, beta = rule_inputs(tokens, dtype)
    state = torch.randn(2, 4, 32, 32)
    expected = reference.gated_delta_rule(
        q, k, v, g, beta, state, head_map="block", qk_l2norm=True, rounding=dtype
    )
    options = {
        "initial_state": state,
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": True,
    }
    for actual in (
        ops.fused_recurrent_gated_delta_rule(q, k, v, g, None, None, beta, **options),
        ops.chunk_gated_delta_rule(q, k, v, g, beta, **options),
    ):
        for name, a, e in zip(("output", "recurrent_state"), actual, expected, strict=True):
            assert error(a, e) <= tolerance(name, dtype).rms


def test_the_final_state_only_if_asked_for():
    q, k, v, g, beta = rule_inputs()
    assert ops.chunk_gated_delta_rule(q, k, v, g, beta)[1] is None
    assert ops.fused_recurrent_gated_delta_rule(q, k, v, g, beta=beta)[1] is None


def test_decay_and_beta_left_out():
    q, k, v, _, _ = rule_inputs()
    k = k / k.norm(dim=-1, keepdim=True)
    zeros, ones = torch.zeros(2, 9, 4), torch.ones(2, 9, 4)
    assert torch.equal(
        ops.fused_recurrent_gated_delta_rule(q, k, v)[0],
        ops.fused_recurrent_gated_delta_rule(q, k, v, zeros, beta=ones)[0],
    )


def test_order_and_defaults():
    def parameters(function):
        return [
            (p.name, p.default)
            for p in inspect.signature(function).parameters.values()
            if p.kind is not p.VAR_KEYWORD and p.default is not p.empty
        ]

    none = dict.fromkeys
    assert parameters(ops.fused_recurrent_gated_delta_rule) == [
        *none(("g", "gk", "gv", "beta", "scale", "initial_state")).items(),
        ("output_final_state", False),
        ("use_qk_l2norm_in_kernel", False),
        ("cu_seqlens", None),
    ]
    assert parameters(ops.chunk_gated_delta_rule) == [
        *none(("g", "beta", "scale", "initial_state")).items(),
        ("output_final_state", False),
        ("use_qk_l2norm_in_kernel", False),
        ("cu_seqlens", None),
        ("head_first", False),
    ]
    assert parameters(ops.causal_conv1d_fn) == [
        *none(("bias", "seq_idx", "initial_states")).items(),
        ("return_final_states", False),
        ("final_states_out", None),
        ("activation", None),
    ]
    assert parameters(ops.causal_conv1d_update) == list(
        none(("bias", "activation", "cache_seqlens", "conv_state_indices")).items()
    )


@pytest.mark.parametrize(
    "name, value",
    [("gk", torch.zeros(1)), ("gv", torch.zeros(1)), ("cu_seqlens", torch.tensor([0, 5, 9])),
     ("use_gate_in_kernel", True), ("anything", 3)],
)  # fmt: skip
def test_F1_F4_G3_unsupported_arguments_of_the_rule_raise(name, value):
    q, k, v, g, beta = rule_inputs()
    with pytest.raises(NotImplementedError, match=f"fused_recurrent_gated_delta_rule: {name}: got"):
        ops.fused_recurrent_gated_delta_rule(q, k, v, g, beta=beta, **{name: value})
    if name not in ("gk", "gv"):
        with pytest.raises(NotImplementedError, match=f"chunk_gated_delta_rule: {name}: got"):
            ops.chunk_gated_delta_rule(q, k, v, g, beta, **{name: value})


def test_head_first_is_refused():
    with pytest.raises(NotImplementedError, match="head_first: got True"):
        ops.chunk_gated_delta_rule(*rule_inputs(), head_first=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_convolution_and_its_final_states(dtype):
    x, weight = torch.randn(2, 24, 7).to(dtype), torch.randn(24, 4).to(dtype)
    initial = torch.randn(2, 24, 3).to(dtype)
    expected, state = reference.causal_conv1d(x, weight, initial, rounding=dtype)
    out = ops.causal_conv1d_fn(x, weight, initial_states=initial, activation="silu")
    assert error(out, expected) <= tolerance("output", dtype).rms
    kept = torch.full((2, 24, 3), 9.0).to(dtype)
    again, final = ops.causal_conv1d_fn(x, weight, None, None, initial, True, kept, "swish")
    assert torch.equal(again, out)
    assert final.data_ptr() == kept.data_ptr() and torch.equal(kept.double(), state)
    _, fresh = ops.causal_conv1d_fn(x, weight, return_final_states=True)
    assert torch.equal(fresh, x[..., -3:])


@pytest.mark.parametrize("width", (3, 4, 6))
def test_convolution_update_in_place(width):
    x, weight, state = torch.randn(2, 24, 5), torch.randn(24, 4), torch.randn(2, 24, width)
    expected, after = reference.causal_conv1d(x, weight, state)
    steps = [
        ops.causal_conv1d_update(x[..., t], state, weight, activation="silu") for t in range(5)
    ]
    assert error(torch.stack(steps, -1), expected) <= tolerance("output", torch.float32).rms
    assert torch.equal(state.double(), after)


@pytest.mark.parametrize("name", ("bias", "cache_seqlens", "conv_state_indices", "pad_slot_id"))
def test_unsupported_arguments_of_the_update_raise(name):
    x, weight, state = torch.randn(2, 24), torch.randn(24, 4), torch.zeros(2, 24, 3)
    with pytest.raises(NotImplementedError, match=f"causal_conv1d_update: {name}: got"):
        ops.causal_conv1d_update(x, state, weight, **{name: torch.zeros(1)})
    assert (state == 0).all()


@pytest.mark.parametrize("name", ("bias", "seq_idx", "other"))
def test_unsupported_arguments_of_the_convolution_raise(name):
    with pytest.raises(NotImplementedError, match=f"causal_conv1d_fn: {name}: got"):
        ops.causal_conv1d_fn(torch.randn(1, 8, 4), torch.randn(8, 4), **{name: torch.zeros(1)})


def test_final_states_out_is_checked_before_anything_runs():
    x, weight = torch.randn(2, 8, 4), torch.randn(8, 4)
    with pytest.raises(ValueError, match=r"final_states_out: got \(2, 8, 4\)"):
        ops.causal_conv1d_fn(
            x, weight, return_final_states=True, final_states_out=torch.zeros(2, 8, 4)
        )
    with pytest.raises(ValueError, match="final_states_out: got a tensor"):
        ops.causal_conv1d_fn(x, weight, final_states_out=torch.zeros(2, 8, 3))
