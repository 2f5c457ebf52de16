"""The checking build: races, bounds, values never written; and bytes as they are counted."""

import pytest
import torch
from cases import Shape, make_hidden, make_layer, make_states
from compare import assert_equal
from host import launch, run
from program import Geometry, Program
from settings import BLOCK, RAGGED, WIDE, Setting, make_case

VARIANTS = ("packed", "core")

# Buffers that a kernel only writes: what they hold before counts as never written.
POISON = {
    "rms_norm": ["Y"],
    "projection": ["Y"],
    "conv": ["C"],
    "qk_gates": ["Q", "K", "KQ", "gates"],
    "rule": ["O"],
    "gated_norm": ["G"],
    "core": ["G"],
}
WAYS = [  # of running: seeds, schedules and threadgroups in flight at once
    {"seed": 1, "schedule": "random", "residency": 1},
    {"seed": 2, "schedule": "random", "residency": 2, "preempt": 50},
    {"seed": 3, "schedule": "random", "order": "shuffled"},
    {"seed": 4, "schedule": "reverse"},
    {"seed": 5, "schedule": "priority", "residency": 2},
    {"seed": 6, "schedule": "unfair"},
]
SETTINGS = [
    (Setting(BLOCK, masked=True), torch.bfloat16, Geometry()),
    (Setting(RAGGED, width=2, keys_adjacent=False), torch.float16, Geometry("nt1u4", groups=2)),
    (Setting(WIDE, masked=True, width=0), torch.float32, Geometry(joined_norm=True, block=4)),
]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("setting", SETTINGS, ids=["block", "ragged", "wide"])
def test_no_fault_under_seeds_and_residencies(variant, setting):
    what, dtype, geometry = setting
    case = make_case(what, dtype, 2, 9)
    given = (case.layer, case.hidden, case.states, case.mask)
    plain = Program(variant, *given, geometry=geometry)
    run(plain)
    for way in WAYS:
        made = Program(variant, *given, geometry=geometry)
        for d in made.dispatches:
            # the dispatches of later blocks write between what earlier ones wrote
            poison = [] if geometry.block else POISON[d.family]
            launch(d, checked=True, poison=poison, **way)
        assert_equal(made.results, plain.results)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_fault_in_place(variant):
    case = make_case(Setting(RAGGED, masked=True, width=3), torch.bfloat16, 2, 5)
    made = Program(variant, case.layer, case.hidden, case.states, case.mask, in_place=True)
    run(made, checked=True, schedule="random", seed=11)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rows", [1, 8])
def test_bytes(variant, rows):
    """Weights and recurrent state are read once, the state is written once, byte by byte."""
    shape, dtype = Shape(256, 2, 6, 64, 64), torch.bfloat16
    layer = make_layer(shape, dtype, input_norm=True)
    hidden, states = make_hidden(shape, 1, rows, dtype), make_states(shape, 1, dtype)
    made = Program(variant, layer, hidden, states)
    results = run(made, checked=True, count_only=True)
    by_family = list(zip([d.family for d in made.dispatches], results, strict=True))
    for i, weight in ((0, made.w_in), (-1, made.w_out)):
        w = by_family[i][1].buffers["W"]
        assert w.read == w.read_distinct == weight.nbytes
    rule = next(r for f, r in by_family if f in ("rule", "core")).buffers
    assert rule["state_in"].read == rule["state_in"].read_distinct == states[1].nbytes
    assert rule["state_out"].written == rule["state_out"].written_distinct == states[1].nbytes
    assert rule["state_in"].written == rule["state_out"].read == 0
    conv = next(r for f, r in by_family if f in ("conv", "core")).buffers
    weight = conv["weight" if variant == "packed" else "conv_weight"]
    assert weight.read_distinct == layer.conv_weight.nbytes
    if variant == "packed":
        assert weight.read == layer.conv_weight.nbytes
    else:
        # the three value heads of a key head each read its q and k channels
        shared = 2 * shape.key_dim * shape.conv_width * 2
        assert weight.read == layer.conv_weight.nbytes + 2 * shared
    last = by_family[-1][1].buffers
    assert last["conv_out"].written == last["conv_out"].written_distinct == states[0].nbytes
    assert last["Y"].written == last["Y"].written_distinct == made.output.nbytes
