"""States made here live in two slots where a persistent variant runs: nothing is copied."""

import pytest
import torch

from torch_mps_fusion import packing
from torch_mps_fusion.models import GatedDeltaNet, GDNConfig
from torch_mps_fusion.state import SLOT_WORD, GDNState

CONFIG = GDNConfig(
    hidden_size=64, num_k_heads=1, num_v_heads=2, head_k_dim=32, head_v_dim=32,
    conv_kernel_size=4, rms_norm_eps=1e-6, model_type="qwen3_5_text",
    layer_types=("linear_attention",),
)  # fmt: skip
PERSISTENT = ("hybrid", "mega")


@pytest.fixture(scope="module")
def layer():
    return GatedDeltaNet.from_config(CONFIG, dtype=torch.bfloat16, with_input_norm=True)


def tokens(n, seed=0, batch=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, n, 64, generator=generator).to(torch.bfloat16)


def same(state, other):
    return torch.equal(state.conv, other.conv) and torch.equal(state.recurrent, other.recurrent)


def dispatches(layer, state, variant):
    """Of one decode call, as the encoder is told."""
    before = torch.ops.mps_fusion._record_host_programs(True)
    try:
        layer(tokens(1), state, variant=variant)
    finally:
        after = torch.ops.mps_fusion._record_host_programs(False)
    return after - before


@pytest.mark.parametrize("variant", PERSISTENT)
def test_a_sequence_of_calls_has_the_bits_of_packed(layer, variant):
    state, expected = layer.new_state(2), layer.new_state(2)
    for step, (n, used) in enumerate([(3, variant), (1, variant), (1, "core"), (1, variant)]):
        x = tokens(n, seed=step)
        assert torch.equal(layer(x, state, variant=used), layer(x, expected, variant="packed"))
        assert same(state, expected)


@pytest.mark.parametrize(("variant", "count"), [("hybrid", 2), ("mega", 1)])
def test_a_decode_call_commits_without_a_copy(layer, variant, count):
    state = layer.new_state(2)
    layer(tokens(3), state, variant=variant)
    assert dispatches(layer, state, variant) == count
    theirs = GDNState(state.conv.clone(), state.recurrent.clone())
    assert dispatches(layer, theirs, variant) == count + 1


def test_the_slots_are_made_once_and_the_committed_one_is_shown(layer):
    state = layer.new_state(2)
    conv, recurrent, control = state.slots()
    pointers = [t.data_ptr() for t in (conv, recurrent, control)]
    for step in range(1, 4):
        layer(tokens(1, seed=step), state, variant="mega")
        assert int(control[SLOT_WORD]) == step % 2
        assert state.conv.data_ptr() == conv[step % 2].data_ptr()
        assert state.recurrent.data_ptr() == recurrent[step % 2].data_ptr()
    assert [t.data_ptr() for t in state.slots()] == pointers
    assert state.recurrent.stride() == layer.new_state(2).recurrent.stride()


def test_tensors_that_were_given_are_updated_in_place(layer):
    """A cache sees its own tensors advance."""
    theirs, expected = layer.new_state(2), layer.new_state(2)
    conv, recurrent = theirs.conv, theirs.recurrent
    state = GDNState(conv, recurrent)
    assert state.slots() is None
    layer(tokens(3), state, variant="mega")
    layer(tokens(3), expected, variant="packed")
    assert same(GDNState(conv, recurrent), expected)


def test_what_is_done_with_a_state_is_done_with_the_committed_slot(layer):
    state, expected = layer.new_state(2), layer.new_state(2)
    for s, variant in ((state, "mega"), (expected, "packed")):
        layer(tokens(3), s, variant=variant)
    assert (state.batch_size, state.dtype, state.device.type) == (2, torch.bfloat16, "cpu")
    assert repr(state) == repr(expected)
    index = torch.tensor([1, 0])
    for made in (
        lambda s: s.clone(),
        lambda s: s.reorder(index),
        lambda s: s.to(dtype=torch.float32),
    ):
        assert same(made(state), made(expected))
        assert made(state).slots() is not None
    state.recurrent += 1
    expected.recurrent += 1
    x = tokens(1, seed=1)
    assert torch.equal(layer(x, state, variant="mega"), layer(x, expected, variant="packed"))
    assert same(state, expected)
    state.reset()
    assert not state.conv.any() and not state.recurrent.any()
    fresh = layer.new_state(2)
    assert torch.equal(layer(x, state, variant="mega"), layer(x, fresh, variant="packed"))


def test_another_tensor_takes_the_place_of_both_slots(layer):
    state = layer.new_state(2)
    layer(tokens(3), state, variant="mega")
    before = state.recurrent.clone()
    state.conv = torch.ones_like(state.conv)
    assert state.slots() is None and torch.equal(state.recurrent, before)
    with pytest.raises(ValueError, match="conv holds 1 sequences"):
        state.conv = state.conv[:1]


def test_a_failed_call_leaves_the_committed_states(layer):
    state = layer.new_state(2)
    layer(tokens(3), state, variant="mega")
    kept = state.clone()
    control = state.slots()[2]
    control[6] = 1  # the cancellation word
    with pytest.raises(RuntimeError, match="failed, cancelled at task"):
        layer(tokens(1), state, variant="mega")
    assert same(state, kept)
    x = tokens(1, seed=1)
    assert torch.equal(layer(x, state, variant="mega"), layer(x, kept, variant="packed"))
    assert same(state, kept)


def test_compiles_with_slots(layer):
    layer.pack_(packing.format_name("apple"))
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    state, expected = layer.new_state(2), layer.new_state(2)
    for step in range(3):
        x = tokens(1, seed=step)
        got = compiled(x, state, variant="mega")
        assert torch.equal(got, layer(x, expected, variant="packed"))
    assert same(state, expected)
