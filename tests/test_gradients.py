"""Gradients of the rule and the convolution: against numbers in float64, against autodiff."""

import naive
import pytest
import torch
from cases import DTYPES, HEAD_MAPS, strided_view
from torch.autograd import gradcheck

from torch_mps_fusion import ops as functions
from torch_mps_fusion import reference
from torch_mps_fusion.tolerances import error, tolerance

ops = torch.ops.mps_fusion
F64 = torch.float64
NAMES = ("q", "k", "v", "g", "beta", "state")


def rule_inputs(batch, tokens, k_heads, v_heads, dk, dv, dtype, *, seed=0, wide=torch.float32):
    generator = torch.Generator().manual_seed(seed)

    def normal(*size):
        return torch.randn(*size, generator=generator, dtype=F64)

    g = -0.5 * torch.rand(batch, tokens, v_heads, generator=generator, dtype=F64)
    return [
        normal(batch, tokens, k_heads, dk).to(dtype),
        normal(batch, tokens, k_heads, dk).to(dtype),
        normal(batch, tokens, v_heads, dv).to(dtype),
        g.to(wide),
        normal(batch, tokens, v_heads).sigmoid().to(dtype),
        normal(batch, v_heads, dk, dv).to(wide),
    ]


def some_mask(batch, tokens):
    mask = torch.rand(batch, tokens, generator=torch.Generator().manual_seed(5)) > 0.4
    mask[0, :2] = False  # left padding
    return mask


# --------------------------------------------------------------- float64: the reference's numbers


