"""A masked token acts as if it were not there: both states pass through, the mixer adds zero."""

import pytest
import torch
from cases import DTYPES, SMALL, make_hidden, make_layer, make_states
from compare import assert_close, assert_equal, reference_layer, run_layer

MASKS = {
    "left": "0001111111",
    "right": "1111111000",
    "middle": "1101100111",
    "alternating": "0101010101",
    "one": "0000100000",
    "none": "0000000000",
    "all": "1111111111",
}


def mask_of(*rows: str) -> torch.Tensor:
    return torch.tensor([[bit == "1" for bit in row] for row in rows])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("given", (True, False))
@pytest.mark.parametrize("input_norm", (True, False))
def test_D2_masks_of_all_kinds_in_one_batch(input_norm, given, dtype, variant):
    layer = make_layer(SMALL, dtype, input_norm=input_norm)
    mask = mask_of(*MASKS.values())
    hidden = make_hidden(SMALL, len(mask), mask.shape[1], dtype)
    states = make_states(SMALL, len(mask), dtype) if given else (None, None)
    assert_close(
        run_layer(layer, hidden, states, mask, variant=variant),
        reference_layer(layer, hidden, states, mask),
        dtype,
    )


@pytest.mark.parametrize("tokens", (1, 40, 130))
def test_masks_over_many_tokens(tokens, variant):
    layer = make_layer(SMALL, torch.float32)
    mask = torch.rand(3, tokens, generator=torch.Generator().manual_seed(5)) < 0.7
    hidden, states = (
        make_hidden(SMALL, 3, tokens, torch.float32),
        make_states(SMALL, 3, torch.float32),
    )
    assert_close(
        run_layer(layer, hidden, states, mask, variant=variant),
        reference_layer(layer, hidden, states, mask),
        torch.float32,
    )


@pytest.mark.parametrize("pads", range(1, 6))
def test_D1_D3_left_padded_single_row_equals_unpadded(pads, variant):
    layer = make_layer(SMALL, torch.float32)
    hidden = make_hidden(SMALL, 1, 10, torch.float32)
    mask = torch.arange(10)[None] >= pads
    padded = run_layer(layer, hidden, mask=mask, variant=variant)
    plain = run_layer(layer, hidden[:, pads:], variant=variant)
    assert_close((padded[0][:, pads:], *padded[1:]), plain, torch.float32)
    assert (padded[0][:, :pads] == 0).all()


@pytest.mark.parametrize("filler", (float("nan"), float("inf"), 1e30))
def test_D4_what_a_pad_holds_does_not_matter(filler, variant):
    layer = make_layer(SMALL, torch.float32)
    mask = mask_of("0001110111", "1110001111")
    hidden, states = make_hidden(SMALL, 2, 10, torch.float32), make_states(SMALL, 2, torch.float32)
    clean = run_layer(layer, hidden, states, mask, variant=variant)
    dirty = hidden.masked_fill(~mask[..., None], filler)
    assert_equal(run_layer(layer, dirty, states, mask, variant=variant), clean)


def test_masked_positions_keep_the_residual_exactly(variant):
    layer = make_layer(SMALL, torch.bfloat16, input_norm=True)
    mask = mask_of("0101100111")
    hidden = make_hidden(SMALL, 1, 10, torch.bfloat16)
    output = run_layer(layer, hidden, mask=mask, variant=variant)[0]
    assert torch.equal(output[~mask], hidden[~mask])


def test_a_masked_call_leaves_both_states_bit_identical(variant):
    layer = make_layer(SMALL, torch.bfloat16)
    hidden, states = make_hidden(SMALL, 2, 5, torch.bfloat16), make_states(SMALL, 2, torch.bfloat16)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    _, *after = run_layer(layer, hidden, states, mask, variant=variant)
    assert all(torch.equal(a, s) for a, s in zip(after, states, strict=True))


def test_mask_as_a_strided_view(variant):
    layer = make_layer(SMALL, torch.float32)
    mask = mask_of("01101101", "11111010", "00011111")
    hidden = make_hidden(SMALL, 3, 8, torch.float32)
    plain = run_layer(layer, hidden, mask=mask, variant=variant)
    assert_equal(run_layer(layer, hidden, mask=mask.T.contiguous().T, variant=variant), plain)
    expanded = mask[:1].expand(3, 8)
    assert_equal(
        run_layer(layer, hidden, mask=expanded, variant=variant),
        run_layer(layer, hidden, mask=expanded.contiguous(), variant=variant),
    )
