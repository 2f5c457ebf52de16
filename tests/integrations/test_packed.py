"""The shader variants and packed linears in a transformers model; here metal_host runs them."""

import copy

import pytest
import torch
from small_models import TEXT, Twins, assert_same_tokens, generate, make, prompt
from torch import nn

from torch_mps_fusion.integrations.packed_linear import PackedLinear
from torch_mps_fusion.integrations.transformers import FallbackWarning, fuse, fused_layers, unfuse

pytestmark = pytest.mark.filterwarnings(f"error::{FallbackWarning.__module__}.FallbackWarning")
X = torch.randn(2, 3, TEXT["hidden_size"], generator=torch.Generator().manual_seed(5))
SMALL = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
DTYPES = (torch.float32, torch.bfloat16)


def packed_names(model):
    return {name for name, module in model.named_modules() if isinstance(module, PackedLinear)}


def assert_close(found, expected):
    """Sums in another order: float32 here, 1e-5 of the largest value."""
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next"])
@pytest.mark.parametrize("variant", ["packed", "core"])
def test_shader_variants_generate_the_same(family, variant):
    twins = Twins(family, variant=variant, changes=SMALL)
    twins.assert_same(max_new_tokens=5)
    copies = twins.fused.model.layers[0].linear_attn.__dict__["_tmf_copies"]
    assert copies.in_proj.dim() == 1 and copies.out_proj.dim() == 1
    unfuse(twins.fused)
    assert "_tmf_copies" not in twins.fused.model.layers[0].linear_attn.__dict__


@torch.no_grad()
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next"])
def test_packed_copies_follow_the_weights(family):
    model = fuse(make(family, **SMALL), "core")
    layer = model.model.layers[0].linear_attn
    layer(X)
    for parameter in layer.parameters():
        parameter.mul_(1.25)
    assert_close(layer(X), type(layer).forward(layer, X))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linears(dtype):
    """All linears but the layer's own; the rest of the model does not notice."""
    original = make("qwen3_5", dtype, **SMALL)
    model = fuse(copy.deepcopy(original), linears=True)
    parts = [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    wanted = {f"model.layers.{i}.{part}" for i in (0, 1) for part in parts}
    wanted |= {f"model.layers.1.self_attn.{name}_proj" for name in "qkvo"} | {"lm_head"}
    assert packed_names(model) == wanted
    margin = {torch.float32: 1e-4, torch.bfloat16: 0.0625}[dtype]
    assert_same_tokens(
        generate(original, max_new_tokens=5), generate(model, max_new_tokens=5), margin
    )


def test_one_copy_of_the_weights_remains():
    model = make("qwen3_5", **SMALL)
    linear = model.model.layers[0].mlp.up_proj
    before = sum(p.untyped_storage().nbytes() for p in model.parameters())
    fuse(model, linears=True)
    assert sum(p.untyped_storage().nbytes() for p in model.parameters()) == before
    assert linear.weight.untyped_storage().nbytes() == 0


def test_unfuse_restores_modules_parameters_and_values():
    model = make("qwen3_5", **SMALL)
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    values = {name: t.clone() for name, t in model.state_dict().items()}
    unfuse(fuse(model, linears=True))
    assert dict(model.named_modules()) == modules and not fused_layers(model)
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(t, values[name]) for name, t in model.state_dict().items())


def test_state_dict_and_files_have_rows(tmp_path):
    model = make("qwen3_5", torch.bfloat16, **SMALL)
    values = {name: t.clone() for name, t in model.state_dict().items()}
    fuse(model, linears=True)
    found = model.state_dict()
    assert found.keys() == values.keys()
    assert all(torch.equal(found[name], t) for name, t in values.items())
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert all(torch.equal(t, values[name]) for name, t in loaded.state_dict().items())


@torch.no_grad()
def test_load_state_dict_packs_again():
    model = make("qwen3_5", **SMALL)
    other = {name: t * 1.5 for name, t in model.state_dict().items()}
    fuse(model, linears=True)
    model.load_state_dict(other)
    assert all(torch.equal(model.state_dict()[name], t) for name, t in other.items())
    with pytest.raises(RuntimeError, match="size mismatch for lm_head.weight"):
        model.load_state_dict({**other, "lm_head.weight": torch.zeros(3, 3)})
    del other["lm_head.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*lm_head\.weight"):
        model.load_state_dict(other)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*lm_head\.more"):
        model.load_state_dict({**model.state_dict(), "lm_head.more": torch.zeros(1)})


@torch.no_grad()
def test_dtype_and_deepcopy():
    model = make("qwen3_5", **SMALL)
    rows = model.lm_head.weight.to(torch.bfloat16)
    fuse(model, linears=True)
    twin = copy.deepcopy(model).to(torch.bfloat16)
    assert twin.lm_head.packed.dtype == torch.bfloat16
    assert torch.equal(twin.lm_head.weight, rows)
    assert model.lm_head.packed.dtype == torch.float32
    assert torch.equal(unfuse(twin).lm_head.weight, rows)
    assert packed_names(model) and not packed_names(twin)


def test_a_gradient_of_the_input_passes():
    linear = nn.Linear(64, 20, bias=False)
    x = torch.randn(3, 64, requires_grad=True)
    [expected] = torch.autograd.grad(linear(x).square().sum(), x)
    packed = PackedLinear(linear, "tiles16-apple")
    [found] = torch.autograd.grad(packed(x).square().sum(), x)
    assert_close(found, expected)


def test_tied_biased_and_narrow_linears_stay():
    model = make("qwen3_5", **SMALL, tie_word_embeddings=True, attention_bias=True)
    model.model.layers[0].mlp.extra = nn.Linear(40, 32, bias=False)
    model.tie_weights()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    fuse(model, linears=True)
    assert packed_names(model) == {
        f"model.layers.{i}.mlp.{name}_proj" for i in (0, 1) for name in ("gate", "up", "down")
    }
    with torch.no_grad():
        assert torch.isfinite(model(prompt()).logits).all()


def test_nothing_to_pack():
    layer = make("qwen3_5", **SMALL).model.layers[0].linear_attn
    with pytest.raises(ValueError, match="linears: the model has no linear that can be packed"):
        fuse(nn.ModuleList([layer]), linears=True)
    assert not fused_layers(layer)


def test_fused_again_keeps_or_returns_the_linears():
    model = fuse(make("qwen3_5", **SMALL), linears=True)
    names = packed_names(model)
    assert packed_names(fuse(model, "stock", linears=True)) == names
    assert packed_names(fuse(model)) == set()
