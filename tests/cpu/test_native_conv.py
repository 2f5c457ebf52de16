"""The native convolution against the float64 loop: widths, layouts, states, masks, determinism."""

import pytest
import torch
from cases import DTYPES, guarded, guards_intact, offset_view, strided_view
from native import TOKENS, assert_same_bits, one_thread

from torch_mps_fusion import reference
from torch_mps_fusion.tolerances import error, tolerance


def conv(x, weight, state=None, mask=None, *, activation="silu"):
    return torch.ops.mps_fusion.causal_conv1d(
        x, weight, state, mask, activation=activation, variant="native"
    )


def conv_(x, state, weight, *, activation="silu"):
    return torch.ops.mps_fusion.causal_conv1d_(
        x, state, weight, activation=activation, variant="native"
    )


def make_conv(batch, channels, tokens, dtype=torch.float32, *, width=4, state_width=4, seed=0):
    """x (B, C, T), weight (C, K), state (B, C, W)."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (batch, channels, tokens), (channels, width), (batch, channels, state_width)
    return [torch.randn(size, generator=generator).to(dtype) for size in sizes]


def assert_conv(actual, x, weight, state=None, mask=None, activation="silu"):
    """Every row of the batch within the tolerance table, the state bit for bit."""
    with one_thread():
        output, new_state = reference.causal_conv1d(
            x, weight, state, mask, activation=activation, rounding=x.dtype
        )
    for b in range(x.shape[0]):
        found = error(actual[0][b], output[b])
        assert found <= tolerance("output", x.dtype).rms, f"row {b}: {found:.2e}"
    assert torch.equal(actual[1].double(), new_state)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", (1, 5, 64, 70, 129))
@pytest.mark.parametrize("tokens", TOKENS)
def test_every_length_and_channel_count(tokens, channels, dtype):
    x, weight, state = make_conv(2, channels, tokens, dtype)
    by_channel = x.transpose(1, 2).contiguous().transpose(1, 2)
    for layout in (x, by_channel):
        assert_conv(conv(layout, weight, state), x, weight, state)
        assert_conv(conv(layout, weight), x, weight)


@pytest.mark.parametrize("activation", ("silu", None))
@pytest.mark.parametrize("state_width", (-1, 0, 1, 3))
@pytest.mark.parametrize("width", (2, 3, 4))
def test_E3_widths_of_kernel_and_state(width, state_width, activation):
    for tokens in (1, 2, 5, 40):
        x, weight, state = make_conv(2, 20, tokens, width=width, state_width=width + state_width)
        actual = conv(x, weight, state, activation=activation)
        assert_conv(actual, x, weight, state, activation=activation)
        in_place = state.clone()
        output = conv_(x, in_place, weight, activation=activation)
        assert_same_bits((output, in_place), actual)


def test_E2_E7_split_at_every_point_is_bit_identical():
    x, weight, state = make_conv(2, 70, 12, torch.bfloat16)
    expected = conv(x, weight, state)
    for cut in range(1, 12):
        first, middle = conv(x[..., :cut], weight, state)
        second, last = conv(x[..., cut:], weight, middle)
        assert_same_bits((torch.cat([first, second], -1), last), expected)


@pytest.mark.parametrize("tokens", (1, 40))
@pytest.mark.parametrize("name", ("x", "weight", "state", "mask"))
@pytest.mark.parametrize("view", (offset_view, strided_view))
def test_A1_A4_arguments_as_views(view, name, tokens):
    arguments = dict(zip(("x", "weight", "state"), make_conv(2, 70, tokens), strict=True))
    arguments["mask"] = torch.arange(2 * tokens).view(2, tokens) % 4 != 2
    expected = conv(**arguments)
    assert_same_bits(conv(**{**arguments, name: view(arguments[name])}), expected)


@pytest.mark.parametrize("tokens", (1, 2, 40))
@pytest.mark.parametrize("by_channel", (True, False))
def test_A4_channel_slice_of_one_projection_row(by_channel, tokens):
    x, weight, state = make_conv(2, 70, tokens, torch.bfloat16)
    wide = torch.full((2, tokens, 100), 9.0).bfloat16()
    wide[..., 11:81] = x.transpose(1, 2)
    wide = wide if by_channel else wide.transpose(1, 2).contiguous().transpose(1, 2)
    actual = conv(wide[..., 11:81].transpose(1, 2), weight, state)
    assert_same_bits(actual, conv(x, weight, state))


@pytest.mark.parametrize("tokens", (1, 2, 3, 40))
def test_A3_in_place_keeps_its_neighbours(tokens):
    x, weight, state = make_conv(2, 70, tokens, torch.bfloat16)
    pool = torch.stack([state] * 3, 1)
    view, buffer = guarded(pool)
    slot = view[:, 1]
    assert_conv((conv_(x, slot, weight), slot), x, weight, state)
    assert guards_intact(view, buffer)
    assert torch.equal(view[:, 0], state) and torch.equal(view[:, 2], state)


MASKS = ("000111111", "111111000", "110110011", "000000000", "000010000", "111111111")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("given", (True, False))
def test_D2_D4_masked_tokens_are_not_there(given, dtype):
    mask = torch.tensor([[bit == "1" for bit in row] for row in MASKS])
    x, weight, state = make_conv(len(mask), 70, 9, dtype)
    state = state if given else None
    dirty = x.masked_fill(~mask[:, None], float("nan"))
    for layout in (dirty, dirty.transpose(1, 2).contiguous().transpose(1, 2)):
        actual = conv(layout, weight, state, mask)
        assert_conv(actual, x, weight, state, mask)
        assert (actual[0].transpose(1, 2)[~mask] == 0).all()
    for row, real in enumerate(mask):
        compact = conv(x[row : row + 1, :, real], weight, state[row : row + 1] if given else None)
        assert_same_bits((actual[0][row : row + 1, :, real], actual[1][row : row + 1]), compact)


def test_G5_G13_repeats_threads_and_neighbours():
    x, weight, state = make_conv(3, 200, 50, torch.bfloat16)
    expected = conv(x, weight, state)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 8):
            torch.set_num_threads(count)
            for _ in range(5):
                assert_same_bits(conv(x, weight, state), expected)
    finally:
        torch.set_num_threads(threads)
    for b in range(3):
        alone = conv(x[b : b + 1], weight, state[b : b + 1])
        assert_same_bits(alone, tuple(t[b : b + 1] for t in expected))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_roundings_are_the_dtypes(dtype):
    """Sums next to rounding boundaries: one product a channel, so that each rounding is exact."""
    x = torch.linspace(-30, 30, 4001).to(dtype).view(1, -1, 1)
    weight = torch.zeros(4001, 4).to(dtype)
    weight[:, 3] = 1.0 + 3 * torch.finfo(dtype).eps
    linear, _ = conv(x, weight, activation=None)
    assert torch.equal(linear, x * weight[:, 3:])
    activated, _ = conv(x, weight)
    exact = torch.nn.functional.silu(linear.double())
    spacing = torch.finfo(dtype).eps * exact.abs() + torch.finfo(dtype).tiny
    limit = 2 if dtype == torch.float32 else 0.51
    assert ((activated.double() - exact).abs() <= limit * spacing).all()


@pytest.mark.parametrize("batch,channels", ((1, 65_601), (600, 110)))
def test_B5_more_than_65536_rows(batch, channels):
    x, weight, state = make_conv(batch, channels, 2)
    actual = conv(x, weight, state)
    output, new_state = reference.causal_conv1d(x, weight, state)
    assert error(actual[0], output) <= tolerance("output", torch.float32).rms
    assert torch.equal(actual[1].double(), new_state)


def test_B9_seventy_thousand_tokens():
    x, weight, state = make_conv(1, 3, 70_000, torch.bfloat16)
    assert_conv(conv(x, weight, state), x, weight, state)


@pytest.mark.parametrize("batch,tokens", ((0, 5), (2, 0)))
def test_empty_calls(batch, tokens):
    x, weight, state = make_conv(batch, 70, tokens)
    output, new_state = conv(x, weight, state)
    assert output.shape == x.shape
    assert torch.equal(new_state, state)
