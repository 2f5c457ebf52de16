"""`packed` and `core` through the ops, on CPU tensors: every kernel runs in metal_host."""

import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
import torch
from cases import (
    DTYPES,
    REAL,
    Shape,
    guarded,
    guards_intact,
    make_hidden,
    make_layer,
    make_states,
    offset_view,
    pack_layer,
    strided_view,
)
from compare import assert_close, assert_equal, reference_layer, run_layer, run_layer_in_place
from settings import BLOCK, RAGGED, TILED, Setting, make_case

from torch_mps_fusion import host_kernels, plan

VARIANTS = ("packed", "core")
BF16 = torch.bfloat16
WITH_STATES = Setting(BLOCK)
WITHOUT = Setting(TILED, masked=True, width=0, input_norm=False, float_gates=True)
UNEVEN = Setting(RAGGED, masked=True, width=2, keys_adjacent=False)
ROWS = [(b, t) for b in (1, 3) for t in (1, 3, 8)]


def given(case):
    return case.hidden, case.states or (None, None), case.mask


def run(case, variant, layer=None, **keywords):
    return run_layer(layer or pack_layer(case.layer), *given(case), variant=variant, **keywords)


def both(case):
    """The results of both variants, which are the same bits."""
    layer = pack_layer(case.layer)
    packed, core = (run(case, v, layer) for v in VARIANTS)
    assert_equal(packed, core)
    return core


# ------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("setting", [WITH_STATES, WITHOUT], ids=["states", "none"])
@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_small_width(rows, setting, dtype):
    case = make_case(setting, dtype, *rows)
    assert_close(both(case), reference_layer(case.layer, *given(case)), dtype)


@pytest.mark.parametrize("rows", [(3, 3), (1, 30)], ids=str)
def test_uneven_heads_and_other_state_orders(rows):
    case = make_case(UNEVEN, BF16, *rows)
    assert_close(both(case), reference_layer(case.layer, *given(case)), BF16)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_split_equals_the_one_shot_run(variant):
    case = make_case(Setting(BLOCK), BF16, 2, 9)
    layer = pack_layer(case.layer)
    whole = run(case, variant, layer)
    for cut in range(1, 9):
        first, *states = run_layer(layer, case.hidden[:, :cut], case.states, variant=variant)
        second, *last = run_layer(layer, case.hidden[:, cut:], tuple(states), variant=variant)
        assert_equal((torch.cat([first, second], 1), *last), whole)


@pytest.mark.parametrize("variant", VARIANTS)
def test_three_splits_at_the_smallest_model(variant):
    shape = REAL["0.8b"]
    layer = pack_layer(make_layer(shape, BF16, input_norm=True))
    hidden, states = make_hidden(shape, 1, 8, BF16), make_states(shape, 1, BF16)
    whole = run_layer(layer, hidden, states, variant=variant)
    for cut in (1, 4, 7):
        first, *middle = run_layer(layer, hidden[:, :cut], states, variant=variant)
        second, *last = run_layer(layer, hidden[:, cut:], tuple(middle), variant=variant)
        assert_equal((torch.cat([first, second], 1), *last), whole)


@pytest.mark.parametrize("tokens", [33, 40])
def test_above_the_row_threshold(tokens):
    for setting in (WITH_STATES, WITHOUT):
        case = make_case(setting, BF16, 1, tokens)
        assert_close(both(case), reference_layer(case.layer, *given(case)), BF16)


def test_a_long_prefill_at_the_smallest_model():
    """T = 2,048: products of aten around our stages, in several dispatches."""
    shape = REAL["0.8b"]
    layer = make_layer(shape, BF16, input_norm=True)
    hidden, states = make_hidden(shape, 1, 2048, BF16), make_states(shape, 1, BF16)
    packed = pack_layer(layer)
    results = [run_layer(packed, hidden, states, variant=v) for v in VARIANTS]
    assert_equal(*results)
    assert_close(results[0], reference_layer(layer, hidden, states), BF16)


def test_B3_B10_more_than_65536_tokens():
    """Against the native kernels, which are compared with float64 elsewhere."""
    shape = Shape(32, 1, 1, 32, 32)
    layer = make_layer(shape, torch.float32)
    hidden, states = (
        make_hidden(shape, 1, 70_000, torch.float32),
        make_states(shape, 1, torch.float32),
    )
    with host_kernels.running(threads=2) as launches:
        actual = run_layer(pack_layer(layer), hidden, states, variant="core")
    assert sum(launch.family == "core" for launch in launches) > 1
    assert_close(actual, run_layer(layer, hidden, states, variant="native"), torch.float32)


