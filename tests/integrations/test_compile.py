"""A fused model compiles where the model as it was does, in one graph."""

import warnings

import pytest
import torch
import transformers
from small_models import FAMILIES, Twins, prompt

from torch_mps_fusion.integrations.transformers import FallbackWarning


@pytest.fixture(scope="module", params=FAMILIES)
def twins(request):
    return Twins(request.param)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled_run(model, mask=None):
    """Prefill, decode and continuation; the logits of each."""
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        calls = [(prompt(), mask), (prompt(tokens=1), None), (prompt(tokens=3), None)]
        logits = [run(ids, cache=cache, attention_mask=m).logits.clone() for ids, m in calls]
    return logits, cache


def test_one_graph_and_the_caches_own_tensors(twins):
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        found, cache = compiled_run(twins.fused)
    expected, theirs = compiled_run(twins.original)
    for mine, other in zip(found, expected, strict=True):
        assert (mine - other).abs().max() <= 2e-5 * other.abs().max()
    ours, original = cache.layers[0], theirs.layers[0]
    assert torch.allclose(ours.recurrent_states[0], original.recurrent_states[0], atol=1e-5)
    assert torch.allclose(ours.conv_states[0], original.conv_states[0], atol=1e-5)


def test_ops_in_the_graph(twins):
    """Three layers are three ops; no rule, convolution or norm of theirs is left."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    run = torch.compile(twins.fused, backend=backend, fullgraph=True)
    cache = transformers.DynamicCache(config=twins.fused.config)
    with torch.no_grad():
        run(prompt(), cache=cache)
    called = [str(node.target) for graph in graphs for node in graph.graph.nodes]
    assert sum("gdn_layer_" in name for name in called) == 3
    assert not any("conv1d" in name or "solve_triangular" in name for name in called)


def test_a_fallback_is_said_while_tracing(twins):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        twins.fused.train()
        try:
            compiled_run(twins.fused)
        finally:
            twins.fused.eval()
    messages = [str(w.message) for w in caught if w.category is FallbackWarning]
    assert len(messages) == 1 and "training mode" in messages[0]
