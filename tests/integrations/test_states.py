"""The cache of a fused model: its own tensors in place, and the numbers of the original's."""

import pytest
import torch
import transformers
from small_models import FAMILIES, TEXT, Twins

from torch_mps_fusion.integrations.transformers import FallbackWarning, fuse, unfuse

pytestmark = pytest.mark.filterwarnings(f"error::{FallbackWarning.__module__}.FallbackWarning")
WIDTH = TEXT["hidden_size"]


@pytest.fixture(scope="module", params=FAMILIES)
def twins(request):
    return Twins(request.param)


@pytest.fixture
def layers(twins):
    """The first GDN layer of the original and of the fused model."""
    return twins.original.model.layers[0].linear_attn, twins.fused.model.layers[0].linear_attn


def new_cache(twins):
    return transformers.DynamicCache(config=twins.original.config)


def tensors(cache):
    return cache.layers[0].conv_states[0], cache.layers[0].recurrent_states[0]


def make_x(tokens, batch=2, seed=5):
    return torch.randn(batch, tokens, WIDTH, generator=torch.Generator().manual_seed(seed))


def assert_close(found, expected):
    """Within 1e-5 of the expected tensor's scale: float32, and sums in another order."""
    error = (found - expected).square().mean().sqrt()
    assert error <= 1e-5 * expected.square().mean().sqrt()


def compare(layers, twins, calls):
    """Runs the calls (x, mask) on both layers and compares outputs and states after each."""
    caches = new_cache(twins), new_cache(twins)
    for x, mask in calls:
        with torch.no_grad():
            expected, found = (
                layer(x, cache, attention_mask=mask)
                for layer, cache in zip(layers, caches, strict=True)
            )
        assert_close(found, expected)
        for mine, theirs in zip(tensors(caches[1]), tensors(caches[0]), strict=True):
            assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
            assert_close(mine, theirs)


@torch.no_grad()
def test_the_caches_own_tensors_are_written(twins, layers):
    cache, layer = new_cache(twins), layers[1]
    layer(make_x(6), cache)
    own = tensors(cache)
    assert own[1].dtype == torch.float32 and own[0].shape[-1] == 4
    assert own[1].stride(2) == 1  # the order that the kernels make; transformers keeps it
    before = [t.clone() for t in own]
    places = [t.data_ptr() for t in own]
    for tokens in (1, 1, 3, 70, 1):
        layer(make_x(tokens), cache)
    assert [a is b for a, b in zip(tensors(cache), own, strict=True)] == [True, True]
    assert [t.data_ptr() for t in own] == places
    assert not any(torch.equal(a, b) for a, b in zip(own, before, strict=True))


def test_prefill_decode_continuation(twins, layers):
    compare(layers, twins, [(make_x(t, seed=t), None) for t in (5, 1, 1, 3, 66, 1)])


def test_prompt_shorter_than_the_convolution(twins, layers):
    compare(layers, twins, [(make_x(1), None), (make_x(2), None), (make_x(1), None)])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32], ids=str)
def test_left_padding(twins, layers, dtype):
    mask = torch.tensor([[0] * 5 + [1] * 7, [1] * 12]).to(dtype)
    compare(layers, twins, [(make_x(12), mask), (make_x(1), None)])


@pytest.mark.parametrize("rows", [[[1, 1, 0, 1]], [[0, 0, 0, 0]], [[1, 0, 0, 0]], [[0, 1, 1, 1]]])
def test_D2_pads_on_a_continuation_are_those_of_transformers(twins, layers, rows):
    """There a pad decays the state and convolves with what came before; the ops' own mask would
    pass it over. A fused model is to be the model that it was: the input is masked instead."""
    calls = [(make_x(6, 1), None), (make_x(4, 1), torch.tensor(rows)), (make_x(1, 1), None)]
    compare(layers, twins, calls)


def test_right_padding(twins, layers):
    mask = torch.tensor([[1] * 7 + [0] * 5, [1] * 12])
    compare(layers, twins, [(make_x(12), mask), (make_x(1), None)])


@torch.no_grad()
def test_both_forwards_take_turns_on_one_cache(twins, layers):
    caches = new_cache(twins), new_cache(twins)
    for i, tokens in enumerate((5, 1, 2, 1, 1, 70, 1)):
        x = make_x(tokens, seed=i)
        assert_close(layers[i % 2](x, caches[0]), layers[0](x, caches[1]))
    for mine, theirs in zip(tensors(caches[0]), tensors(caches[1]), strict=True):
        assert_close(mine, theirs)


@torch.no_grad()
def test_reset_starts_again_in_the_same_tensors(twins, layers):
    cache, layer = new_cache(twins), layers[1]
    first = layer(make_x(6), cache)
    own = tensors(cache)
    cache.reset()
    assert not cache.has_previous_state(0)
    own[0].fill_(3.0)  # without a previous state, what is there does not count
    own[1].fill_(3.0)
    assert torch.equal(layer(make_x(6), cache), first)
    assert [a is b for a, b in zip(tensors(cache), own, strict=True)] == [True, True]


@torch.no_grad()
def test_reordered_cache(twins, layers):
    """Beam search's index_select makes new tensors, in another order of the last two dims."""
    order = torch.tensor([1, 1, 0])
    caches = new_cache(twins), new_cache(twins)
    for layer, cache in zip(layers, caches, strict=True):
        layer(make_x(5, batch=3), cache)
        cache.layers[0].reorder_cache(order)
        layer(make_x(1, batch=3), cache)
    for mine, theirs in zip(tensors(caches[1]), tensors(caches[0]), strict=True):
        assert_close(mine, theirs)


@torch.no_grad()
def test_a_call_in_inference_mode(twins, layers):
    expected = layers[0](make_x(5))
    with torch.inference_mode():
        cache = new_cache(twins)
        assert_close(layers[1](make_x(5), cache).clone(), expected)
        layers[1](make_x(1), cache)


@torch.no_grad()
@pytest.mark.parametrize("name", ["cache", "cache_params"])
def test_both_names_of_the_cache(twins, layers, name):
    """transformers renamed the keyword in 5.23."""
    cache = new_cache(twins)
    layers[1](make_x(3), **{name: cache})
    assert cache.has_previous_state(0)
    with pytest.raises(TypeError, match="both cache and cache_params"):
        layers[1](make_x(3), cache=cache, cache_params=cache)


@torch.no_grad()
def test_fused_in_the_middle_of_a_sequence():
    twins = Twins("qwen3_5")
    model, caches = twins.original, (new_cache(twins), new_cache(twins))
    layer = model.model.layers[0].linear_attn
    x = [make_x(t, seed=t) for t in (5, 1, 3)]
    expected = [layer(part, caches[0]) for part in x]
    assert_close(layer(x[0], caches[1]), expected[0])
    fuse(model)
    assert_close(layer(x[1], caches[1]), expected[1])
    unfuse(model)
    assert_close(layer(x[2], caches[1]), expected[2])