def test_B5_more_than_65536_convolution_channels_in_a_batch():
    shape = Shape(32, 1, 1, 32, 32)
    layer = make_layer(shape, torch.float32)
    hidden, states = (
        make_hidden(shape, 700, 1, torch.float32),
        make_states(shape, 700, torch.float32),
    )
    actual = run_layer(pack_layer(layer), hidden, states, variant="core")
    assert_close(actual, run_layer(layer, hidden, states, variant="native"), torch.float32)


# ----------------------------------------------------------------------------- real shapes, bytes


def real_cases():
    """Each shape, and each number of rows at the smallest; the others take long."""
    for name in REAL:
        for rows in (1, 8):
            long = (name, rows) in (("9b", 1), ("27b", 8))
            yield pytest.param(name, rows, marks=pytest.mark.long if long else ())


@pytest.mark.parametrize("name, rows", list(real_cases()))
def test_real_shapes(name, rows):
    """Error, bits, and every byte of the big operands: weights and state read once, state written
    once. The counting build runs the same kernels with the same results."""
    shape = REAL[name]
    layer = make_layer(shape, BF16, input_norm=True)
    packed = pack_layer(layer)
    hidden, states = make_hidden(shape, 1, rows, BF16), make_states(shape, 1, BF16)
    results = {}
    for variant, dispatches in (("packed", 6), ("core", 3)):
        with host_kernels.running(checked=True, count_only=True) as launches:
            results[variant] = run_layer(packed, hidden, states, variant=variant)
        assert len(launches) == dispatches
        check_bytes(shape, packed, launches, rows)
    assert_equal(results["packed"], results["core"])
    assert_close(results["core"], reference_layer(layer, hidden, states), BF16)


def check_bytes(shape, packed, launches, rows):
    counted = [launch.result.buffers for launch in launches]
    for buffers, weight in ((counted[0], packed.in_proj[0]), (counted[-1], packed.out_proj[0])):
        w = buffers["W"]
        assert w.read == w.read_distinct == weight.nbytes
    rule = next(x.result.buffers for x in launches if x.family in ("rule", "core"))
    state = 4 * shape.num_v_heads * shape.head_k_dim * shape.head_v_dim
    assert rule["state_in"].read == rule["state_in"].read_distinct == state
    assert rule["state_out"].written == rule["state_out"].written_distinct == state
    assert rule["state_in"].written == rule["state_out"].read == 0
    # the convolution's window: K - 1 columns; core reads those of q and k for each value head
    entry = 2 * shape.conv_dim
    conv = next(x for x in launches if x.family in ("conv", "core"))
    window = conv.result.buffers["conv_in" if conv.family == "conv" else "conv_state"]
    taps = shape.conv_width - 1
    assert window.read_distinct == taps * entry
    repeats = shape.num_v_heads // shape.num_k_heads - 1 if conv.family == "core" else 0
    assert window.read == taps * (entry + repeats * 2 * 2 * shape.key_dim)
    # the last dispatch moves the conv state on
    last = counted[-1]
    width = shape.conv_width
    assert last["conv_out"].written == last["conv_out"].written_distinct == width * entry
    assert last["conv_in"].read == max(0, width - rows) * entry
    assert last["Y"].written == last["Y"].written_distinct == 2 * rows * shape.hidden