class ReferenceRule(torch.autograd.Function):
    """Forward by the float64 reference, backward by our formula in float64."""

    @staticmethod
    def forward(ctx, mask, keywords, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.mask, ctx.keywords = mask, keywords
        return reference.gated_delta_rule(*tensors, mask, **keywords)

    @staticmethod
    def backward(ctx, *grads):
        found = ops._gated_delta_rule_backward(*grads, *ctx.saved_tensors, ctx.mask, **ctx.keywords)
        return None, None, *found


@pytest.mark.parametrize("masked", (False, True))
@pytest.mark.parametrize("qk_l2norm, scale", [(True, None), (False, 0.7)])
@pytest.mark.parametrize("head_map", HEAD_MAPS)
def test_K1_rule_gradcheck(head_map, qk_l2norm, scale, masked):
    keywords = {"head_map": head_map, "qk_l2norm": qk_l2norm, "scale": scale}
    tensors = [t.requires_grad_() for t in rule_inputs(2, 5, 2, 4, 3, 2, F64, wide=F64)]
    mask = some_mask(2, 5) if masked else None
    assert gradcheck(lambda *t: ReferenceRule.apply(mask, keywords, *t), tensors)


@pytest.mark.parametrize("tokens", (1, 64, 65, 130))
def test_K1_rule_gradcheck_over_chunks(tokens):
    keywords = {"head_map": "block", "qk_l2norm": True}
    tensors = [t.requires_grad_() for t in rule_inputs(1, tokens, 1, 2, 2, 3, F64, wide=F64)]
    mask = some_mask(1, tokens) if tokens > 1 else None
    assert gradcheck(lambda *t: ReferenceRule.apply(mask, keywords, *t), tensors, fast_mode=True)


class ReferenceConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, mask, activation, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.mask, ctx.activation = mask, activation
        return reference.causal_conv1d(*tensors, mask, activation=activation)

    @staticmethod
    def backward(ctx, *grads):
        found = ops._causal_conv1d_backward(
            *grads, *ctx.saved_tensors, ctx.mask, activation=ctx.activation
        )
        return None, None, *found


@pytest.mark.parametrize("masked", (False, True))
@pytest.mark.parametrize("activation", (None, "silu"))
@pytest.mark.parametrize("taps, width", [(4, 4), (4, 3), (3, 6), (1, 1)])
@pytest.mark.parametrize("tokens", (1, 7))
def test_K1_conv_gradcheck(tokens, taps, width, activation, masked):
    x, weight, state = (
        torch.randn(*size, dtype=F64, requires_grad=True)
        for size in ((2, 3, tokens), (3, taps), (2, 3, width))
    )
    mask = some_mask(2, tokens) if masked else None
    assert gradcheck(lambda *t: ReferenceConv.apply(mask, activation, *t), (x, weight, state))


# ------------------------------------------------------------------- through the ops, by autodiff


def gradients(call, tensors, weights):
    """Gradients of a weighted sum of the results."""
    tensors = [t.detach().clone().requires_grad_() for t in tensors]
    results = call(*tensors)
    total = sum((r.to(F64) * w).sum() for r, w in zip(results, weights, strict=True))
    return torch.autograd.grad(total, tensors)


def result_weights(q, v):
    generator = torch.Generator().manual_seed(9)
    size = (v.shape[0], v.shape[2], q.shape[3], v.shape[3])
    # In the dtype of the result, which its gradient has too.
    return [torch.randn(s, generator=generator).to(t).double()
            for s, t in ((v.shape, v.dtype), (size, torch.float32))]  # fmt: skip


def assert_rule_gradients(tensors, mask=None, *, variant="auto", **keywords):
    """Each gradient, row by row of the batch, against autodiff of the naive rule in float64."""
    keywords = {"head_map": "block", "qk_l2norm": True, **keywords}
    weights = result_weights(tensors[0], tensors[2])
    dtype = tensors[0].dtype
    ours = gradients(
        lambda *t: ops.gated_delta_rule(*t, mask, **keywords, variant=variant), tensors, weights
    )
    exact = gradients(
        lambda *t: naive.rule(*t, mask, **keywords), [t.to(F64) for t in tensors], weights
    )
    for name, a, e, t in zip(NAMES, ours, exact, tensors, strict=True):
        assert a.dtype == t.dtype and a.shape == t.shape
        accepted = tolerance("gradient", dtype).rms
        for row in range(len(a)):
            found = error(a[row], e[row])
            assert found <= accepted, f"{name} row {row}: error {found:.2e}, accepted {accepted}"
    return ours


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_map", HEAD_MAPS)
def test_A6_rule_rows(head_map, dtype, variant):
    tensors = rule_inputs(3, 70, 2, 4, 32, 32, dtype)
    assert_rule_gradients(tensors, head_map=head_map, variant=variant)


def test_A6_rule_of_views():
    tensors = [strided_view(t) for t in rule_inputs(3, 9, 1, 2, 32, 32, torch.float32)[:5]]
    state = torch.randn(3, 2, 32, 32).mT
    assert_rule_gradients([*tensors, state])


def test_rule_without_a_state():
    inputs = rule_inputs(2, 9, 1, 2, 32, 32, torch.float32)
    weights = result_weights(inputs[0], inputs[2])
    keywords = {"head_map": "block"}
    ours = gradients(lambda *t: ops.gated_delta_rule(*t, **keywords), inputs[:5], weights)
    exact = gradients(lambda *t: naive.rule(*t, **keywords),
                      [t.to(F64) for t in inputs[:5]], weights)  # fmt: skip
    for a, e in zip(ours, exact, strict=True):
        assert error(a, e) <= tolerance("gradient", torch.float32).rms


@pytest.mark.parametrize("tokens", (65, 129, 257))
def test_B10_just_above_powers_of_two(tokens):
    assert_rule_gradients(rule_inputs(2, tokens, 1, 1, 32, 32, torch.float32))


def test_B10_long():
    tensors = rule_inputs(1, 4097, 1, 1, 32, 32, torch.bfloat16)
    found = gradients(
        lambda *t: ops.gated_delta_rule(*t, head_map="block", qk_l2norm=True),
        tensors,
        result_weights(tensors[0], tensors[2]),
    )
    assert all(torch.isfinite(t).all() for t in found)


@pytest.mark.parametrize("decay", (-30.0, -1e4))
def test_G1_heavy_decay(decay):
    q, k, v, g, beta, state = rule_inputs(2, 128, 1, 2, 32, 32, torch.float32)
    g[:, 20:90] = decay
    assert_rule_gradients([q, k, v, g, beta, state])


def test_G1_a_forgotten_state_has_no_gradient():
    q, k, v, g, beta, state = rule_inputs(1, 3, 1, 1, 32, 32, torch.float32)
    g[:, 0] = -torch.inf
    found = gradients(lambda *t: ops.gated_delta_rule(*t, head_map="block"),
                      (q, k, v, g, beta, state), result_weights(q, v))  # fmt: skip
    assert all(torch.isfinite(t).all() for t in found)
    assert found[5].eq(0).all() and found[3][:, 0].eq(0).all()


@pytest.mark.parametrize("gate", (0.0, 1.0))
def test_D4_saturated_beta_and_zero_vectors(gate):
    q, k, v, g, beta, state = rule_inputs(2, 70, 1, 2, 32, 32, torch.float32)
    q[:, 10:20], k[:, 15:30], g[:, 30:50] = 0, 0, 0
    beta.fill_(gate)
    found = assert_rule_gradients([q, k, v, g, beta, state])
    assert all(torch.isfinite(t).all() for t in found)


@pytest.mark.parametrize("garbage", (1e30, float("nan")))
def test_D4_pads_hold_anything_and_get_no_gradient(garbage, variant):
    tensors = rule_inputs(2, 70, 1, 2, 32, 32, torch.float32)
    mask = some_mask(2, 70)
    clean = assert_rule_gradients(tensors, mask, variant=variant)
    for t in tensors[:5]:
        t[~mask] = garbage
    keywords = {"head_map": "block", "qk_l2norm": True, "variant": variant}
    dirty = gradients(lambda *t: ops.gated_delta_rule(*t, mask, **keywords), tensors,
                      result_weights(tensors[0], tensors[2]))  # fmt: skip
    for a, b in zip(clean, dirty, strict=True):
        assert torch.equal(a, b)
    for t in dirty[:5]:
        assert t[~mask].eq(0).all()


def test_no_tokens_pass_the_state_gradient_through():
    tensors = rule_inputs(2, 0, 1, 2, 32, 32, torch.float32)
    weights = result_weights(tensors[0], tensors[2])
    found = gradients(lambda *t: ops.gated_delta_rule(*t, head_map="block"), tensors, weights)
    assert torch.equal(found[5], weights[1].float())
    assert found[0].shape == (2, 0, 1, 32)


@pytest.mark.parametrize("used", (0, 1))
def test_one_result_alone(used):
    tensors = rule_inputs(2, 9, 1, 2, 32, 32, torch.float32)
    weights = [w * (i == used) for i, w in enumerate(result_weights(tensors[0], tensors[2]))]

    def ours(*t):
        result = ops.gated_delta_rule(*t, head_map="block")[used] * weights[used]
        return torch.autograd.grad(result.sum(), t, allow_unused=True)

    exact = gradients(lambda *t: naive.rule(*t, head_map="block"),
                      [t.to(F64) for t in tensors], weights)  # fmt: skip
    for a, e in zip(ours(*(t.requires_grad_() for t in tensors)), exact, strict=True):
        assert error(a, e) <= tolerance("gradient", torch.float32).rms


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", (None, "silu"))
def test_A6_conv_rows(activation, dtype, variant):
    x, weight = strided_view(torch.randn(3, 24, 37).to(dtype)), torch.randn(24, 4).to(dtype)
    state = torch.randn(3, 24, 4).to(dtype)
    weights = [torch.randn(size).to(dtype).double() for size in ((3, 24, 37), (3, 24, 4))]
    ours = gradients(
        lambda *t: ops.causal_conv1d(*t, activation=activation, variant=variant),
        (x, weight, state), weights,
    )  # fmt: skip
    exact = gradients(lambda *t: naive.conv(*t, activation=activation),
                      [t.to(F64) for t in (x, weight, state)], weights)  # fmt: skip
    accepted = tolerance("gradient", dtype).rms
    assert error(ours[1], exact[1]) <= accepted
    for a, e in ((ours[0], exact[0]), (ours[2], exact[2])):
        for row in range(3):
            assert error(a[row], e[row]) <= accepted


def test_D4_conv_pads(variant):
    mask = some_mask(2, 9)
    x, weight, state = torch.randn(2, 24, 9), torch.randn(24, 4), torch.randn(2, 24, 4)
    weights = [torch.randn(2, 24, 9), torch.randn(2, 24, 4)]

    def found(x):
        return gradients(
            lambda *t: ops.causal_conv1d(*t, mask, activation="silu", variant=variant),
            (x, weight, state), weights,
        )  # fmt: skip

    dirty = torch.where(mask[:, None], x, torch.nan)
    for a, b in zip(found(x), found(dirty), strict=True):
        assert torch.isfinite(b).all() and torch.equal(a, b)
    assert found(dirty)[0].masked_select(~mask[:, None]).eq(0).all()


# ---------------------------------------------------------------- the functions of other packages


@pytest.mark.parametrize(
    "function", (functions.chunk_gated_delta_rule, functions.fused_recurrent_gated_delta_rule)
)
def test_flash_linear_attention_names(function):
    q, k, v, g, beta, state = rule_inputs(2, 9, 1, 2, 32, 32, torch.float32)
    keywords = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    weights = result_weights(q, v)
    ours = gradients(
        lambda q, k, v, g, beta, s: function(
            q, k, v, g=g, beta=beta, initial_state=s, **keywords
        ),
        (q, k, v, g, beta, state), weights,
    )  # fmt: skip
    exact = gradients(
        lambda *t: naive.rule(*t, head_map="block", qk_l2norm=True),
        [t.to(F64) for t in (q, k, v, g, beta, state)], weights,
    )  # fmt: skip
    for a, e in zip(ours, exact, strict=True):
        assert error(a, e) <= tolerance("gradient", torch.float32).rms


# ------------------------------------------------------------------------------- what is refused


def test_second_derivatives_are_refused():
    tensors = [t.requires_grad_() for t in rule_inputs(1, 3, 1, 1, 32, 32, torch.float32)]
    output, _ = ops.gated_delta_rule(*tensors, head_map="block")
    with pytest.raises(ValueError, match="_gated_delta_rule_backward: .*requires grad"):
        torch.autograd.grad(output.sum(), tensors, create_graph=True)


def test_K7_functorch_is_refused_not_wrong():
    q, k, v, g, beta, _ = rule_inputs(2, 3, 1, 1, 32, 32, torch.float32)

    def loss(q):
        return ops.gated_delta_rule(q, k[:1], v[:1], g[:1], beta[:1], head_map="block")[0].sum()

    with pytest.raises(RuntimeError):
        torch.func.vmap(torch.func.grad(loss))(q[:, None])


def test_K8_in_place_ops_refuse_gradients_and_name_the_other_op():
    q, k, v, g, beta, state = rule_inputs(1, 3, 1, 1, 32, 32, torch.float32)
    with pytest.raises(
        ValueError, match="q: got a tensor that requires grad.*gated_delta_rule has"
    ):
        ops.gated_delta_rule_(q.requires_grad_(), k, v, g, beta, state, head_map="block")
    x = torch.randn(1, 8, 3, requires_grad=True)
    with pytest.raises(ValueError, match="x: got a tensor that requires grad.*causal_conv1d has"):
        ops.causal_conv1d_(x, torch.zeros(1, 8, 3), torch.zeros(8, 4))


def test_a_saved_state_that_was_written_is_noticed():
    tensors = rule_inputs(1, 3, 1, 1, 32, 32, torch.float32)
    output, _ = ops.gated_delta_rule(tensors[0].requires_grad_(), *tensors[1:], head_map="block")
    with torch.no_grad():
        ops.gated_delta_rule_(*tensors, head_map="block")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
