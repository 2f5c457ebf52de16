"""Gradients of gdn_layer: every operand, both head maps, masks, frozen and packed weights."""

import naive
import pytest
import torch
from cases import (
    DTYPES,
    HEAD_MAPS,
    SMALL,
    Shape,
    make_hidden,
    make_layer,
    make_states,
    pack_layer,
    with_map,
)
from torch.autograd import gradcheck

from torch_mps_fusion import reference
from torch_mps_fusion.models import GatedDeltaNet, GDNConfig
from torch_mps_fusion.tolerances import error, tolerance

ops = torch.ops.mps_fusion
F64 = torch.float64
TINY = Shape(5, 1, 2, 3, 2, 3)


def operands(layer, hidden, states) -> list:
    """The tensors of a call in the order of the schema, without the mask."""
    return [
        hidden, *layer.in_proj, layer.conv_weight, layer.A_log, layer.dt_bias, layer.norm_weight,
        *layer.out_proj, layer.input_norm_weight, *states,
    ]  # fmt: skip


def names(layer) -> list[str]:
    projections = [f"in_proj[{i}]" for i in range(len(layer.in_proj))]
    return ["hidden", *projections, "conv_weight", "A_log", "dt_bias", "norm_weight", "out_proj[0]",
            "input_norm_weight", "conv_state", "recurrent_state"]  # fmt: skip


def nested(tensors):
    """Flat operands as the arguments of the op."""
    count = len(tensors) - 9
    return [tensors[0], tensors[1 : 1 + count], *tensors[1 + count : 5 + count],
            tensors[5 + count : 6 + count], *tensors[6 + count :]]  # fmt: skip


class ReferenceLayer(torch.autograd.Function):
    """Forward by the float64 reference, backward by our formulas in float64."""

    @staticmethod
    def forward(ctx, mask, keywords, *tensors):
        ctx.save_for_backward(*tensors)
        ctx.mask, ctx.keywords = mask, keywords
        return reference.gdn_layer(*nested(tensors), mask, **keywords)

    @staticmethod
    def backward(ctx, *grads):
        tensors = ctx.saved_tensors
        needed = [t is not None for t in tensors]
        found = ops._gdn_layer_backward(*grads, needed, *nested(tensors), ctx.mask, **ctx.keywords)
        return None, None, *(f if n else None for f, n in zip(found, needed, strict=True))


@pytest.mark.parametrize("head_map", HEAD_MAPS)
@pytest.mark.parametrize("joined", (False, True))
@pytest.mark.parametrize("given, masked, input_norm", [(True, True, True), (False, False, False)])
def test_K1_gradcheck(given, masked, input_norm, joined, head_map):
    shape = with_map(TINY, head_map)
    layer = make_layer(shape, F64, input_norm=input_norm, joined=joined)
    states = make_states(shape, 2, F64, width=4) if given else (None, None)
    states = [s if s is None else s.to(F64) for s in states]
    hidden = make_hidden(shape, 2, 4, F64)
    mask = torch.tensor([[False, True, True, False], [True, True, False, True]])
    tensors = [
        t if t is None else t.detach().clone().requires_grad_()
        for t in operands(layer, hidden, states)
    ]
    mask = mask if masked else None
    assert gradcheck(lambda *t: ReferenceLayer.apply(mask, layer.keywords, *t), tensors)


def test_K1_gradcheck_over_segments():
    layer = make_layer(TINY, F64, input_norm=True)
    states = [s.to(F64) for s in make_states(TINY, 8, F64)]
    tensors = [
        t.detach().clone().requires_grad_()
        for t in operands(layer, make_hidden(TINY, 8, 66, F64), states)
    ]
    mask = torch.rand(8, 66, generator=torch.Generator().manual_seed(4)) > 0.2

    def call(*t):
        return ReferenceLayer.apply(mask, layer.keywords, *t)

    assert gradcheck(call, tensors, fast_mode=True)


# ------------------------------------------------------------------------ through the op