# ------------------------------------------------------------------------------------- the ops


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("keys_adjacent", [True, False])
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_in_place_equals_functional(tokens, keys_adjacent, variant):
    case = make_case(replace(WITH_STATES, keys_adjacent=keys_adjacent), BF16, 2, tokens)
    layer, before = pack_layer(case.layer), [s.clone() for s in case.states]
    expected = run(case, variant, layer)
    assert all(torch.equal(a, b) for a, b in zip(case.states, before, strict=True))
    output = run_layer_in_place(layer, *given(case), variant=variant)
    assert_equal((output, *case.states), expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_I5_views_of_every_tensor(variant):
    """Offsets, strides, foreign values between: the bits of the plain tensors, nothing beside them
    is written. Packed weights are refused where they cannot be bound."""
    case = make_case(replace(WITH_STATES, masked=True), BF16, 2, 3)
    layer = pack_layer(case.layer)
    expected = run(case, variant, layer)
    names = ("conv_weight", "A_log", "dt_bias", "norm_weight", "input_norm_weight")
    for view in (offset_view, strided_view):
        viewed = replace(layer, **{n: view(getattr(layer, n)) for n in names})
        conv, recurrent = case.states
        # a head's elements stay contiguous, at an offset that is no multiple of 16 bytes
        states = view(conv), offset_view(recurrent.mT).mT
        mask = strided_view(case.mask) if view is strided_view else case.mask
        assert_equal(run_layer(viewed, view(case.hidden), states, mask, variant=variant), expected)
    views, buffers = zip(*(guarded(s) for s in case.states), strict=True)
    output = run_layer_in_place(layer, case.hidden, views, case.mask, variant=variant)
    assert_equal((output, *views), expected)
    assert all(guards_intact(*pair) for pair in zip(views, buffers, strict=True))


@pytest.mark.parametrize("variant", VARIANTS)
def test_states_that_the_kernels_cannot_take_are_copied(variant):
    """Rows of a head that do not touch each other, in place."""
    case = make_case(WITH_STATES, BF16, 2, 3)
    layer = pack_layer(case.layer)
    expected = run(case, variant, layer)
    conv, recurrent = case.states
    wide = torch.full((*recurrent.shape[:2], 32, 33), 7.0)
    view = wide[..., :32].mT
    view.copy_(recurrent)
    output = run_layer_in_place(layer, case.hidden, (conv, view), variant=variant)
    assert_equal((output, conv, view), expected)
    assert bool((wide[..., 32] == 7).all())


@pytest.mark.parametrize("variant", VARIANTS)
def test_masked_tokens_may_hold_anything(variant):
    for tokens in (6, 40):
        case = make_case(replace(WITH_STATES, masked=True), BF16, 2, tokens)
        expected = run(case, variant)
        case.hidden = torch.where(case.mask[..., None], case.hidden, float("nan"))
        found = run(case, variant)
        live = case.mask[..., None].expand_as(found[0])
        assert torch.equal(found[0][live], expected[0][live])
        assert torch.equal(found[1], expected[1]) and torch.equal(found[2], expected[2])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("batch", "tokens"), [(0, 3), (2, 0)])
def test_empty_calls(batch, tokens, variant):
    layer = pack_layer(make_layer(BLOCK, BF16))
    hidden, states = make_hidden(BLOCK, batch, tokens, BF16), make_states(BLOCK, batch, BF16)
    output, *after = run_layer(layer, hidden, states, variant=variant)
    assert output.shape == hidden.shape
    assert all(torch.equal(a, s) for a, s in zip(after, states, strict=True))
    _, *fresh = run_layer(layer, hidden, variant=variant)
    assert all(bool((f == 0).all()) for f in fresh)


def test_G13_a_row_does_not_depend_on_its_neighbours():
    case = make_case(replace(WITH_STATES, masked=True), BF16, 3, 4)
    layer = pack_layer(case.layer)
    together = run(case, "core", layer)
    for b in range(3):
        row = slice(b, b + 1)
        states = tuple(s[row] for s in case.states)
        alone = run_layer(layer, case.hidden[row], states, case.mask[row], variant="core")
        assert_equal(alone, tuple(t[row] for t in together))


@pytest.mark.parametrize("variant", VARIANTS)
def test_G5_fifty_repeats(variant):
    case = make_case(WITH_STATES, BF16, 1, 3)
    layer = pack_layer(case.layer)
    first = run(case, variant, layer)
    for _ in range(49):
        assert_equal(run(case, variant, layer), first)


def test_I3_threads_share_a_first_use():
    """Four threads ask for kernels that nobody made yet; all get the same bits."""
    case = make_case(replace(WITH_STATES, input_norm=False), torch.float16, 1, 2)
    layer = pack_layer(case.layer)
    results = [None] * 4

    def work(i):
        results[i] = run(case, "core", layer)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for r in results[1:]:
        assert_equal(r, results[0])


def test_J1_lengths_leave_nothing_behind():
    """Kernels are not compiled, and memory is not kept, for each new length."""
    shape = Shape(32, 1, 1, 32, 32)
    layer = pack_layer(make_layer(shape, torch.float32))

    def pages():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1])

    def run_lengths(lengths):
        for tokens in lengths:
            run_layer(layer, make_hidden(shape, 1, tokens, torch.float32), variant="core")

    run_lengths([1, 33, 1024])
    compiled, before = host_kernels._compile.cache_info().currsize, pages()
    run_lengths(range(1, 1024, 25))
    assert host_kernels._compile.cache_info().currsize == compiled
    assert (pages() - before) * os.sysconf("SC_PAGE_SIZE") < 16 << 20


def test_threadgroup_memory_is_what_the_planner_says():
    """As metal_host counts it, for dims that differ."""
    case = make_case(UNEVEN, BF16, 2, 40)
    layer = pack_layer(replace(case.layer, input_norm_weight=case.layer.norm_weight[:64].clone()))
    hidden, states, mask = given(case)
    for variant in VARIANTS:
        with host_kernels.running() as launches:
            run_layer(layer, hidden, states, mask, variant=variant)
        planned = plan.plan_layer(
            hidden, *layer.weights, layer.input_norm_weight, *states, mask,
            **layer.keywords, variant=variant, device="host",
        )  # fmt: skip
        found = [(x.kernel, x.result.counters.threadgroup_bytes) for x in launches]
        assert found == [(d.kernel, d.threadgroup_bytes) for d in planned.kernels]
        assert [x.constants for x in launches] == [d.constants for d in planned.kernels]


