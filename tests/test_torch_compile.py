"""torch.compile and torch.export: one graph for any length, states in place without copies."""

import threading

import pytest
import torch
from cases import SMALL, make_hidden, make_layer, make_states, pack_layer
from compiling import Inductor, counted
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from torch_mps_fusion import ops as functions
from torch_mps_fusion import packing
from torch_mps_fusion.models import GatedDeltaNet, GDNConfig

ops = torch.ops.mps_fusion
F32 = torch.float32
# The first sizes of a test differ from each other and from all dims of the layer: equal sizes would
# be traced as one.
LAYER = make_layer(SMALL, F32, input_norm=True)
WEIGHT = torch.randn(48, 96)
PACKED = [packing.pack(WEIGHT, "tiles16-apple")]
FUNCTIONAL = ("layer", "rule", "conv", "linear")
IN_PLACE = ("layer_", "rule_", "conv_")


def layer(x, conv, recurrent):
    norm = LAYER.input_norm_weight
    return ops.gdn_layer(x, *LAYER.weights, norm, conv, recurrent, **LAYER.keywords)


def layer_(x, conv, recurrent):
    return ops.gdn_layer_(x, conv, recurrent, *LAYER.weights, None, **LAYER.keywords)


def rule(q, k, v, g, beta, state):
    return ops.gated_delta_rule(q, k, v, g, beta, state, head_map="block", qk_l2norm=True)


def rule_(q, k, v, g, beta, state):
    return ops.gated_delta_rule_(q, k, v, g, beta, state, head_map="block", qk_l2norm=True)


def conv(x, state):
    return ops.causal_conv1d(x, LAYER.conv_weight, state, activation="silu")


def conv_(x, state):
    return ops.causal_conv1d_(x, state, LAYER.conv_weight, activation="silu")


def linear(x):
    return ops.packed_linear(x, PACKED, out_features=48, weight_format="tiles16-apple")


CALLS = {f.__name__: f for f in (layer, layer_, rule, rule_, conv, conv_, linear)}


def inputs(name, batch=2, tokens=3):
    """Arguments of the function of that name; the states stand last."""
    generator = torch.Generator().manual_seed(batch * 1000 + tokens)

    def normal(*size):
        return torch.randn(*size, generator=generator)

    hidden, states = make_hidden(SMALL, batch, tokens, F32), make_states(SMALL, batch, F32)
    if name.startswith("layer"):
        return hidden, *states
    if name.startswith("rule"):
        q, k, v = (normal(batch, tokens, heads, 32) for heads in (2, 2, 4))
        gates = -normal(batch, tokens, 4).abs(), normal(batch, tokens, 4).sigmoid()
        return q, k, v, *gates, states[1]
    if name.startswith("conv"):
        return normal(batch, SMALL.conv_dim, tokens), states[0]
    return (hidden,)


def flat(results):
    return results if isinstance(results, tuple | list) else (results,)


