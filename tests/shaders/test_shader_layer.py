"""`packed` and `core` as whole layers: against float64, against each other, over geometries."""

import os

import pytest
import torch
from cases import DTYPES, REAL, Shape, make_hidden, make_layer, make_states
from compare import assert_close, assert_equal, reference_layer
from host import run
from program import Geometry, Program
from settings import BLOCK, RAGGED, SETTINGS, TILED, Setting, make_case

VARIANTS = ("packed", "core")
ROWS = ((1, 1), (1, 3), (1, 8), (3, 1), (3, 3), (3, 8))
GRID = [
    (dtype, rows, SETTINGS[(2 * i + j + shift) % len(SETTINGS)])
    for i, dtype in enumerate(DTYPES)
    for j, rows in enumerate(ROWS)
    for shift in (0, 3)
]


def program(case, variant, **options) -> Program:
    """The program of a case, run; guard words checked."""
    made = Program(variant, case.layer, case.hidden, case.states, case.mask, **options)
    run(made)
    assert made.arena.guards_intact()
    return made


@pytest.mark.parametrize(("dtype", "rows", "setting"), GRID)
def test_variants_agree_with_float64_and_bitwise_with_each_other(dtype, rows, setting):
    case = make_case(setting, dtype, *rows)
    packed, core = (program(case, v) for v in VARIANTS)
    assert_equal(packed.results, core.results)
    states = case.states or (None, None)
    assert_close(core.results, reference_layer(case.layer, case.hidden, states, case.mask), dtype)
    assert len(core.dispatches) == 3 and len(packed.dispatches) == 6


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("shape", "geometries"),
    [
        (
            Shape(512, 4, 12),  # an even number of tiles
            [
                Geometry(joined_norm=True),
                Geometry("nt1u4"),
                Geometry("nt1u8"),
                Geometry("nt1u4p", groups=3),
                Geometry("nt2u2p", groups=1),
                Geometry(block=3),
            ],
        ),
        (Shape(96, 1, 2, 128, 128), [Geometry(rule="r2s4", core="r4")]),
    ],
)
def test_launch_geometry_does_not_touch_the_bits(variant, shape, geometries):
    case = make_case(Setting(shape, masked=True), torch.bfloat16, 2, 9)
    first = program(case, variant).results
    for geometry in geometries:
        assert_equal(program(case, variant, geometry=geometry).results, first)


@pytest.mark.parametrize("dtype", DTYPES)
def test_projection_geometries_of_each_dtype(dtype):
    case = make_case(Setting(Shape(608, 2, 2)), dtype, 1, 5)
    tiles = ("nt1u2p", "nt1u4")
    first, *others = (program(case, "core", geometry=Geometry(t)).results for t in tiles)
    for other in others:
        assert_equal(other, first)


@pytest.mark.parametrize("dims", [(k, v) for k in (32, 64, 128) for v in (32, 64, 128)], ids=str)
def test_every_pair_of_head_dims(dims):
    """Each instance runs once: both geometries of the rule and of core."""
    case = make_case(Setting(Shape(64, 1, 2, *dims)), torch.float16, 1, 2)
    first = program(case, "packed").results
    assert_close(first, reference_layer(case.layer, case.hidden, case.states), torch.float16)
    other = Geometry(rule="r2s4", core="r4")
    for made in (
        program(case, "packed", geometry=other),
        program(case, "core"),
        program(case, "core", geometry=other),
    ):
        assert_equal(made.results, first)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("masked", [False, True])
def test_every_split_equals_the_one_shot_run(variant, masked):
    case = make_case(Setting(TILED, masked=masked), torch.bfloat16, 2, 9)
    whole = program(case, variant)
    for cut in range(1, 9):
        states, parts = case.states, []
        for part in (slice(0, cut), slice(cut, 9)):
            mask = None if case.mask is None else case.mask[:, part]
            step = Program(variant, case.layer, case.hidden[:, part].contiguous(), states, mask)
            run(step)
            states = (step.conv_out, step.state_out)
            parts.append(step.output)
        assert_equal((torch.cat(parts, 1), *states), whole.results)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_row_does_not_see_its_neighbours(variant):
    case = make_case(Setting(BLOCK, masked=True), torch.float16, 3, 4)
    whole = program(case, variant)
    for b in range(3):
        states = tuple(s[b : b + 1] for s in case.states)
        alone = Program(variant, case.layer, case.hidden[b : b + 1], states, case.mask[b : b + 1])
        run(alone)
        assert_equal(alone.results, tuple(r[b : b + 1] for r in whole.results))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("keys_adjacent", [False, True])
def test_states_in_place_and_in_either_order(variant, keys_adjacent):
    setting = Setting(RAGGED, masked=True, width=3, keys_adjacent=keys_adjacent)
    case = make_case(setting, torch.bfloat16, 2, 11)
    kept = tuple(s.clone() for s in case.states)
    expected = program(case, variant)
    assert all(torch.equal(a, b) for a, b in zip(kept, case.states, strict=True))
    other = program(case, variant, keys_adjacent_out=False)
    assert_equal(other.results, expected.results)
    assert_equal(program(case, variant, in_place=True).results, expected.results)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_wide_conv_state_moves_in_place(variant):
    """By one entry, and with rows for two passes of the projection that writes it."""
    case = make_case(Setting(BLOCK, width=5), torch.bfloat16, 9, 1)
    expected = program(case, variant)
    assert torch.equal(expected.conv_out[..., :4], case.states[0][..., 1:])
    assert_equal(program(case, variant, in_place=True).results, expected.results)