# ------------------------------------------------------------------------------------- refusals


def test_a_fault_is_an_error_with_its_text():
    case = make_case(WITH_STATES, BF16, 1, 1)
    with (
        host_kernels.running(threadgroup_limit=1024),
        pytest.raises(RuntimeError, match="threadgroup-memory"),
    ):
        run(case, "core")


def test_the_checking_build_runs_whole_layers():
    case = make_case(replace(WITH_STATES, masked=True), BF16, 2, 3)
    expected = run(case, "core")
    with host_kernels.running(checked=True, seed=5, schedule="random", residency=2) as launches:
        assert_equal(run(case, "core"), expected)
    assert [x.family for x in launches] == ["projection", "core", "projection"]


def test_no_compiler_says_what_to_install(tmp_path):
    """And the states are as they were: all kernels are there before the first one runs."""
    code = """
import sys, torch
sys.path[:0] = [p + "/tests" for p in [sys.argv[1]]]
from cases import *
from compare import run_layer_in_place
layer = pack_layer(make_layer(SMALL, torch.float32))
states = make_states(SMALL, 1, torch.float32)
kept = [s.clone() for s in states]
try:
    run_layer_in_place(layer, make_hidden(SMALL, 1, 1, torch.float32), states, variant="core")
except RuntimeError as error:
    assert all(torch.equal(a, b) for a, b in zip(states, kept))
    print(error)
"""
    environment = {**os.environ, "METAL_HOST_CACHE": str(tmp_path), "METAL_HOST_CLANG": "no-clang"}
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    done = subprocess.run(
        [sys.executable, "-c", code, root], env=environment, capture_output=True, text=True
    )
    assert "METAL_HOST_CLANG=no-clang: there is no such program" in done.stdout, done.stderr


PACKED = "tiles16-apple"
COMBINATIONS = [
    ("stock", PACKED, NotImplementedError, "variant 'stock': weight_format 'tiles16-apple'"),
    ("native", PACKED, NotImplementedError, "variant 'native': weight_format 'tiles16-apple'"),
    ("auto", PACKED, NotImplementedError, "variant 'auto': weight_format 'tiles16-apple'"),
    ("packed", "rows", NotImplementedError, "'rows' is not accepted on cpu; accepted: 'tiles16-a"),
    ("core", "tiles16-nvidia", NotImplementedError, "'tiles16-nvidia' is not accepted on cpu"),
    ("hybrid", "rows", NotImplementedError, "variant 'hybrid': weight_format 'rows' is not acc"),
    ("mega", "tiles16-nvidia", NotImplementedError, "'tiles16-nvidia' is not accepted on cpu"),
    ("core", "tiles8", ValueError, "weight_format: got 'tiles8'; accepted: 'rows', 'tiles16-ap"),
]


@pytest.mark.parametrize(("variant", "weight_format", "kind", "message"), COMBINATIONS)
def test_other_combinations_are_refused_by_name(variant, weight_format, kind, message):
    layer = make_layer(BLOCK, BF16)
    if weight_format != "rows":
        layer = pack_layer(layer, "nvidia" if "nvidia" in weight_format else "apple")
        layer.keywords["weight_format"] = weight_format
    with pytest.raises(kind, match=message):
        run_layer(layer, make_hidden(BLOCK, 1, 1, BF16), variant=variant)


def test_packed_weights_that_do_not_fit():
    layer, hidden = pack_layer(make_layer(BLOCK, BF16)), make_hidden(BLOCK, 1, 1, BF16)
    w = layer.in_proj[0]
    shifted = torch.cat([w.new_zeros(1), w])[1:]
    strided = torch.stack([w, w], 1)[:, 0]
    for bad, message in (
        ([w[:-16]], r"in_proj\[0\]: got shape"),
        ([w, w], "in_proj: got a list of 2 tensors; accepted: one packed tensor"),
        ([w.float()], r"in_proj\[0\]: got dtype float32"),
        ([w.view(-1, 32)], r"in_proj\[0\]: got shape"),
        ([strided], r"in_proj\[0\]: got strides"),
        ([shifted], r"in_proj\[0\]: got memory that does not begin on 16 bytes"),
    ):
        with pytest.raises(ValueError, match=message):
            run_layer(replace(layer, in_proj=bad), hidden, variant="core")