def assert_same(function, compiled, arguments):
    """Results and what became of the arguments, bit for bit."""
    copies = [t.clone() for t in arguments]
    expected, found = flat(function(*copies)), flat(compiled(*arguments))
    for a, b in zip((*expected, *copies), (*found, *arguments), strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()


# ------------------------------------------------------------------------------ one graph


@pytest.mark.parametrize("name", CALLS)
def test_one_graph_for_all_lengths_and_batches(name):
    compiled, counter = counted(CALLS[name], dynamic=True)
    for batch, tokens in [(3, 5), (5, 2), (2, 7), (4, 33), (2, 65), (5, 130)]:
        assert_same(CALLS[name], compiled, inputs(name, batch, tokens))
    assert counter.frame_count == 1


def test_one_graph_without_states_and_with_a_mask():
    def function(x, mask):
        return ops.gdn_layer(x, *LAYER.weights, mask=mask, **LAYER.keywords)

    compiled, counter = counted(function, dynamic=True)
    for batch, tokens in [(3, 5), (5, 9), (2, 70)]:
        mask = torch.rand(batch, tokens) > 0.3
        assert_same(function, compiled, (make_hidden(SMALL, batch, tokens, F32), mask))
    assert counter.frame_count == 1


@pytest.mark.parametrize("variant", ("packed", "core"))
def test_shader_variants_compile(variant):
    packed = pack_layer(LAYER)
    keywords = {**packed.keywords, "variant": variant}

    def function(x, conv, recurrent):
        return ops.gdn_layer_(x, conv, recurrent, *packed.weights, **keywords)

    compiled, counter = counted(function, dynamic=True)
    for batch, tokens in [(3, 5), (2, 3)]:
        assert_same(function, compiled, inputs("layer_", batch, tokens))
    assert counter.frame_count == 1


def test_the_module_compiles_with_its_state():
    config = GDNConfig(
        hidden_size=96, num_k_heads=2, num_v_heads=4, head_k_dim=32, head_v_dim=32,
        conv_kernel_size=4, rms_norm_eps=1e-6, model_type="qwen3_5",
        layer_types=("linear_attention",),
    )  # fmt: skip
    module = GatedDeltaNet.from_config(config)
    compiled, counter = counted(module, dynamic=True)
    ours, theirs = module.new_state(2), module.new_state(2)
    graphs = []
    for tokens in (9, 2, 5):
        x = make_hidden(SMALL, 2, tokens, F32, seed=tokens)
        assert torch.equal(compiled(x, ours), module(x, theirs))
        assert torch.equal(ours.recurrent, theirs.recurrent) and torch.equal(ours.conv, theirs.conv)
        graphs.append(counter.frame_count)
    # The first compilation starts again once (eps is a number that it first takes for a variable).
    assert graphs[0] == graphs[-1]


def test_functions_of_other_packages_compile():
    def function(q, k, v, g, beta, state):
        o, last = functions.chunk_gated_delta_rule(
            q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True
        )
        return o, last

    compiled, counter = counted(function, dynamic=True)
    for tokens in (5, 9, 70):
        assert_same(function, compiled, inputs("rule", 3, tokens))
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ("layer", "rule", "conv"))
def test_gradients_compile_to_one_graph_for_all_lengths(name):
    def loss(*arguments):
        return sum((r * r).sum() for r in CALLS[name](*arguments))

    compiled, counter = counted(loss, dynamic=True)
    for batch, tokens in [(3, 5), (5, 9), (2, 70)]:
        grads = []
        for call in (loss, compiled):
            arguments = [t.requires_grad_() for t in inputs(name, batch, tokens)]
            grads.append(torch.autograd.grad(call(*arguments), arguments))
        for a, b in zip(*grads, strict=True):
            assert torch.equal(a, b)
    assert counter.frame_count == 1


# ---------------------------------------------------------------------- what inductor runs


@pytest.mark.parametrize("name", IN_PLACE)
def test_K3_states_are_updated_in_place_without_copies(name):
    inductor = Inductor()
    compiled = inductor.compile(CALLS[name], dynamic=True)
    assert_same(CALLS[name], compiled, inputs(name))
    op = {"layer_": "gdn_layer_", "rule_": "gated_delta_rule_", "conv_": "causal_conv1d_"}[name]
    assert inductor.count(f"mps_fusion.{op}") == 1
    assert inductor.count("aten.clone") == inductor.copies() == 0


def test_K3_a_view_of_a_graph_input_is_updated_in_place():
    def function(x, convs, recurrents):
        return layer_(x, convs[1], recurrents[1])

    x, conv, recurrent = inputs("layer_")
    inductor = Inductor()
    compiled = inductor.compile(function)
    assert_same(function, compiled, (x, torch.stack([conv, conv]), torch.stack([recurrent] * 2)))
    assert inductor.count("mps_fusion.gdn_layer_") == 1
    assert inductor.count("aten.clone") == 0


def test_K2_two_states_that_are_views_of_one_buffer():
    def function(q, k, v, g, beta, states):
        first = rule_(q, k, v, g, beta, states[0])
        return first, rule_(first[:, :, :2], k, v, g, beta, states[1])

    *tokens, state = inputs("rule_")
    compiled = Inductor().compile(function)
    assert_same(function, compiled, (*tokens, torch.stack([state, 2 * state])))