def loss_weights(layer, hidden, width=4):
    shape, batch = layer.shape, len(hidden)
    sizes = [hidden.shape, (batch, shape.conv_dim, width),
             (batch, shape.num_v_heads, shape.head_k_dim, shape.head_v_dim)]  # fmt: skip
    generator = torch.Generator().manual_seed(3)
    dtypes = hidden.dtype, hidden.dtype, torch.float32  # those of the results
    return [torch.randn(s, generator=generator).to(t).double()
            for s, t in zip(sizes, dtypes, strict=True)]  # fmt: skip


def gradients(call, tensors, weights, frozen=()):
    tensors = [t if t is None else t.detach().clone() for t in tensors]
    for i, t in enumerate(tensors):
        if t is not None and i not in frozen:
            t.requires_grad_()
    results = call(*nested(tensors))
    total = sum((r.to(F64) * w).sum() for r, w in zip(results, weights, strict=True))
    total.backward()
    return [None if t is None else t.grad for t in tensors]


def run(layer, mask=None, **keywords):
    return lambda *t: ops.gdn_layer(*t, mask, **{**layer.keywords, **keywords})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_map", HEAD_MAPS)
def test_A6_layer_rows(head_map, dtype, variant):
    layer = make_layer(with_map(SMALL, head_map), dtype, input_norm=True)
    hidden, states = make_hidden(SMALL, 3, 140, dtype), make_states(SMALL, 3, dtype)
    tensors, weights = operands(layer, hidden, states), loss_weights(layer, hidden)
    ours = gradients(run(layer, variant=variant), tensors, weights)
    exact = gradients(
        lambda *t: naive.layer(*t, **layer.keywords, rounding=dtype),
        [t.to(F64) for t in tensors], weights,
    )  # fmt: skip
    accepted = tolerance("layer_gradient", dtype).rms
    for name, a, e, t in zip(names(layer), ours, exact, tensors, strict=True):
        assert a.dtype == t.dtype
        rows = zip(a, e, strict=True) if name in ("hidden", "conv_state") else [(a, e)]
        for i, (row, exact_row) in enumerate(rows):
            found = error(row, exact_row)
            assert found <= accepted, f"{name} row {i}: error {found:.2e}, accepted {accepted}"


def test_D4_masked_tokens_get_no_gradient_but_the_residual():
    mask = torch.tensor([[False, True, False, True, True], [True, True, True, False, False]])
    for input_norm in (False, True):
        layer = make_layer(SMALL, torch.float32, input_norm=input_norm)
        hidden = make_hidden(SMALL, 2, 5, torch.float32)
        tensors = operands(layer, hidden, make_states(SMALL, 2, torch.float32))
        weights = loss_weights(layer, hidden)
        clean = gradients(run(layer, mask), tensors, weights)
        residual = weights[0].float() if input_norm else torch.zeros(2, 5, SMALL.hidden)
        assert torch.equal(clean[0][~mask], residual[~mask])
        hidden[~mask] = 1e30
        for a, b in zip(clean, gradients(run(layer, mask), tensors, weights), strict=True):
            assert a is b is None or torch.equal(a, b)


@pytest.mark.parametrize("b, z", [(100.0, 100.0), (-100.0, -100.0)])
@pytest.mark.parametrize("A_log, dt_bias", [(100.0, 100.0), (-100.0, -100.0), (0.0, 100.0)])
def test_D4_saturated_gates_are_finite(A_log, dt_bias, b, z):
    layer = make_layer(SMALL, torch.float32)
    layer.A_log.fill_(A_log), layer.dt_bias.fill_(dt_bias)
    hidden = make_hidden(SMALL, 2, 5, torch.float32).abs()
    layer.in_proj[1].fill_(z), layer.in_proj[2].fill_(b)
    tensors = operands(layer, hidden, make_states(SMALL, 2, torch.float32))
    for name, grad in zip(names(layer), gradients(run(layer), tensors, loss_weights(layer, hidden)),
                          strict=True):  # fmt: skip
        assert grad is None or torch.isfinite(grad).all(), name


