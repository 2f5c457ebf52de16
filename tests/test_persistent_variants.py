"""`hybrid` and `mega` on CPU tensors give the bits of `packed` and `core`, whatever the workers do.

The marked tests take minutes: python -m pytest -m long tests/test_persistent_variants.py
"""

import contextlib

import pytest
import torch
from cases import DTYPES, REAL, make_hidden, make_layer, make_states, pack_layer
from compare import assert_equal, run_layer, run_layer_in_place
from settings import BLOCK, RAGGED, TILED, Setting, make_case

from torch_mps_fusion import host_kernels, plan

PERSISTENT = ("hybrid", "mega")
BF16 = torch.bfloat16
WITH_STATES = Setting(BLOCK)
WITHOUT = Setting(TILED, masked=True, width=0, input_norm=False, float_gates=True)
UNEVEN = Setting(RAGGED, masked=True, width=2, keys_adjacent=False)
ROWS = [(b, t) for b in (1, 3) for t in (1, 3, 8)]


@contextlib.contextmanager
def geometry(text):
    before = torch.ops.mps_fusion._override_geometry(text)
    try:
        yield
    finally:
        torch.ops.mps_fusion._override_geometry(before)


class Call:
    """A layer call with packed weights."""

    def __init__(self, setting, dtype, batch, tokens):
        self.case = make_case(setting, dtype, batch, tokens)
        self.layer = pack_layer(self.case.layer)
        self.states = self.case.states or (None, None)

    def __call__(self, variant):
        given = (self.case.hidden, self.states, self.case.mask)
        return run_layer(self.layer, *given, variant=variant)

    def in_place(self, variant, states):
        return run_layer_in_place(
            self.layer, self.case.hidden, states, self.case.mask, variant=variant
        )


# ---------------------------------------------------------------------------------------- bits


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("setting", [WITH_STATES, WITHOUT], ids=["states", "none"])
def test_all_variants_have_the_same_bits(setting, dtype):
    for rows in ROWS:
        call = Call(setting, dtype, *rows)
        packed = call("packed")
        for variant in ("core", *PERSISTENT):
            assert_equal(call(variant), packed)


@pytest.mark.parametrize("rows", [(3, 8), (1, 30), (4, 8)], ids=str)
def test_uneven_heads_other_state_orders_and_several_passes(rows):
    call = Call(UNEVEN, BF16, *rows)
    packed = call("packed")
    for variant in PERSISTENT:
        assert_equal(call(variant), packed)


@pytest.mark.parametrize("variant", PERSISTENT)
def test_the_input_norm_as_a_dispatch_of_its_own(variant):
    call = Call(WITH_STATES, BF16, 1, 3)
    packed = call("packed")
    with geometry(";norm=own"):
        assert_equal(call(variant), packed)


@pytest.mark.parametrize("variant", PERSISTENT)
def test_64_launches_in_place(variant):
    call = Call(WITH_STATES, BF16, 1, 1)
    states = {v: tuple(s.clone() for s in call.states) for v in ("packed", variant)}
    for _ in range(64):
        outputs = [call.in_place(v, states[v]) for v in states]
        assert_equal((outputs[0], *states["packed"]), (outputs[1], *states[variant]))


@pytest.mark.parametrize("variant", PERSISTENT)
def test_states_of_any_strides_in_place(variant):
    call = Call(UNEVEN, torch.float16, 2, 3)
    wide = [torch.full([2 * n for n in s.shape], 7.0).to(s.dtype) for s in call.states]
    results = {}
    for v in ("packed", variant):
        conv = wide[0].clone()[::2, ::2, ::2]
        recurrent = wide[1].clone()[:, ::2, : call.states[1].shape[2], : call.states[1].shape[3]]
        recurrent = recurrent[::2].contiguous()
        conv.copy_(call.states[0])
        recurrent.copy_(call.states[1])
        results[v] = (call.in_place(v, (conv, recurrent)), conv, recurrent)
    assert_equal(results["packed"], results[variant])


# ------------------------------------------------------------------------------------- workers

WAYS = [
    {"seed": 1, "schedule": "random", "residency": 1},
    {"seed": 2, "schedule": "random", "residency": 2, "preempt": 50},
    {"seed": 3, "schedule": "random", "order": "shuffled"},
    {"seed": 4, "schedule": "reverse"},
    {"seed": 5, "schedule": "priority", "residency": 2},
]


