"""Where the op does not serve, the original forward runs, and one warning says why."""

import inspect
import warnings

import pytest
import torch
import transformers
from small_models import TEXT, layer_of, make, new_cache, original
from torch import nn
from transformers.loss.loss_utils import ForCausalLMLoss

from torch_mps_fusion.integrations.transformers import FallbackWarning, fuse, fused_layers

WIDTH = TEXT["hidden_size"]
X = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(5))


def fallbacks(caught):
    return [str(w.message) for w in caught if issubclass(w.category, FallbackWarning)]


def assert_original(model, call, reason):
    """``call(forward)`` gives the original's bits, and warns once in two calls of two layers."""
    fuse(model)
    layers = [model.model.layers[i].linear_attn for i in (0, 1)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for layer in layers:
            for _ in range(2):
                found = call(layer, layer)
                expected = call(layer, lambda *a, _layer=layer, **k: original(_layer, *a, **k))
                assert torch.equal(found, expected)
    messages = fallbacks(caught)
    assert len(messages) == 1, messages
    assert (
        messages[0].startswith("layer 0 runs transformers' own forward") and reason in messages[0]
    )


def test_no_gradient_needed_with_gradients_on(model):
    layer = layer_of(fuse(model.requires_grad_(False)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        assert torch.isfinite(layer(X)).all()


@torch.no_grad()
def test_autocast(model):
    def call(layer, run):
        with torch.autocast("cpu", torch.bfloat16):
            return run(X)

    assert_original(model, call, "autocast")


@torch.no_grad()
@pytest.mark.parametrize("keyword", ["cu_seq_lens_q", "seq_idx"])
def test_F1_packed_sequences_are_not_ours(model, keyword):
    """The original runs: newer releases refuse them without their own packages, older
    ones took no notice. Either way there is a warning, and what it does is what we do."""
    value = torch.tensor([0, 2, 5]) if keyword == "cu_seq_lens_q" else torch.zeros(2, 5).int()
    layer = layer_of(fuse(model))

    def result(run):
        try:
            return run(X, **{keyword: value})
        except ValueError as error:
            return str(error)

    expected = result(lambda *args, **keywords: original(layer, *args, **keywords))
    with pytest.warns(FallbackWarning, match=keyword):
        found = result(layer)
    if isinstance(expected, str):
        assert "packed sequences" in expected and found == expected
    else:
        assert torch.equal(found, expected)


@torch.no_grad()
def test_F2_an_unknown_keyword(model):
    assert_original(
        model, lambda layer, run: run(X, something=1), "the keyword something is not supported"
    )


@torch.no_grad()
def test_keywords_of_the_loss_are_not_the_layers(model):
    """They pass through every layer on their way: a Trainer gives some with each batch."""
    ids = torch.arange(2, 14).reshape(2, 6)
    values = {
        "num_items_in_batch": torch.tensor(7),
        "ignore_index": 5,
        "shift_labels": ids.roll(-1, 1),
    }
    taken = inspect.signature(ForCausalLMLoss).parameters.keys() - {"logits", "labels"}
    given = {name: values[name] for name in taken - {"vocab_size", "kwargs"}}
    expected = model(ids, labels=ids, **given)
    assert (expected.loss - model(ids, labels=ids).loss).abs() > 0.1
    fuse(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        found = model(ids, labels=ids, **given)
    # Sums of float32 in another order: ours did run.
    assert not torch.equal(found.logits, expected.logits)
    torch.testing.assert_close(found.loss, expected.loss)


@torch.no_grad()
def test_a_cache_that_records_the_past(model):
    def call(layer, run):
        cache = new_cache(model)
        cache.activate_past_recording()
        run(X, cache)
        output = run(X[:, :2], cache)
        state = cache.layers[layer.layer_idx]
        assert state.conv_states[0].shape[-1] == 7
        state.crop(-1)
        return output

    assert_original(model, call, "records the past")


class OwnLayer(transformers.cache_utils.LinearAttentionLayer):
    """Another rule for the convolution's state."""

    def update_conv_state(self, *args, **keywords):
        self.calls = getattr(self, "calls", 0) + 1
        return super().update_conv_state(*args, **keywords)


class OwnCache(transformers.DynamicCache):
    def update_recurrent_state(self, *args, **keywords):
        return super().update_recurrent_state(*args, **keywords)


@torch.no_grad()
def test_a_cache_layer_with_its_own_update(model):
    def call(layer, run):
        cache = new_cache(model)
        cache.layers[layer.layer_idx] = OwnLayer()
        output = run(X, cache)
        assert cache.layers[layer.layer_idx].calls == 1
        return output

    assert_original(model, call, "in a OwnLayer")


@torch.no_grad()
def test_a_cache_with_its_own_update(model):
    assert_original(
        model,
        lambda layer, run: run(X, OwnCache(config=model.config)),
        "the cache is a OwnCache",
    )


@torch.no_grad()
def test_E4_a_cache_of_another_state_dtype(model):
    def call(layer, run):
        cache = new_cache(model)
        original(layer, X, cache)
        state = cache.layers[layer.layer_idx]
        state.recurrent_states[0] = state.recurrent_states[0].to(torch.float16)
        return run(X[:, :1], cache)

    assert_original(model, call, "torch.float16")


@torch.no_grad()
def test_another_batch_than_the_cache_holds(model):
    layer, cache = layer_of(fuse(model)), new_cache(model)
    layer(X, cache)
    with pytest.warns(FallbackWarning, match="another shape"), pytest.raises(RuntimeError):
        layer(X[:1], cache)


@torch.no_grad()
def test_a_dtype_that_nothing_here_runs(model):
    fuse(model).double()
    with pytest.warns(FallbackWarning, match="dtype float64 is not supported"):
        found = layer_of(model)(X.double())
    assert torch.equal(found, original(layer_of(model), X.double()))


class Adapter(nn.Module):
    """What an adapter library puts in the place of a linear: it has a weight, and adds to it."""

    def __init__(self, base):
        super().__init__()
        self.base, self.bias = base, None
        self.down = nn.Parameter(torch.randn(2, base.in_features))
        self.up = nn.Parameter(torch.randn(base.out_features, 2))

    @property
    def weight(self):
        return self.base.weight

    def forward(self, x):
        return self.base(x) + x @ self.down.t() @ self.up.t()


@torch.no_grad()
def test_an_adapter_put_in_after_fusing(model):
    fuse(model)
    layer = layer_of(model)
    before = layer(X)
    layer.out_proj = Adapter(layer.out_proj)
    with pytest.warns(FallbackWarning, match="out_proj is a Adapter"):
        found = layer(X)
    assert torch.equal(found, original(layer, X)) and not torch.allclose(found, before)


@torch.no_grad()
@pytest.mark.parametrize("child", ["out_proj", "conv1d", "norm"])
def test_a_hook_on_a_child(model, child):
    fuse(model)
    layer, seen = layer_of(model), []
    hook = lambda module, args, output: seen.append(output)  # noqa: E731
    getattr(layer, child).register_forward_hook(hook)
    with pytest.warns(FallbackWarning, match=f"{child} is .* with hooks"):
        layer(X)
    # The convolution's weight is used, never its forward: a hook there is not called either way.
    assert len(seen) == (child != "conv1d")


@torch.no_grad()
def test_one_warning_a_model_and_reason():
    models = [fuse(make("qwen3_5")) for _ in range(2)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for model in models:
            for reason in ("one", "two"):
                layer_of(model)(X, **{reason: 1})
                layer_of(model)(X, **{reason: 1})
    assert len(fallbacks(caught)) == 4


# ------------------------------------------------------------------------------- refused at once


def test_unknown_variant(model):
    with pytest.raises(ValueError, match="variant: got 'fast'; accepted: auto, stock, native"):
        fuse(model, "fast")
    assert not fused_layers(model)


def test_a_variant_that_does_not_run_here():
    model = make("qwen3_5", linear_key_head_dim=48)
    with pytest.raises(NotImplementedError, match=r"model\.layers\.0\.linear_attn: .*mega"):
        fuse(model, "mega")
    assert not fused_layers(model)


def test_sizes_that_the_variant_has_no_kernel_for():
    model = make("qwen3_5", linear_key_head_dim=48)
    with pytest.raises(NotImplementedError, match="head_k_dim 48"):
        fuse(model, "native")
    assert len(fused_layers(fuse(model))) == 3  # auto takes stock for these


def test_a_dtype_at_fuse(model):
    with pytest.raises(NotImplementedError, match="float64"):
        fuse(model.double())


@pytest.mark.parametrize("arguments", [("model",), (None,)])
def test_not_a_module(arguments):
    with pytest.raises(TypeError, match="model: got .*; accepted: a torch.nn.Module"):
        fuse(*arguments)


def test_linears_must_be_a_bool(model):
    with pytest.raises(TypeError, match="linears: got 'all'"):
        fuse(model, linears="all")


def test_a_model_without_such_layers():
    with pytest.raises(ValueError, match="no Gated DeltaNet layer in Sequential: it has none"):
        fuse(nn.Sequential(nn.Linear(4, 4)))


def test_a_class_of_another_kind():
    class MyGatedDeltaNet(nn.Module):
        pass

    with pytest.raises(ValueError, match="its MyGatedDeltaNet is none of these"):
        fuse(nn.Sequential(MyGatedDeltaNet()))


def test_another_activation():
    with pytest.raises(ValueError, match="an activation other than silu"):
        fuse(make("qwen3_5", hidden_act="gelu"))


def test_an_adapter_at_fuse(model):
    layer = layer_of(model)
    layer.out_proj = Adapter(layer.out_proj)
    with pytest.raises(ValueError, match="out_proj is a Adapter"):
        fuse(model)


def test_a_forward_replaced_by_others(model):
    layer = layer_of(model)
    layer.forward = lambda *args, **keywords: None
    with pytest.raises(ValueError, match="forward has been replaced already"):
        fuse(model)