@pytest.mark.parametrize("variant", VARIANTS)
def test_states_as_views_of_larger_buffers(variant):
    """Batch, head, channel and time strides are taken as given; what lies between is not read."""
    case = make_case(Setting(BLOCK), torch.bfloat16, 2, 3)
    expected = program(case, variant)
    conv, state = case.states
    nan = float("nan")
    wide = torch.full((2, conv.shape[2] + 1, 3, conv.shape[1]), nan, dtype=conv.dtype)
    pool = torch.full((5, 6, *state.shape[2:][::-1]), nan)
    conv_view, state_view = wide[:, 1:, 1].transpose(1, 2), pool[1::3, 1:5].transpose(2, 3)
    conv_view.copy_(conv)
    state_view.copy_(state)
    case.states = (conv_view, state_view)
    assert_equal(program(case, variant).results, expected.results)


@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_and_mask_as_views(variant):
    case = make_case(Setting(BLOCK, masked=True), torch.bfloat16, 3, 3)
    expected = program(case, variant)
    wide = torch.full((3, 3, case.hidden.shape[2] + 24), float("nan"), dtype=torch.bfloat16)
    wide[..., 8:-16] = case.hidden
    case.hidden = wide[..., 8:-16]
    case.mask = torch.stack([case.mask.T, ~case.mask.T], -1)[..., 0].T
    assert case.mask.stride() == (2, 6)
    assert_equal(program(case, variant).results, expected.results)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_masked_may_hold_anything(variant):
    case = make_case(Setting(BLOCK, masked=True), torch.bfloat16, 2, 6)
    expected = program(case, variant)
    case.hidden = torch.where(case.mask[..., None], case.hidden, float("nan"))
    found = program(case, variant)
    assert torch.equal(found.conv_out, expected.conv_out)
    assert torch.equal(found.state_out, expected.state_out)
    live = case.mask[..., None].expand_as(found.output)
    assert torch.equal(found.output[live], expected.output[live])
    assert found.output[~live].isnan().all()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("input_norm", [False, True])
def test_a_masked_token_adds_zero(variant, input_norm):
    case = make_case(Setting(BLOCK, masked=True, input_norm=input_norm), torch.bfloat16, 3, 5)
    found = program(case, variant)
    expected = case.hidden if input_norm else torch.zeros_like(case.hidden)
    assert torch.equal(found.output[~case.mask], expected[~case.mask])
    assert torch.equal(found.conv_out[1], case.states[0][1])  # all masked
    assert torch.equal(found.state_out[1], case.states[1][1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_repeats_are_bit_identical(variant):
    case = make_case(Setting(BLOCK), torch.bfloat16, 1, 2)
    first = program(case, variant).results
    for seed in range(4):
        again = Program(variant, case.layer, case.hidden, case.states, case.mask)
        run(again, seed=seed, schedule="random")
        assert_equal(again.results, first)


def slow(name: str):
    mark = pytest.mark.skipif(os.environ.get("TMF_SLOW") != "1", reason="minutes: TMF_SLOW=1")
    return pytest.param(name, marks=mark)


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("name", ["0.8b", slow("9b"), slow("27b")])
def test_real_shapes(name, rows):
    """Both variants in bf16."""
    shape, dtype = REAL[name], torch.bfloat16
    layer = make_layer(shape, dtype, input_norm=True)
    hidden, states = make_hidden(shape, 1, rows, dtype), make_states(shape, 1, dtype)
    packed = Program("packed", layer, hidden, states)
    run(packed)
    core = Program("core", layer, hidden, states, weights=(packed.w_in, packed.w_out))
    run(core)
    assert packed.arena.guards_intact() and core.arena.guards_intact()
    assert_equal(packed.results, core.results)
    assert_close(core.results, reference_layer(layer, hidden, states), dtype)


def test_splits_at_a_real_shape():
    """Three split points; the parts alternate between the variants."""
    shape, dtype = REAL["0.8b"], torch.bfloat16
    layer = make_layer(shape, dtype, input_norm=True)
    hidden, states = make_hidden(shape, 1, 8, dtype), make_states(shape, 1, dtype)
    whole = Program("core", layer, hidden, states)
    run(whole)
    weights = (whole.w_in, whole.w_out)
    for cut in (1, 3, 7):
        first = Program("packed", layer, hidden[:, :cut], states, weights=weights)
        run(first)
        second = Program("core", layer, hidden[:, cut:], first.results[1:], weights=weights)
        run(second)
        output = torch.cat([first.output, second.output], 1)
        assert_equal((output, *second.results[1:]), whole.results)


@pytest.mark.long
def test_more_tokens_than_16_bits_count():
    """65,600 tokens in one call, with three blocks of tokens in one variant."""
    case = make_case(
        Setting(Shape(32, 1, 1), masked=True, input_norm=False), torch.float32, 1, 65_600
    )
    packed = program(case, "packed", geometry=Geometry(block=30_000))
    core = program(case, "core")
    assert_equal(packed.results, core.results)
    expected = reference_layer(case.layer, case.hidden, case.states, case.mask)
    assert_close(core.results, expected, torch.float32)
