"""Gates and norms of the native kernels, seen through a layer whose projections copy.

``in_proj`` and ``out_proj`` are identities, so that q, k, v, z, b and a are columns of ``hidden``
and the gated norm's result is the output, without a rounding in between.
"""

import pytest
import torch
from cases import DTYPES
from native import one_thread

from torch_mps_fusion import reference
from torch_mps_fusion.tolerances import error, tolerance

HEADS, DIM = 3, 32  # as many key heads as value heads, Dk = Dv
CONV = 3 * HEADS * DIM
HIDDEN = CONV + HEADS * DIM + 2 * HEADS


def run(columns, *, A_log, dt_bias, norm_weight, state, dtype, input_norm_weight=None, eps=1e-6):
    """The layer on (B, T, HIDDEN) columns q, k, v, z, b, a; the convolution passes its input."""
    weight = torch.zeros(CONV, 4, dtype=dtype)
    weight[:, 3] = 1
    batch = columns.shape[0]
    return torch.ops.mps_fusion.gdn_layer(
        columns, [torch.eye(HIDDEN, dtype=dtype)], weight, A_log, dt_bias, norm_weight,
        [torch.eye(HIDDEN, HEADS * DIM, dtype=dtype)], input_norm_weight,
        torch.zeros(batch, CONV, 4, dtype=dtype), state,
        num_k_heads=HEADS, num_v_heads=HEADS, head_k_dim=DIM, head_v_dim=DIM, head_map="block",
        eps=eps, variant="native",
    )  # fmt: skip


def make(dtype, batch=1, tokens=1):
    generator = torch.Generator().manual_seed(0)
    return {
        "columns": torch.randn(batch, tokens, HIDDEN, generator=generator).to(dtype),
        "A_log": torch.rand(HEADS, generator=generator),
        "dt_bias": torch.randn(HEADS, generator=generator),
        "norm_weight": torch.rand(DIM, generator=generator).to(dtype),
        "state": torch.ones(batch, HEADS, DIM, DIM),
        "dtype": dtype,
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", (0.0, -40.0))
def test_G6_decay_from_tiny_to_huge_logits(bias, dtype):
    """With zero keys and values the state is only decayed: it shows g."""
    logits = torch.linspace(-50, 50, 401).to(dtype)
    layer = make(dtype, batch=len(logits))
    layer["columns"][:, :, :CONV] = 0
    layer["columns"][:, 0, -HEADS:] = logits[:, None]
    layer["dt_bias"][:] = bias
    layer["A_log"][:] = torch.tensor([-8.0, 0.0, -4.0])
    _, _, state = run(**layer)
    g, _ = reference.gates(
        layer["columns"][..., -HEADS:], torch.zeros(HEADS), layer["A_log"], layer["dt_bias"]
    )
    decay = g[:, 0].exp()[..., None, None].expand_as(state)
    assert (state.double() - decay).abs().max() <= 2e-6
    # Where almost nothing decays, what is lost is right too.
    slow = (g[:, 0] < -1e-3) & (g[:, 0] > -1e-1)
    lost = (1 - state.double()[slow]) / (1 - decay[slow])
    assert slow.any() and (lost - 1).abs().max() <= 2e-4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_beta_is_rounded_to_the_dtype(dtype):
    """With key e_0, value 1 and no prior state, the state's row 0 is beta."""
    logits = torch.linspace(-20, 20, 301).to(dtype)
    layer = make(dtype, batch=len(logits))
    columns = layer["columns"]
    columns[:] = 0
    columns[:, 0, HEADS * DIM : 2 * HEADS * DIM : DIM] = 20  # silu(20), then normalised to 1
    columns[:, 0, 2 * HEADS * DIM : CONV] = 1
    columns[:, 0, -2 * HEADS : -HEADS] = logits[:, None]
    layer["state"][:] = 0
    _, _, state = run(**layer)
    value = torch.nn.functional.silu(torch.ones(1, dtype=torch.double)).to(dtype).double()
    beta = state[:, :, 0].double() / value
    exact = torch.sigmoid(logits.double())[:, None, None].expand_as(beta)
    assert ((beta - exact).abs() <= 0.51 * torch.finfo(dtype).eps * exact + 1e-7).all()
    if dtype != torch.float32:
        nearest = beta.to(dtype).double()
        assert ((beta - nearest).abs() <= 1e-6 * nearest).all(), "beta is not a value of the dtype"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", (1e-3, 1.0, 30.0))
def test_gated_norm_with_its_three_roundings(size, dtype):
    layer = make(dtype, batch=2, tokens=70)
    layer["columns"][..., 2 * HEADS * DIM : CONV] *= size
    output, _, _ = run(**layer)
    columns = layer["columns"]
    q, k, v, z = (
        part.unflatten(-1, (HEADS, DIM))
        for part in columns[..., : CONV + HEADS * DIM].split(HEADS * DIM, dim=-1)
    )
    q, k, v = (reference.rounded(reference.silu(t.double()), dtype) for t in (q, k, v))
    b, a = columns[..., -2 * HEADS : -HEADS], columns[..., -HEADS:]
    g, beta = reference.gates(a, b, layer["A_log"], layer["dt_bias"], dtype)
    with one_thread():
        o, _ = reference.gated_delta_rule(
            q, k, v, g, beta, layer["state"], head_map="block", qk_l2norm=True, rounding=dtype
        )
    expected = reference.gated_rms_norm(o, z, layer["norm_weight"], 1e-6, dtype)
    got = output[..., : HEADS * DIM].unflatten(-1, (HEADS, DIM))
    for h in range(HEADS):
        assert error(got[:, :, h], expected[:, :, h]) <= tolerance("output", dtype).rms
    assert (output[..., HEADS * DIM :] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("eps", (1e-6, 0.5))
def test_input_norm_is_rounded_once(eps, dtype):
    """The convolution's state holds the normalised input of its channels."""
    layer = make(dtype, batch=3, tokens=2)
    weight = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(1)).to(dtype)
    _, conv_state, _ = run(**layer, input_norm_weight=weight, eps=eps)
    expected = reference.rms_norm(layer["columns"], weight, eps)[..., :CONV]
    got = conv_state[..., -2:].transpose(1, 2).double()
    spacing = torch.finfo(dtype).eps * expected.abs() + torch.finfo(dtype).tiny
    limit = 8 if dtype == torch.float32 else 0.51
    assert ((got - expected).abs() <= limit * spacing).all()
