"""``stock`` and ``native`` against transformers' own modules, cache and mask handling included."""

import pytest
import torch
from cases import Layer, Shape
from compare import NAMES, run_layer

from torch_mps_fusion.tolerances import error, tolerance

transformers = pytest.importorskip("transformers", reason="transformers is a test extra")

TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "layer_types": ["linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
}
SHAPE = Shape(64, 2, 4, 32, 32)


def qwen3_next(dtype):
    from transformers.models.qwen3_next import modeling_qwen3_next as modeling

    config = transformers.Qwen3NextConfig(**TEXT, num_experts=0)
    module = modeling.Qwen3NextGatedDeltaNet(config, 0)
    qkvz = module.in_proj_qkvz.weight.view(2, -1, 64)
    ba = module.in_proj_ba.weight.view(2, -1, 64)
    q, k, v, z = (t.flatten(0, 1) for t in qkvz.split([32, 32, 64, 64], dim=1))
    b, a = (t.flatten(0, 1) for t in ba.split([2, 2], dim=1))
    return module.to(dtype), config, [torch.cat([q, k, v]), z, b, a]


def qwen3_5(dtype):
    from transformers.models.qwen3_5 import modeling_qwen3_5 as modeling

    config = transformers.Qwen3_5TextConfig(**TEXT)
    module = modeling.Qwen3_5GatedDeltaNet(config, 0)
    projections = [module.in_proj_qkv, module.in_proj_z, module.in_proj_b, module.in_proj_a]
    return module.to(dtype), config, [p.weight for p in projections]


@pytest.fixture(params=(qwen3_next, qwen3_5), ids=lambda f: f.__name__)
def family(request):
    return request.param


@pytest.fixture(params=(torch.float32, torch.bfloat16), ids=str)
def dtype(request):
    return request.param


@pytest.fixture
def pair(family, dtype):
    """transformers' module, its config, and the same weights as our layer."""
    torch.manual_seed(0)
    module, config, in_proj = family(dtype)
    layer = Layer(
        shape=SHAPE,
        in_proj=[w.detach().to(dtype) for w in in_proj],
        conv_weight=module.conv1d.weight.detach().squeeze(1),
        A_log=module.A_log.detach(),
        dt_bias=module.dt_bias.detach(),
        norm_weight=module.norm.weight.detach(),
        out_proj=[module.out_proj.weight.detach()],
        keywords=dict(SHAPE.keywords),
    )
    return module.eval(), config, layer


def states_of(cache):
    return cache.layers[0].conv_states[0], cache.layers[0].recurrent_states[0]


def check(actual, expected, dtype):
    """Two implementations that both stay within the tolerance of fp64 are at most twice apart."""
    for name, a, e in zip(NAMES, actual, expected, strict=True):
        assert error(a, e) <= 2 * tolerance(name, dtype).rms, name


@torch.no_grad()
@pytest.mark.parametrize("tokens", (1, 2, 3, 8, 70))
def test_prefill(tokens, pair, dtype, variant):
    module, config, layer = pair
    cache = transformers.DynamicCache(config=config)
    x = torch.randn(2, tokens, 64).to(dtype)
    expected = module(x, cache)
    check(run_layer(layer, x, variant=variant), (expected, *states_of(cache)), dtype)


@torch.no_grad()
@pytest.mark.parametrize("tokens", (1, 2, 5, 70))
def test_E1_decode_and_continuation(tokens, pair, dtype, variant):
    module, config, layer = pair
    cache = transformers.DynamicCache(config=config)
    first, x = torch.randn(2, 10, 64).to(dtype), torch.randn(2, tokens, 64).to(dtype)
    module(first, cache)
    states = tuple(s.clone() for s in states_of(cache))
    expected = module(x, cache)
    check(run_layer(layer, x, states, variant=variant), (expected, *states_of(cache)), dtype)


@torch.no_grad()
def test_D1_left_padded_prefill(pair, dtype, variant):
    module, config, layer = pair
    mask = torch.tensor([[False] * 5 + [True] * 7, [True] * 12])
    x = torch.randn(2, 12, 64).to(dtype)
    cache = transformers.DynamicCache(config=config)
    expected = module(x, cache, attention_mask=mask)
    actual = run_layer(layer, x, mask=mask, variant=variant)
    check((actual[0][mask], *actual[1:]), (expected[mask], *states_of(cache)), dtype)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32], ids=str)
def test_a_mask_on_a_continuation_differs_as_documented(pair, dtype, variant):
    """There transformers still decays the state at a pad; ours leaves it as if no token came."""
    module, config, layer = pair
    cache = transformers.DynamicCache(config=config)
    module(torch.randn(1, 10, 64), cache)
    conv, recurrent = (s.clone() for s in states_of(cache))
    mask = torch.zeros(1, 3, dtype=torch.bool)
    x = torch.randn(1, 3, 64)
    module(x, cache, attention_mask=mask)
    assert not torch.equal(states_of(cache)[1], recurrent)
    _, *ours = run_layer(layer, x, (conv, recurrent), mask, variant=variant)
    assert torch.equal(ours[0], conv) and torch.equal(ours[1], recurrent)
