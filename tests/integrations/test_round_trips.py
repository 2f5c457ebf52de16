"""fuse, unfuse, copies, files, and weights that change under a fused model."""

import copy
import pickle

import pytest
import torch
from small_models import TEXT, generate, layer_of, make, original

from torch_mps_fusion.integrations.transformers import (
    FallbackWarning,
    fuse,
    fused_layers,
    unfuse,
)

pytestmark = pytest.mark.filterwarnings(f"error::{FallbackWarning.__module__}.FallbackWarning")
X = torch.randn(2, 5, TEXT["hidden_size"], generator=torch.Generator().manual_seed(5))


def check_fused(model):
    """The fused layer runs on the weights that the model has now."""
    layer = layer_of(model)
    assert "forward" in layer.__dict__
    with torch.no_grad():
        found, expected = layer(X), original(layer, X)
    assert not torch.equal(found, expected)  # float32 sums in another order: ours did run
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_the_model_itself_is_returned(model):
    assert fuse(model) is model and unfuse(model) is model


def test_fusing_changes_no_parameter(model):
    before = dict(model.named_parameters())
    places = {name: p.data_ptr() for name, p in before.items()}
    keys, modules = list(model.state_dict()), [name for name, _ in model.named_modules()]
    fuse(model)
    check_fused(model)
    assert list(model.state_dict()) == keys
    assert [name for name, _ in model.named_modules()] == modules
    after = dict(model.named_parameters())
    assert all(after[name] is p and p.data_ptr() == places[name] for name, p in before.items())


def test_unfuse_leaves_nothing_behind(model):
    keys = [set(module.__dict__) for module in model.modules()]
    expected = generate(model).sequences
    fuse(model)
    generate(model)
    unfuse(model)
    assert [set(module.__dict__) for module in model.modules()] == keys
    assert not fused_layers(model)
    assert torch.equal(generate(model).sequences, expected)
    with torch.no_grad():
        assert torch.equal(layer_of(model)(X), original(layer_of(model), X))


def test_unfuse_of_a_model_that_is_not_fused(model):
    assert torch.equal(generate(unfuse(model)).sequences, generate(model).sequences)


def test_fused_again_with_another_variant(model):
    fuse(fuse(model), "stock")
    assert len(fused_layers(model)) == 3
    check_fused(model)
    unfuse(model)
    assert not fused_layers(model)


def test_deepcopy_is_fused_and_independent(model):
    fuse(model)
    check_fused(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        expected = layer_of(model)(X)
        for parameter in layer_of(twin).parameters():
            parameter.mul_(1.25)
    check_fused(twin)
    with torch.no_grad():
        assert torch.equal(layer_of(model)(X), expected)
        assert not torch.allclose(layer_of(twin)(X), expected)
    unfuse(twin)
    assert len(fused_layers(model)) == 3 and not fused_layers(twin)


def test_save_and_load(model, tmp_path):
    expected = generate(model).sequences
    fuse(model).save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.float32)
    assert not fused_layers(loaded)
    weights = model.state_dict()
    assert all(torch.equal(weights[name], t) for name, t in loaded.state_dict().items())
    assert torch.equal(generate(fuse(loaded)).sequences, expected)


def test_pickle_gives_the_model_unfused(model):
    """A pickled module keeps no forward of ours: fuse after loading."""
    try:
        pickle.dumps(model)
    except AttributeError as error:
        pytest.skip(f"with the package kernels, models of transformers do not pickle: {error}")
    fuse(model)
    generate(model, max_new_tokens=2)
    loaded = unfuse(pickle.loads(pickle.dumps(model)))
    with torch.no_grad():
        assert torch.equal(layer_of(loaded)(X), original(layer_of(model), X))


# ------------------------------------------------------------------------ weights that change


@torch.no_grad()
@pytest.mark.parametrize("name", ["in_proj", "out_proj", "conv1d", "A_log", "dt_bias", "norm"])
def test_a_weight_written_in_place_is_seen(model, name):
    fuse(model)
    check_fused(model)
    before = layer_of(model)(X)
    for key, parameter in layer_of(model).named_parameters():
        if key.startswith(name):
            parameter.mul_(1.25)
    check_fused(model)
    assert not torch.allclose(layer_of(model)(X), before, rtol=1e-3)


@torch.no_grad()
def test_a_parameter_replaced_is_seen(model):
    fuse(model)
    check_fused(model)
    for module in layer_of(model).children():
        module.weight = torch.nn.Parameter(module.weight * 1.25)
    check_fused(model)


@torch.no_grad()
def test_load_state_dict_and_dtype(model):
    other = {name: t * 1.1 for name, t in copy.deepcopy(model).state_dict().items()}
    fuse(model)
    check_fused(model)
    model.load_state_dict(other)
    check_fused(model)
    model.to(torch.bfloat16)
    expected = original(layer_of(model), X.bfloat16()).float()
    found = layer_of(model)(X.bfloat16()).float()
    assert (found - expected).square().mean() <= 4e-4 * expected.square().mean()


@torch.no_grad()
def test_a_training_step_between_two_generations(model):
    """The optimiser's steps are seen, also by the reordered copy of grouped projections."""
    fuse(model)
    check_fused(model)
    with torch.enable_grad():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        layer_of(model)(X).square().sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    check_fused(model)


def test_grouped_projections_keep_one_copy():
    """Qwen3-Next: the input projections once more, in the op's order; freed by unfuse."""
    model = make("qwen3_next")
    layer = layer_of(fuse(model))
    assert "_tmf_copies" not in layer.__dict__
    check_fused(model)
    copies = layer.__dict__["_tmf_copies"]
    rows = layer.in_proj_qkvz.weight.numel() + layer.in_proj_ba.weight.numel()
    assert copies.in_proj.numel() == rows and copies.out_proj is None
    check_fused(model)
    assert layer.__dict__["_tmf_copies"] is copies
    unfuse(model)
    assert "_tmf_copies" not in layer.__dict__


@torch.inference_mode()
def test_grouped_projections_made_in_inference_mode():
    """Their changes leave no trace, so that a copy could be stale: the original runs."""
    model = make("qwen3_next")
    fuse(model)
    with pytest.warns(FallbackWarning, match="inference tensors"):
        assert torch.equal(layer_of(model)(X), original(layer_of(model), X))
    check_fused(fuse(make("qwen3_5")))  # which needs no copy
