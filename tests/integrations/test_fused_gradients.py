"""Training a fused model: its gradients are the unfused model's, within the tolerance table."""

import copy
import warnings

import pytest
import torch
from small_models import (
    CACHE,
    TEXT,
    assert_close_gradients,
    gradients,
    layer_of,
    make,
    new_cache,
    original,
    prompt,
)

from torch_mps_fusion.integrations.gdn_operands import ROWS, copies_needed
from torch_mps_fusion.integrations.transformers import FallbackWarning, fuse

pytestmark = pytest.mark.filterwarnings(f"error::{FallbackWarning.__module__}.FallbackWarning")
X = torch.randn(2, 70, TEXT["hidden_size"], generator=torch.Generator().manual_seed(5))


def test_every_gradient_of_a_model_is_the_unfused_models(model):
    """In training mode, with the cache that transformers makes by default."""
    expected = gradients(model)
    found = gradients(fuse(model))
    assert_close_gradients(found, expected)
    name = "model.layers.0.linear_attn.out_proj.weight"
    assert not torch.equal(found[name], expected[name])  # ours did run


def test_left_padding(model):
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[0, :4] = 0
    expected = gradients(model, 9, attention_mask=mask)
    assert_close_gradients(gradients(fuse(model), 9, attention_mask=mask), expected)


def layer_gradients(run, layer, x):
    x = x.clone().requires_grad_()
    layer.zero_grad()
    output = run(x)
    output.float().square().sum().backward()
    return {"x": x.grad, **{name: p.grad.clone() for name, p in layer.named_parameters()}}


@pytest.mark.parametrize("family", ("qwen3_5", "qwen3_next"))
def test_bfloat16_layer(family):
    layer = layer_of(fuse(make(family, torch.bfloat16)))
    x = X.bfloat16()
    expected = layer_gradients(lambda x: original(layer, x), layer, x)
    assert_close_gradients(layer_gradients(layer, layer, x), expected, torch.bfloat16)


def test_gradient_checkpointing():
    """A layer computed again in the backward pass gives the same bits."""
    model = make("qwen3_next")
    expected = gradients(fuse(model), 9, use_cache=False)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    found = gradients(model, 9, use_cache=False)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_one_graph_with_gradients():
    layer = layer_of(fuse(make("qwen3_next")))
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = X[:, :9]
    expected = layer_gradients(layer, layer, x)
    found = layer_gradients(compiled, layer, x)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_reordered_copy_is_not_kept_while_training():
    layer = layer_of(fuse(make("qwen3_next")))
    with torch.no_grad():
        layer(X)
    assert "_tmf_copies" in layer.__dict__
    layer(X).sum().backward()
    assert "_tmf_copies" not in layer.__dict__


# ----------------------------------------------------------------------------------------- caches


def test_a_fresh_cache_holds_the_states_and_generation_goes_on(model):
    fuse(model)
    caches = [new_cache(model), new_cache(model)]
    model(prompt(), **{CACHE: caches[0]})
    with torch.no_grad():
        model(prompt(), **{CACHE: caches[1]})
        ours, theirs = (
            model(prompt(tokens=1), **{CACHE: cache}).logits for cache in caches
        )  # in place, on tensors that came out of a graph
    # Bit for bit but for Qwen3-Next: where a gradient may flow its reordered rows are four products
    # of aten's instead of one, which some processors' libraries compute in another order.
    copied = copies_needed(layer_of(model), ROWS)
    exact = {} if copied else {"rtol": 0, "atol": 0}
    mine, other = (cache.layers[0] for cache in caches)
    torch.testing.assert_close(ours, theirs, **exact)
    torch.testing.assert_close(mine.recurrent_states[0], other.recurrent_states[0], **exact)
    torch.testing.assert_close(mine.conv_states[0], other.conv_states[0], **exact)


def test_a_cache_with_a_past_is_the_originals(model):
    fuse(model)
    layer, cache = layer_of(model), new_cache(model)
    with torch.no_grad():
        layer(X, cache)
    twin = copy.deepcopy(cache)
    with pytest.warns(FallbackWarning, match="a gradient may be needed through the cache's states"):
        found = layer(X[:, :3], cache)
    assert torch.equal(found, original(layer, X[:, :3], twin))


def test_states_with_a_graph_are_the_originals_where_gradients_are_on(model):
    fuse(model)
    layer, cache = layer_of(model), new_cache(model)
    layer(X, cache)
    model.requires_grad_(False)
    with pytest.warns(FallbackWarning, match="through the cache's states"):
        assert layer(X[:, :1], cache).requires_grad


# ---------------------------------------------------------------------------------- packed weights

FROZEN = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")


def test_packed_projections_that_are_frozen():
    """The shader variants: gradients of all but the packed weights."""
    layer = layer_of(fuse(make("qwen3_5"), "core"))
    for name in FROZEN:
        getattr(layer, name).requires_grad_(False)
    x = X[:, :3]

    def found(run):
        leaf = x.clone().requires_grad_()
        layer.zero_grad()
        run(leaf).square().sum().backward()
        trained = {n: p.grad.clone() for n, p in layer.named_parameters() if p.requires_grad}
        return {"x": leaf.grad, **trained}

    assert_close_gradients(found(layer), found(lambda x: original(layer, x)))


def test_packed_projections_that_need_a_gradient_are_the_originals():
    layer = layer_of(fuse(make("qwen3_5"), "core"))
    x = X[:, :3]
    with pytest.warns(FallbackWarning, match="in_proj_qkv may need a gradient, which packed"):
        found = layer_gradients(layer, layer, x)
    expected = layer_gradients(lambda x: original(layer, x), layer, x)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_autocast_is_still_the_originals():
    layer = layer_of(fuse(make("qwen3_5").train()))
    with warnings.catch_warnings(record=True) as caught, torch.autocast("cpu", torch.bfloat16):
        warnings.simplefilter("always")
        found, expected = layer(X), original(layer, X)
    assert torch.equal(found, expected)
    assert any("autocast is on" in str(w.message) for w in caught)
