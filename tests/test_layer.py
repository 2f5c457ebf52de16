"""The layer against float64: dtypes, shapes, states, splits, batch rows, masks."""

from dataclasses import replace

import pytest
import torch
from cases import (
    CPU_VARIANTS,
    DTYPES,
    HEAD_MAPS,
    REAL,
    SMALL,
    Shape,
    make_hidden,
    make_layer,
    make_states,
    with_map,
)
from compare import assert_close, assert_equal, reference_layer, run_layer, run_layer_in_place

TOKENS = (1, 2, 3, 8, 33)


def reference_prefixes(layer, hidden, states):
    """The reference after each of TOKENS: it is causal, so shorter calls are its prefixes."""
    wide = replace(
        layer,
        in_proj=[w.double() for w in layer.in_proj],
        out_proj=[w.double() for w in layer.out_proj],
    )
    outputs, reached = [], 0
    for tokens in TOKENS:
        output, *states = reference_layer(wide, hidden[:, reached:tokens], tuple(states))
        outputs.append(output)
        reached = tokens
        yield tokens, (torch.cat(outputs, 1), *states)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", REAL)
def test_real_shapes_agree_with_fp64(name, dtype):
    """T in {1, 2, 3, 8, 33}, B in {1, 3}, with and without prior state, at the models' shapes.

    Rows do not meet in the reference, so its first row is the call with B = 1.
    """
    shape = REAL[name]
    layer = make_layer(shape, dtype, input_norm=True)
    hidden = make_hidden(shape, 3, max(TOKENS), dtype)
    for states in ((None, None), make_states(shape, 3, dtype)):
        for tokens, expected in reference_prefixes(layer, hidden, states):
            for batch in (1, 3):
                rows = tuple(None if s is None else s[:batch] for s in states)
                for variant in CPU_VARIANTS:
                    actual = run_layer(layer, hidden[:batch, :tokens], rows, variant=variant)
                    assert_close(actual, tuple(t[:batch] for t in expected), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_map", HEAD_MAPS)
@pytest.mark.parametrize("ratio", (1, 2, 3, 4, 8))
def test_C1_C3_C8_head_maps_and_ratios(ratio, head_map, dtype, variant):
    shape = with_map(Shape(64, 2, 2 * ratio, 32, 32), head_map)
    layer = make_layer(shape, dtype)
    hidden, states = make_hidden(shape, 2, 9, dtype), make_states(shape, 2, dtype)
    assert_close(
        run_layer(layer, hidden, states, variant=variant),
        reference_layer(layer, hidden, states),
        dtype,
    )


@pytest.mark.parametrize("dims", [(32, 64), (64, 32), (128, 64), (64, 256), (256, 128)], ids=str)
@pytest.mark.parametrize("width", (2, 3, 4))
def test_head_dims_and_convolution_widths(dims, width, variant):
    shape = Shape(64, 1, 2, *dims, conv_width=width)
    layer = make_layer(shape, torch.float32)
    hidden, states = make_hidden(shape, 2, 70, torch.float32), make_states(shape, 2, torch.float32)
    assert_close(
        run_layer(layer, hidden, states, variant=variant),
        reference_layer(layer, hidden, states),
        torch.float32,
    )


@pytest.mark.parametrize("dims", [(8, 8), (16, 16), (48, 24), (1, 1)], ids=str)
def test_B1_head_dims_without_a_native_kernel(dims):
    """Exact through stock, refused by name by native, and auto picks what runs."""
    shape = Shape(32, 2, 4, *dims)
    layer = make_layer(shape, torch.float32)
    hidden, states = make_hidden(shape, 2, 5, torch.float32), make_states(shape, 2, torch.float32)
    expected = reference_layer(layer, hidden, states)
    for variant in ("stock", "auto"):
        assert_close(run_layer(layer, hidden, states, variant=variant), expected, torch.float32)
    with pytest.raises(NotImplementedError, match=f"head_k_dim {dims[0]}"):
        run_layer(layer, hidden, states, variant="native")


@pytest.mark.parametrize("tokens", range(1, 9))
def test_B7_short_prompts_without_a_state(tokens, variant):
    layer = make_layer(SMALL, torch.float32)
    hidden = make_hidden(SMALL, 2, tokens, torch.float32)
    assert_close(
        run_layer(layer, hidden, variant=variant), reference_layer(layer, hidden), torch.float32
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("input_norm", (False, True))
@pytest.mark.parametrize("joined", (False, True))
@pytest.mark.parametrize("gates", (None, torch.float32), ids=str)
def test_forms_of_the_weights(gates, joined, input_norm, dtype, variant):
    layer = make_layer(SMALL, dtype, input_norm=input_norm, joined=joined, gate_dtype=gates)
    hidden, states = make_hidden(SMALL, 2, 7, dtype), make_states(SMALL, 2, dtype)
    assert_close(
        run_layer(layer, hidden, states, variant=variant),
        reference_layer(layer, hidden, states),
        dtype,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("split", range(1, 13))
def test_E1_E2_E7_split_at_every_point(split, dtype, variant):
    layer = make_layer(SMALL, dtype)
    hidden, states = make_hidden(SMALL, 2, 13, dtype), make_states(SMALL, 2, dtype)
    whole = run_layer(layer, hidden, states, variant=variant)
    first, *middle = run_layer(layer, hidden[:, :split], states, variant=variant)
    second, *last = run_layer(layer, hidden[:, split:], tuple(middle), variant=variant)
    assert_close((torch.cat([first, second], 1), *last), whole, dtype)


@pytest.mark.parametrize("width", (3, 4, 5, 9))
@pytest.mark.parametrize("tokens", (1, 2, 6, 20))
def test_E3_convolution_states_of_any_width(width, tokens, variant):
    layer = make_layer(SMALL, torch.float32)
    hidden = make_hidden(SMALL, 2, tokens, torch.float32)
    states = make_states(SMALL, 2, torch.float32, width=width)
    actual = run_layer(layer, hidden, states, variant=variant)
    assert actual[1].shape[2] == width
    assert_close(actual, reference_layer(layer, hidden, states), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", (1, 5, 40))
@pytest.mark.parametrize("dk_contiguous", (True, False))
def test_in_place_equals_functional(dk_contiguous, tokens, dtype, variant):
    layer = make_layer(SMALL, dtype, input_norm=True)
    hidden = make_hidden(SMALL, 2, tokens, dtype)
    states = make_states(SMALL, 2, dtype, dk_contiguous=dk_contiguous)
    before = [s.clone() for s in states]
    functional = run_layer(layer, hidden, states, variant=variant)
    assert all(torch.equal(s, b) for s, b in zip(states, before, strict=True))
    output = run_layer_in_place(layer, hidden, states, variant=variant)
    if dk_contiguous:
        assert_equal((output, *states), functional)
    else:  # the functional call leaves its new state in the other storage order: other sums
        assert_close((output, *states), functional, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_G13_a_row_does_not_depend_on_its_neighbours(dtype):
    """Bitwise for our rule and convolution (the projections are aten's)."""
    shape = SMALL
    q = torch.randn(3, 20, 2, 32).to(dtype)
    v = torch.randn(3, 20, 4, 32).to(dtype)
    g, beta = -torch.rand(3, 20, 4), torch.rand(3, 20, 4)
    _, state = make_states(shape, 3, dtype)
    call = torch.ops.mps_fusion.gated_delta_rule
    for tokens in (1, 8, 20):
        part = [t[:, :tokens] for t in (q, q.flip(1), v, g, beta)]
        together = call(*part, state, head_map="block", qk_l2norm=True, variant="native")
        for row in range(3):
            alone = call(
                *(t[row : row + 1] for t in part), state[row : row + 1],
                head_map="block", qk_l2norm=True, variant="native",
            )  # fmt: skip
            for a, t in zip(alone, together, strict=True):
                assert torch.equal(a, t[row : row + 1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", (1, 8, 70))
def test_G5_repeats_are_bit_identical(tokens, dtype, variant):
    layer = make_layer(SMALL, dtype)
    hidden, states = make_hidden(SMALL, 2, tokens, dtype), make_states(SMALL, 2, dtype)
    first = run_layer(layer, hidden, states, variant=variant)
    for _ in range(50):
        assert_equal(run_layer(layer, hidden, states, variant=variant), first)


def test_E4_drift_over_512_steps(variant):
    """The state stays fp32: decode of 512 tokens ends where one fp64 run does."""
    layer = make_layer(SMALL, torch.bfloat16)
    hidden, states = (
        make_hidden(SMALL, 1, 512, torch.bfloat16),
        make_states(SMALL, 1, torch.bfloat16),
    )
    expected = reference_layer(layer, hidden, states)
    outputs = [
        run_layer_in_place(layer, hidden[:, t : t + 1], states, variant=variant) for t in range(512)
    ]
    assert_close((torch.cat(outputs, 1), *states), expected, torch.bfloat16)


@pytest.mark.parametrize("batch, tokens", [(0, 3), (2, 0), (0, 0)])
def test_empty_calls(batch, tokens, variant):
    layer = make_layer(SMALL, torch.float32)
    hidden, states = (
        make_hidden(SMALL, batch, tokens, torch.float32),
        make_states(SMALL, batch, torch.float32),
    )
    output, *after = run_layer(layer, hidden, states, variant=variant)
    assert output.shape == hidden.shape
    assert all(torch.equal(a, s) for a, s in zip(after, states, strict=True))