def test_K2_conv_and_recurrent_state_in_one_buffer():
    x, conv, recurrent = inputs("layer_")

    def function(x, buffer):
        states = buffer[: conv.numel()].view(conv.shape), buffer[conv.numel() :].view(2, 4, 32, 32)
        return layer_(x, *states)

    buffer = torch.cat([conv.flatten(), recurrent.flatten()])
    assert_same(function, Inductor().compile(function), (x, buffer))


def test_K4_a_copy_taken_before_an_in_place_call_is_kept():
    def function(x, conv, recurrent):
        saved = conv.clone(), recurrent.clone()
        output = layer_(x, conv, recurrent)
        return output, *saved

    inductor = Inductor()
    assert_same(function, inductor.compile(function), inputs("layer_"))
    # Each copy runs: as a clone, or in code that inductor generates for it.
    assert inductor.count("aten.clone") == 2


def test_K4_the_call_works_on_the_copy():
    def function(x, conv, recurrent):
        conv2, recurrent2 = conv.clone(), recurrent.clone()
        return layer_(x, conv2, recurrent2), conv2, recurrent2

    assert_same(function, Inductor().compile(function), inputs("layer_"))


def test_K5_a_state_read_after_the_call_is_the_new_one():
    def function(x, conv, recurrent):
        before = recurrent.amax() + conv.amin()
        output = layer_(x, conv, recurrent)
        again = layer_(output, conv, recurrent)
        return before, again, recurrent + 1, conv * 2

    assert_same(function, Inductor().compile(function), inputs("layer_"))


# ------------------------------------------------------------------------ export, threads, MPS


class Step(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *arguments):
        return self.function(*arguments)


@pytest.mark.parametrize("name", CALLS)
def test_export_for_any_length(name):
    arguments = inputs(name)
    tokens, batch = torch.export.Dim("tokens", max=4096), torch.export.Dim("batch", max=64)
    dims = []
    for t in arguments:
        is_state = t.shape[1:] in (torch.Size([SMALL.conv_dim, 4]), torch.Size([4, 32, 32]))
        token_dim = 2 if name.startswith("conv") else 1
        dims.append({0: batch} if is_state else {0: batch, token_dim: tokens})
    program = torch.export.export(Step(CALLS[name]), arguments, dynamic_shapes=(tuple(dims),))
    for size in [(3, 5), (2, 70)]:
        assert_same(CALLS[name], program.module(), inputs(name, *size))


def test_two_threads_share_a_compiled_step():
    compiled, _ = counted(layer_, dynamic=True)
    problems = []

    def work(seed):
        try:
            for step in range(10):
                assert_same(layer_, compiled, inputs("layer_", 2 + seed, 3 + step))
        except Exception as error:  # reported by the test's own thread
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    assert problems == []


@pytest.mark.parametrize("name", CALLS)
def test_fake_tensors_on_mps(name):
    def moved(tensors):
        return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="mps")
                for t in tensors]  # fmt: skip

    expected = flat(CALLS[name](*inputs(name)))
    with FakeTensorMode():
        arguments = moved(inputs(name))
        constants = {
            "layer": lambda *a: ops.gdn_layer(
                a[0], moved(LAYER.in_proj), *moved(LAYER.weights[1:5]), moved(LAYER.out_proj),
                None, *a[1:], **LAYER.keywords,
            ),
            "layer_": lambda *a: ops.gdn_layer_(
                *a, moved(LAYER.in_proj), *moved(LAYER.weights[1:5]), moved(LAYER.out_proj),
                **LAYER.keywords,
            ),
            "conv": lambda x, s: ops.causal_conv1d(x, *moved([LAYER.conv_weight]), s),
            "conv_": lambda x, s: ops.causal_conv1d_(x, s, *moved([LAYER.conv_weight])),
            "linear": lambda x: ops.packed_linear(
                x, moved(PACKED), out_features=48, weight_format="tiles16-apple"
            ),
        }  # fmt: skip
        function = constants.get(name, CALLS[name])
        found = flat(function(*arguments))
        graph = make_fx(function)(*arguments)
    for a, b in zip(expected, found, strict=True):
        assert b.device.type == "mps"
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
    assert "mps_fusion" in graph.code