def test_frozen_weights_get_none_and_change_nothing():
    layer = make_layer(SMALL, torch.float32, input_norm=True)
    hidden, states = make_hidden(SMALL, 2, 5, torch.float32), make_states(SMALL, 2, torch.float32)
    tensors, weights = operands(layer, hidden, states), loss_weights(layer, hidden)
    everything = gradients(run(layer), tensors, weights)
    for alone in range(len(tensors)):
        frozen = set(range(len(tensors))) - {alone}
        found = gradients(run(layer), tensors, weights, frozen)
        assert all(found[i] is None for i in frozen)
        assert torch.equal(found[alone], everything[alone])


@pytest.mark.parametrize("variant", ("packed", "core"))
def test_shader_variants_have_the_gradients_of_the_formula(variant):
    layer = make_layer(SMALL, torch.float32, input_norm=True)
    packed = pack_layer(layer)
    hidden, states = make_hidden(SMALL, 2, 5, torch.float32), make_states(SMALL, 2, torch.float32)
    weights = loss_weights(layer, hidden)
    frozen = {i for i, n in enumerate(names(packed)) if "proj" in n}
    ours = gradients(
        run(packed, variant=variant), operands(packed, hidden, states), weights, frozen
    )
    exact = dict(
        zip(names(layer), gradients(run(layer), operands(layer, hidden, states), weights),
            strict=True)
    )  # fmt: skip
    for name, found in zip(names(packed), ours, strict=True):
        if "proj" in name:
            assert found is None
        else:
            assert error(found, exact[name]) <= tolerance("layer_gradient", torch.float32).rms


def test_packed_weights_that_require_grad_are_refused():
    layer = pack_layer(make_layer(SMALL, torch.float32))
    layer.in_proj[0].requires_grad_()
    with pytest.raises(ValueError, match=r"in_proj\[0\]: got a packed weight that requires grad"):
        run(layer, variant="core")(
            *nested(operands(layer, make_hidden(SMALL, 1, 2, torch.float32), (None, None)))
        )


def test_K8_the_in_place_layer_refuses_gradients():
    layer, hidden = make_layer(SMALL, torch.float32), make_hidden(SMALL, 1, 2, torch.float32)
    states = make_states(SMALL, 1, torch.float32)
    before = [s.clone() for s in states]
    with pytest.raises(ValueError, match="hidden: got a tensor that requires grad.*gdn_layer has"):
        ops.gdn_layer_(hidden.requires_grad_(), *states, *layer.weights, **layer.keywords)
    assert all(torch.equal(a, b) for a, b in zip(states, before, strict=True))


def test_states_of_inference_mode_are_written_outside_of_it():
    layer, hidden = make_layer(SMALL, torch.float32), make_hidden(SMALL, 1, 2, torch.float32)
    expected = make_states(SMALL, 1, torch.float32)
    with torch.inference_mode():
        states = [s.clone() for s in expected]
    ops.gdn_layer_(hidden, *states, *layer.weights, **layer.keywords)
    ops.gdn_layer_(hidden, *expected, *layer.weights, **layer.keywords)
    assert all(torch.equal(a, b) for a, b in zip(states, expected, strict=True))


def test_checkpointed_layer_gives_the_same_gradients():
    layer, hidden = make_layer(SMALL, torch.float32), make_hidden(SMALL, 1, 9, torch.float32)
    x = hidden.requires_grad_()

    def call(x):
        return run(layer)(x, *layer.weights)[0]

    [plain] = torch.autograd.grad(call(x).square().sum(), x)
    again = torch.utils.checkpoint.checkpoint(call, x, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(again.square().sum(), x)[0], plain)


def test_K1_the_module_trains_with_autograd():
    config = GDNConfig(
        hidden_size=32, num_k_heads=1, num_v_heads=2, head_k_dim=32, head_v_dim=32,
        conv_kernel_size=4, rms_norm_eps=1e-6, model_type="qwen3_5",
        layer_types=("linear_attention",),
    )  # fmt: skip
    layer = GatedDeltaNet.from_config(config).requires_grad_()
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.05)
    x, target = torch.randn(2, 12, 32), torch.randn(2, 12, 32)
    losses = []
    for _ in range(5):
        loss = (layer(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in layer.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
