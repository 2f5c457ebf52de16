"""GDNState: layout, copies, beam reordering, checks, and sharing with a transformers cache."""

from __future__ import annotations

import pytest
import torch

from torch_mps_fusion.models import GatedDeltaNet
from torch_mps_fusion.state import GDNState


@pytest.fixture
def state(config) -> GDNState:
    state = GatedDeltaNet.from_config(config, dtype=torch.bfloat16).new_state(3)
    state.conv.normal_()
    state.recurrent.normal_()
    return state


def is_own_layout(state: GDNState) -> bool:
    return state.recurrent.transpose(-1, -2).is_contiguous() and state.conv.is_contiguous()


def equal(left: GDNState, right: GDNState) -> bool:
    return torch.equal(left.conv, right.conv) and torch.equal(left.recurrent, right.recurrent)


def shares_memory(left: GDNState, right: GDNState) -> bool:
    return (
        left.conv.data_ptr() == right.conv.data_ptr()
        or left.recurrent.data_ptr() == right.recurrent.data_ptr()
    )


def test_new_state_is_zero_in_the_documented_layout(config):
    layer = GatedDeltaNet.from_config(config, dtype=torch.bfloat16)
    state = layer.new_state(3)
    assert state.conv.shape == (3, config.conv_dim, config.conv_kernel_size)
    assert state.recurrent.shape == (3, 6, 32, 64)
    assert (state.conv.dtype, state.recurrent.dtype) == (torch.bfloat16, torch.float32)
    assert is_own_layout(state)
    assert not state.conv.any()
    assert not state.recurrent.any()
    assert (state.batch_size, state.dtype) == (3, torch.bfloat16)


def test_zeros_ignores_the_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        sizes = {"conv_dim": 8, "conv_width": 4, "num_v_heads": 1, "head_k_dim": 2, "head_v_dim": 3}
        state = GDNState.zeros(1, **sizes, dtype=torch.float16)
    finally:
        torch.set_default_dtype(torch.float32)
    assert (state.conv.dtype, state.recurrent.dtype) == (torch.float16, torch.float32)


def test_reset_keeps_the_memory(state):
    before = state.conv.data_ptr(), state.recurrent.data_ptr()
    state.reset()
    assert not state.conv.any()
    assert not state.recurrent.any()
    assert (state.conv.data_ptr(), state.recurrent.data_ptr()) == before


def test_clone_is_equal_and_independent(state):
    copy = state.clone()
    assert equal(copy, state)
    assert is_own_layout(copy)
    copy.reset()
    assert state.conv.any()
    assert state.recurrent.any()


def test_clone_of_the_other_storage_order(state):
    other = GDNState(state.conv, state.recurrent.contiguous())
    copy = other.clone()
    assert is_own_layout(copy)
    assert equal(copy, other)


@pytest.mark.parametrize("index", [[2, 0, 1], [1, 1, 1], [0], [2, 2, 1, 1, 0, 0]])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_reorder(state, index, dtype):
    moved = state.reorder(torch.tensor(index, dtype=dtype))
    assert torch.equal(moved.conv, state.conv[index])
    assert torch.equal(moved.recurrent, state.recurrent[index])
    assert is_own_layout(moved)
    assert not shares_memory(moved, state)


@pytest.mark.parametrize(
    "index",
    [
        torch.tensor([0, 3]),
        torch.tensor([-1]),
        torch.tensor([[0]]),
        torch.tensor([0.0]),
        torch.tensor([True, False, True]),
        [0, 1],
    ],
)
def test_reorder_refuses_a_bad_index(state, index):
    before = state.clone()
    with pytest.raises((ValueError, TypeError), match="batch_idx"):
        state.reorder(index)
    assert equal(state, before)


def test_to_changes_the_convolution_dtype_only(state):
    wide = state.to(dtype=torch.float32)
    assert (wide.conv.dtype, wide.recurrent.dtype) == (torch.float32, torch.float32)
    assert torch.equal(wide.conv, state.conv.float())
    assert torch.equal(wide.recurrent, state.recurrent)
    assert is_own_layout(wide)
    assert not shares_memory(wide, state)
    assert state.to("cpu") is state
    assert state.to() is state


def test_to_another_device(state):
    moved = state.to("meta")
    assert moved.conv.is_meta
    assert moved.recurrent.is_meta
    assert moved.recurrent.stride() == state.recurrent.stride()


def test_A2_state_from_a_pool_is_not_copied(config):
    pool_conv = torch.zeros(5, config.conv_dim, 4)
    pool = torch.zeros(5, 6, 32, 64)
    state = GDNState(pool_conv[1:3], pool[1:3])
    state.conv += 1
    state.recurrent += 1
    assert pool_conv.sum(dim=(1, 2)).bool().tolist() == [False, True, True, False, False]
    assert pool.sum(dim=(1, 2, 3)).bool().tolist() == [False, True, True, False, False]


def test_shares_the_memory_of_a_transformers_cache(config):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoConfig.for_model("qwen3_5_text", num_hidden_layers=1)
    cache = transformers.DynamicCache(config=theirs)
    cache.update_conv_state(torch.randn(2, config.conv_dim, 5), 0, conv_kernel_size=4)
    cache.update_recurrent_state(torch.randn(2, 6, 32, 64), 0)
    state = GDNState(cache.get_conv_state(0), cache.get_recurrent_state(0))
    state.reset()
    assert not cache.layers[0].conv_states[0].any()
    assert not cache.layers[0].recurrent_states[0].any()


CONV, RECURRENT = torch.zeros(2, 8, 4), torch.zeros(2, 3, 4, 5)
BAD_STATES = {
    "conv not a tensor": ([1], RECURRENT, "conv must be a tensor"),
    "conv of 2 dims": (CONV[0], RECURRENT, "conv must be"),
    "conv of an integer type": (CONV.int(), RECURRENT, "conv has dtype"),
    "conv in float64": (CONV.double(), RECURRENT, "conv has dtype"),
    "conv expanded": (CONV[:1].expand(2, 8, 4), RECURRENT, "conv is expanded"),
    "recurrent of 3 dims": (CONV, RECURRENT[0], "recurrent must be"),
    "E4 recurrent in bfloat16": (CONV, RECURRENT.bfloat16(), "recurrent has dtype"),
    "recurrent expanded": (CONV, RECURRENT[:1].expand(2, 3, 4, 5), "recurrent is expanded"),
    "recurrent with gaps": (CONV, torch.zeros(2, 3, 4, 10)[..., ::2], "recurrent has strides"),
    "empty": (CONV[:0], RECURRENT[:0], "conv must be"),
    "different batches": (CONV[:1], RECURRENT, "conv holds 1 .* recurrent holds 2"),
    "different devices": (CONV, RECURRENT.to("meta"), "conv is on cpu, recurrent on meta"),
}


@pytest.mark.parametrize(("conv", "recurrent", "message"), BAD_STATES.values(), ids=BAD_STATES)
def test_bad_state_is_named(conv, recurrent, message):
    with pytest.raises((TypeError, ValueError), match=message):
        GDNState(conv, recurrent)
