"""A fused model compiles where the model as it was does, in one graph."""

import warnings

import pytest
import torch
import transformers
from small_models import CACHE, FAMILIES, Twins, prompt

from torch_mps_fusion.integrations.transformers import FallbackWarning

# One GDN layer and one of attention: compiling is slow, and layers do not differ.
SMALL = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}


@pytest.fixture(scope="module", params=FAMILIES)
def twins(request):
    return Twins(request.param, changes=SMALL)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run_calls(run, model):
    """Prefill, decode and continuation; the logits of each, and the cache."""
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        calls = [prompt(), prompt(tokens=1), prompt(tokens=3)]
        return [run(ids, **{CACHE: cache}).logits.clone() for ids in calls], cache


def test_one_graph_and_the_caches_own_tensors(twins):
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        run = torch.compile(twins.fused, backend="aot_eager", fullgraph=True)
        found, cache = run_calls(run, twins.fused)
    expected, theirs = run_calls(twins.original, twins.original)
    for mine, other in zip(found, expected, strict=True):
        assert (mine - other).abs().max() <= 2e-5 * other.abs().max()
    ours, original = cache.layers[0], theirs.layers[0]
    assert torch.allclose(ours.recurrent_states[0], original.recurrent_states[0], atol=1e-5)
    assert torch.allclose(ours.conv_states[0], original.conv_states[0], atol=1e-5)


def test_ops_in_the_graph(twins):
    """A layer is one op; no rule, convolution or norm of theirs is left."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    run = torch.compile(twins.fused, backend=backend, fullgraph=True)
    cache = transformers.DynamicCache(config=twins.fused.config)
    with torch.no_grad():
        run(prompt(), **{CACHE: cache})
    nodes = [node for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
    called = [str(node.target) for node in nodes]
    assert sum("gdn_layer_" in name for name in called) == 1
    assert not any("conv1d" in name or "solve_triangular" in name for name in called)


def test_a_fallback_is_said_while_tracing():
    layer = Twins("qwen3_5", changes=SMALL).fused.model.layers[0].linear_attn
    x = torch.randn(1, 2, 64)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        run = torch.compile(layer, backend="eager", fullgraph=True)
        found = [run(x, something=1), run(x, something=1)]
    messages = [str(w.message) for w in caught if w.category is FallbackWarning]
    assert len(messages) == 1 and "the keyword something" in messages[0]
    with torch.no_grad():
        assert torch.equal(found[1], type(layer).forward(layer, x))
