"""A fused model generates the tokens of the model as it was."""

import time

import pytest
import torch
import transformers
from small_models import CACHE, FAMILIES, Twins, assert_same_tokens, generate, prompt

from benchmarks.commands.generate import generate as generate_tokens
from benchmarks.commands.generate import make_models
from torch_mps_fusion.integrations.transformers import FallbackWarning, fused_layers

DTYPES = (torch.float32, torch.bfloat16)
pytestmark = pytest.mark.filterwarnings(f"error::{FallbackWarning.__module__}.FallbackWarning")


@pytest.fixture(scope="module", params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.fixture(scope="module", params=FAMILIES)
def twins(request, dtype):
    return Twins(request.param, dtype)


@pytest.fixture(scope="module", params=FAMILIES)
def float_twins(request):
    """For what a rounding decides: scores of beams, the place of a sample."""
    return Twins(request.param)


def left_padded(batch=2, pads=(5, 0)):
    ids = prompt(batch)
    mask = torch.ones_like(ids)
    for row, count in zip(range(batch), pads, strict=True):
        mask[row, :count] = 0
        ids[row, :count] = 0
    return {"input_ids": ids, "attention_mask": mask}


def test_every_layer_is_fused(twins):
    assert len(fused_layers(twins.fused)) == 3 and not fused_layers(twins.original)


@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy(twins, use_cache):
    output = twins.assert_same(use_cache=use_cache)
    assert len(output.sequences[0].unique()) > 8  # a loop of a few tokens would prove little


@pytest.mark.parametrize("tokens", [1, 2, 3, 70])
def test_length_of_the_prompt(twins, tokens):
    twins.assert_same(input_ids=prompt(tokens=tokens), max_new_tokens=8)


@pytest.mark.parametrize("use_cache", [True, False])
def test_left_padded_batch(twins, use_cache):
    twins.assert_same(**left_padded(), use_cache=use_cache, max_new_tokens=12)


@pytest.mark.parametrize("pads", [1, 2, 3, 4, 5])
def test_left_padded_single_row(twins, pads):
    twins.assert_same(**left_padded(1, (pads,)), max_new_tokens=8)


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("padded", [False, True])
def test_chunked_prefill(twins, chunk, padded):
    given = left_padded() if padded else {}
    twins.assert_same(**given, prefill_chunk_size=chunk, max_new_tokens=8)


def test_continued_generation(twins):
    """A second turn on the cache of the first: several tokens at once on a state."""
    outputs = []
    for model in (twins.original, twins.fused):
        cache = transformers.DynamicCache(config=model.config)
        first = generate(model, **{CACHE: cache}, max_new_tokens=5)
        # The same text in both, whatever a tie made of the first turn.
        text = torch.cat([prompt(), prompt(tokens=9, seed=2)], dim=1)
        assert cache.get_seq_length() == first.sequences.shape[1] - 1 < text.shape[1]
        outputs.append(generate(model, input_ids=text, **{CACHE: cache}, max_new_tokens=8))
    assert_same_tokens(*outputs, twins.margin)


def test_static_cache(twins):
    twins.assert_same(cache_implementation="static", max_new_tokens=12)


def test_static_cache_used_again_after_reset(twins):
    outputs = []
    for model in (twins.original, twins.fused):
        cache = transformers.StaticCache(config=model.config, max_cache_len=48)
        generate(model, input_ids=prompt(seed=3), **{CACHE: cache}, max_new_tokens=6)
        cache.reset()
        outputs.append(generate(model, **{CACHE: cache}, max_new_tokens=12))
    assert_same_tokens(*outputs, twins.margin)


@pytest.mark.parametrize("padded", [False, True])
def test_beam_search(float_twins, padded):
    """Beams reorder the cache at each step."""
    given = left_padded() if padded else {}
    original, fused = float_twins.generate(
        **given, num_beams=3, num_return_sequences=2, max_new_tokens=12
    )
    assert torch.equal(original.sequences, fused.sequences)


def test_sampling(float_twins):
    outputs = []
    for model in (float_twins.original, float_twins.fused):
        torch.manual_seed(7)
        outputs.append(generate(model, do_sample=True, temperature=0.8, max_new_tokens=16))
    assert torch.equal(outputs[0].sequences, outputs[1].sequences)


def test_scores_of_a_whole_text(twins, dtype):
    """Without a cache, as one scores a text."""
    ids = prompt(tokens=130)
    with torch.no_grad():
        expected = twins.original(ids, use_cache=False).logits
        found = twins.fused(ids, use_cache=False).logits
    difference = (found.float() - expected.float()).square().mean().sqrt()
    scale = expected.float().square().mean().sqrt()
    assert difference <= scale * (1e-5 if dtype == torch.float32 else 2e-2)


def test_generation_is_faster_fused():
    """The model of `python -m benchmarks generate`, whose receipts say by how much; here less is
    asked for, of short generations in turns on a machine that does other work."""
    models = make_models(torch.float32, "auto")
    times = {name: [] for name in models}
    with torch.no_grad():
        for _ in range(3):
            for name, model in models.items():
                begin = time.perf_counter()
                generate_tokens(model, prompt(tokens=40), new=12)
                times[name].append(time.perf_counter() - begin)
    ratio = min(times["original"]) / min(times["fused"])
    assert ratio > 1.25, times