@pytest.mark.parametrize("variant", PERSISTENT)
@pytest.mark.parametrize("way", WAYS, ids=lambda w: w["schedule"] + str(w["seed"]))
def test_no_fault_and_the_same_bits_in_the_checking_build(way, variant):
    call = Call(Setting(BLOCK, masked=True), BF16, 1, 9)  # two passes of rows
    packed = call("packed")
    with host_kernels.running(checked=True, **way) as launches:
        assert_equal(call(variant), packed)
    assert launches[-1].family == "persistent" and not launches[-1].result.lost


@pytest.mark.parametrize("variant", PERSISTENT)
def test_any_number_of_workers(variant):
    call = Call(WITH_STATES, BF16, 1, 3)
    packed = call("packed")
    tasks = next(d.tasks for d in planned(call, variant).dispatches if d.tasks)
    for workers in (1, 2, 3, 5, 8, 13, 1000):
        with geometry(f";workers={workers}"), host_kernels.running() as launches:
            assert_equal(call(variant), packed)
        assert launches[-1].result.started == min(workers, len(tasks.records))


# ------------------------------------------------------------------------------------- traffic


@pytest.mark.parametrize("rows", [1, 8])
def test_bytes(rows):
    """Weights and recurrent state as often as in packed; what fusion saves and adds, by name."""
    call = Call(Setting(RAGGED), BF16, 1, rows)
    moved = {}
    for variant in ("packed", "core", *PERSISTENT):
        with host_kernels.running(checked=True, count_only=True) as launches:
            call(variant)
        moved[variant] = [(launch.family, launch.result) for launch in launches]

    def of(variant, family, name, which=-1):
        return [r for f, r in moved[variant] if f == family][which].buffers[name]

    mega, hybrid = (of(v, "persistent", "W_out").read for v in ("mega", "hybrid"))
    assert mega == hybrid == of("packed", "projection", "W").read
    assert of("mega", "persistent", "W_in").read == of("packed", "projection", "W", 0).read
    for variant in PERSISTENT:
        states = {n: of(variant, "persistent", n) for n in ("state_in", "state_out")}
        assert states["state_in"].read == of("packed", "rule", "state_in").read
        assert states["state_out"].written == of("packed", "rule", "state_out").written
        assert states["state_in"].written == states["state_out"].read == 0
        written = of(variant, "persistent", "conv_out").written
        assert written == of("packed", "projection", "conv_out").written
        # Y and G as in `core`, but that parts of a head each read its q, k and gates; and O between
        # the rule and the gated norm
        y, g, o = (of(variant, "persistent", name) for name in ("Y", "G", "O"))
        parts = RAGGED.head_v_dim // 32
        core = of("core", "core", "Y")
        fewest = core.read + of("core", "projection", "gdn_y").read
        assert y.read_distinct == core.read_distinct
        assert fewest <= y.read <= fewest + (parts - 1) * core.read
        made = of("core", "projection", "Y", 0).written
        assert y.written == (made if variant == "mega" else 0)
        assert g.read == of("core", "projection", "X").read
        assert g.written == of("core", "core", "G").written == o.written == o.read
        # what is added: tables, counters, spins
        result = moved[variant][-1][1]
        program = planned(call, variant)
        tasks = next(d.tasks for d in program.dispatches if d.tasks)
        records = of(variant, "persistent", "records")
        assert 0 < records.read_distinct <= 32 * len(tasks.records) + 8 * len(tasks.edges)
        signals = sum(t.n_signals for t in tasks.records)
        assert result.counters.fences > 0
        assert of(variant, "persistent", "counters").atomics > signals


def planned(call, variant, geometry=""):
    case = call.case
    return plan.plan_layer(
        case.hidden,
        *call.layer.weights,
        call.layer.input_norm_weight,
        *call.states,
        case.mask,
        **call.layer.keywords,
        variant=variant,
        device="host",
        geometry=geometry,
    )


# ----------------------------------------------------------------------------------- real sizes


@pytest.mark.long
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("model", REAL)
def test_two_launches_at_a_real_shape(model, rows):
    shape = REAL[model]
    layer = pack_layer(make_layer(shape, BF16, input_norm=True))
    hidden, states = make_hidden(shape, 1, rows, BF16), make_states(shape, 1, BF16)
    results = {}
    for variant in ("packed", "core", *PERSISTENT):
        given = states
        for _ in range(2):
            output, *given = run_layer(layer, hidden, tuple(given), variant=variant)
        results[variant] = (output, *given)
        assert_equal(results[variant], results["packed"])
