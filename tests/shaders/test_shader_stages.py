"""Each kernel on what the kernels before it made, against float64 with its own roundings."""

import pytest
import torch
from cases import DTYPES, Shape
from host import run
from program import Geometry, Program
from settings import BLOCK, RAGGED, TILED, WIDE, Setting, make_case

from torch_mps_fusion import reference
from torch_mps_fusion.tolerances import error

EPS = 1e-4
# shape, batch, tokens, states, size of the convolution's weights: small ones make every eps count
CASES = [
    (BLOCK, 1, 1, True, 1.0),
    (TILED, 3, 3, False, 3e-3),
    (RAGGED, 2, 11, True, 1.0),
    (WIDE, 1, 8, False, 1.0),
]


def assert_rounded(found, exact, dtype, steps: int = 1) -> None:
    """Equal but for a few values next to a rounding boundary, by `steps` units at most.

    exact: float64, rounded where the stage rounds. float32: relative RMS of 1e-6. A value that
    cancelled to next to nothing has the absolute error of the sum.
    """
    assert torch.equal(found, found.to(dtype).to(found.dtype)), "not rounded"
    assert error(found, exact) < (1e-6 if dtype == torch.float32 else 2e-3)
    if dtype == torch.float32:
        return
    a, b = (x.to(dtype).view(torch.int16).int() for x in (found, exact))
    a, b = (torch.where(x < 0, -(x & 0x7FFF), x) for x in (a, b))
    cancelled = (found.double() - exact).abs() <= 1e-6 * exact.square().mean().sqrt()
    assert int(((a - b).abs() * ~cancelled).max()) <= steps
    assert int((a != b).sum()) <= max(2, a.numel() // 200)


@pytest.fixture(params=[(d, c) for d in DTYPES for c in CASES], ids=str)
def ran(request):
    dtype, (shape, batch, tokens, states, size) = request.param
    setting = Setting(shape, width=4 if states else 0, float_gates=True)
    case = make_case(setting, dtype, batch, tokens)
    case.layer.conv_weight *= size
    # from where exp() of it is nothing beside 1, to where softplus returns its argument
    case.layer.dt_bias[:] = torch.linspace(-40.0, 25.0, shape.num_v_heads)
    case.layer.A_log -= 2.0
    made = Program("packed", case.layer, case.hidden, case.states, eps=EPS)
    run(made)
    return case, made, shape, dtype


def split(made, shape):
    """q, k, v, z, b, a of Y in float64, (B, T, columns) each."""
    y = made.Y[:, : made.n_in].double().view(made.batch, made.tokens, -1)
    keys, values, heads = shape.key_dim, shape.value_dim, shape.num_v_heads
    return y.split([keys, keys, values, values, heads, heads], dim=-1)


def heads(x, made, count):
    return x.double().view(made.batch, made.tokens, count, -1)


def test_input_projection(ran):
    case, made, _, dtype = ran
    x = reference.rms_norm(case.hidden, case.layer.input_norm_weight, EPS, dtype)
    weight = torch.cat(case.layer.in_proj).double()
    exact = reference.rounded(x @ weight.T, dtype).view(made.rows, -1)
    # a value of x that rounds the other way moves a whole row of sums
    assert error(made.Y[:, : made.n_in], exact) < (1e-6 if dtype == torch.float32 else 2e-3)
    assert made.Y[:, made.n_in :].isnan().all(), "padded columns were written"


def test_conv(ran):
    case, made, shape, dtype = ran
    x = torch.cat(split(made, shape)[:3], -1).transpose(1, 2)
    state = case.states[0] if case.states else None
    exact, _ = reference.causal_conv1d(x, case.layer.conv_weight, state, rounding=dtype)
    assert_rounded(made.C, exact.transpose(1, 2).reshape(made.rows, -1), dtype, steps=2)


def test_conv_state_is_copied(ran):
    case, made, shape, _ = ran
    x = torch.cat(split(made, shape)[:3], -1).transpose(1, 2)
    state = case.states[0] if case.states else None
    _, exact = reference.causal_conv1d(x, case.layer.conv_weight, state)
    assert torch.equal(made.conv_out.double(), exact)


def test_q_k_and_gates(ran):
    case, made, shape, dtype = ran
    q, k, _ = made.C.split([shape.key_dim, shape.key_dim, shape.value_dim], -1)
    q, k = (heads(x, made, shape.num_k_heads) for x in (q, k))
    q = reference.l2_normalised(q) * shape.head_k_dim**-0.5
    k = reference.l2_normalised(k)
    assert error(heads(made.Q, made, shape.num_k_heads), q) < 3e-7
    assert error(heads(made.K, made, shape.num_k_heads), k) < 3e-7
    kq = (q * k).sum(-1).view(made.rows, -1)
    assert float((made.KQ - kq).abs().max()) < 1e-7
    *_, b, a = split(made, shape)
    g, beta = reference.gates(a, b, case.layer.A_log, case.layer.dt_bias, dtype)
    assert error(made.gates[..., 0], g.exp().view(made.rows, -1)) < 1e-6
    assert_rounded(made.gates[..., 1], beta.view(made.rows, -1), dtype)


def test_rule(ran):
    case, made, shape, dtype = ran
    *_, v = made.C.split([shape.key_dim, shape.key_dim, shape.value_dim], -1)
    gates = made.gates.double().view(made.batch, made.tokens, -1, 2)
    exact, state = reference.gated_delta_rule(
        heads(made.Q, made, shape.num_k_heads),
        heads(made.K, made, shape.num_k_heads),
        heads(v, made, shape.num_v_heads),
        gates[..., 0].log(),
        gates[..., 1],
        case.states[1] if case.states else None,
        head_map=shape.head_map,
        scale=1.0,
        rounding=dtype,
    )
    assert error(made.state_out, state) < 5e-7
    assert_rounded(made.O, exact.view(made.rows, -1), dtype)


def test_gated_norm(ran):
    case, made, shape, dtype = ran
    z = heads(split(made, shape)[3], made, shape.num_v_heads)
    o = heads(made.O, made, shape.num_v_heads)
    exact = reference.gated_rms_norm(o, z, case.layer.norm_weight, EPS, dtype)
    assert_rounded(made.G, exact.view(made.rows, -1), dtype, steps=4)


def test_output_projection(ran):
    case, made, _, dtype = ran
    exact = reference.rounded(made.G.double() @ case.layer.out_proj[0].double().T, dtype)
    exact = reference.rounded(exact + case.hidden.double().view(made.rows, -1), dtype)
    assert_rounded(made.output.view(made.rows, -1), exact, dtype, steps=2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_row_norm(dtype):
    """The dispatch of its own; the projection that follows sees what kNorm computes."""
    case = make_case(Setting(Shape(608, 1, 1)), dtype, 1, 3)
    case.hidden *= torch.tensor([1e-4, 1.0, 300.0], dtype=dtype)[:, None]
    made = Program(
        "core", case.layer, case.hidden, case.states, geometry=Geometry(joined_norm=True)
    )
    run(made)
    exact = reference.rms_norm(case.hidden, case.layer.input_norm_weight, 1e-6, dtype)
    assert_rounded(made.normed, exact.view(3, -1), dtype)
