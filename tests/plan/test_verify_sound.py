"""What the program verifier accepts: the planner's programs at all shapes, and every program that
is broken only to the eye."""

import copy
import struct
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from task_machine import sound
from test_verify_program import (
    SMALL,
    buffer,
    layer,
    own_edges,
    reorder,
    retabled,
    set_edges,
    tasks_of,
)

from torch_mps_fusion import plan

# batch, tokens, hidden, Hk, Hv, Dk, Dv
REAL = {
    "0.8B": (1024, 16, 16, 128, 128),
    "9B": (4096, 16, 32, 128, 128),
    "27B": (5120, 16, 48, 128, 128),
}


@pytest.mark.parametrize("variant", ["hybrid", "mega"])
@pytest.mark.parametrize("rows", [(1, 1), (1, 8), (3, 8), (32, 1)], ids=str)
@pytest.mark.parametrize("model", REAL)
def test_real_shapes_in_well_under_a_second(model, rows, variant):
    program = layer((*rows, *REAL[model]), variant, "block", device="M1 Max")
    listing = program.listing()
    start = time.process_time()
    assert torch.ops.mps_fusion._check_program(listing) == ""
    assert time.process_time() - start < 1


dims = st.sampled_from([32, 64, 128])
flags = st.booleans()


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    rows=st.tuples(st.integers(1, 3), st.integers(1, 8)),
    hidden=st.integers(1, 6).map(lambda n: 32 * n),
    heads=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    head_dims=st.tuples(dims, dims),
    widths=st.tuples(st.integers(2, 5), st.integers(0, 3)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    options=st.fixed_dictionaries(
        {"in_place": flags, "own_norm": flags, "variant": st.sampled_from(["hybrid", "mega"])}
    ),
    head_map=st.sampled_from(["block", "tiled"]),
    workers=st.integers(1, 40),
    masked=flags,
    states=flags,
    norm=flags,
    channels_last=flags,
)
def test_the_planners_programs(
    rows, hidden, heads, head_dims, widths, dtype, options, head_map, workers, masked, states, norm,
    channels_last,
):  # fmt: skip
    (k_heads, values_each), (k_dim, v_dim), (taps, more) = heads, head_dims, widths
    v_heads = k_heads * values_each
    arguments, keywords = plan.meta_layer(
        batch=rows[0], tokens=rows[1], hidden_size=hidden, num_k_heads=k_heads,
        num_v_heads=v_heads, head_k_dim=k_dim, head_v_dim=v_dim, conv_width=taps, dtype=dtype,
        weight_format="tiles16-apple", input_norm=norm, states=states or options["in_place"],
    )  # fmt: skip
    changed = list(arguments)
    if changed[8] is not None:
        size = (rows[0], 2 * k_heads * k_dim + v_heads * v_dim, taps + more)
        order = (0, 2, 1) if channels_last else (0, 1, 2)
        flat = torch.empty([size[i] for i in order], dtype=dtype, device="meta")
        changed[8] = flat.permute(order)
    if masked:
        changed[10] = torch.empty(rows, dtype=torch.bool, device="meta")
    listing, *_ = torch.ops.mps_fusion._plan_layer(
        *changed, **keywords | {"head_map": head_map}, **options, device="M1",
        geometry=f";workers={workers}",
    )  # fmt: skip
    assert torch.ops.mps_fusion._check_program(listing) == ""


@pytest.mark.parametrize("name", SMALL)
def test_every_wait_and_signal_is_needed(name):
    """The planner lists none that could be left out."""
    program = layer(*SMALL[name])
    tasks = own_edges(tasks_of(program))
    for ticket, r in enumerate(tasks.records):
        for kind in ("wait", "signal"):
            edges = tasks.waits(r) if kind == "wait" else tasks.signals(r)
            for i, (counter, count) in enumerate(edges):
                less = copy.deepcopy(program)
                left = [*edges[:i], *[(counter, 0)] * (r.stage == "out_proj"), *edges[i + 1 :]]
                set_edges(tasks_of(less), tasks_of(less).records[ticket], kind, left)
                assert bool(retabled(less).faults()) == (count > 0), (r, kind, i)


# Equivalents: each changes a program to one that means the same, and says why it does.


def renamed_counters(p, tasks):
    """A counter is known by those who signal it."""
    tasks.edges = [(tasks.counters - 1 - counter, count) for counter, count in tasks.edges]


def scaled_counts(p, tasks):
    """A counter may go in steps of three."""
    tasks.edges = [(counter, 3 * count) for counter, count in tasks.edges]


def waits_listed_backwards(p, tasks):
    """A head waits for all of its waits, in any order."""
    for r in tasks.records:
        if r.stage == "head":
            set_edges(tasks, r, "wait", tasks.waits(r)[::-1])


def signal_for_nobody(p, tasks):
    """Nobody waits for the counter."""
    set_edges(
        tasks, tasks.records[0], "signal", [*tasks.signals(tasks.records[0]), (tasks.counters, 1)]
    )
    tasks.counters += 1


def same_wait_twice(p, tasks):
    """Met when the first one is."""
    r = next(r for r in tasks.records if r.stage == "conv_state")
    set_edges(tasks, r, "wait", tasks.waits(r) * 2)


def twin_counter(p, tasks):
    """Two segments of K within one head have counters that the same tasks signal."""
    r = tasks.records[-1]
    waits = tasks.waits(r)
    by_signalers = {}
    for i, (counter, count) in enumerate(waits):
        if count:
            by_signalers.setdefault(signalers(tasks, counter), []).append(i)
    for twins in by_signalers.values():
        for i in twins[1:]:
            waits[i] = waits[twins[0]]
    set_edges(tasks, r, "wait", waits)


def independent_tasks_swapped(p, tasks):
    """The last two output tiles do not depend on each other."""
    n = len(tasks.records)
    reorder(tasks, [*range(n - 2), n - 1, n - 2])


def signalers(tasks, counter):
    return tuple(t for t, r in enumerate(tasks.records) if counter in dict(tasks.signals(r)))


def implied_waits_dropped(p, tasks):
    """The conv state waits for all heads, which waited for all columns."""
    after_heads(p, tasks)
    for r in tasks.records:
        if r.stage == "conv_state":
            set_edges(tasks, r, "wait", tasks.waits(r)[-1:])


def after_heads(p, tasks):
    """Conv state tasks wait for all heads too, by a new counter."""
    heads = [t for t, r in enumerate(tasks.records) if r.stage == "head"]
    states = [t for t, r in enumerate(tasks.records) if r.stage == "conv_state"]
    new, tasks.counters = tasks.counters, tasks.counters + 1
    for t in heads:
        set_edges(tasks, tasks.records[t], "signal", [*tasks.signals(tasks.records[t]), (new, 1)])
    for t in states:
        edges = [*tasks.waits(tasks.records[t]), (new, len(heads))]
        set_edges(tasks, tasks.records[t], "wait", edges)
    assert max(heads) < min(states)


def dead_memory_used_again(p, tasks):
    """Output tiles wait for the conv state, the last to read Y, so that they may write over it.

    The new wait takes the place of one for an empty segment of K."""
    after_heads(p, tasks)
    if all(b.name != "Y" or b.given for b in p.buffers):
        return
    states = [r for r in tasks.records if r.stage == "conv_state"]
    new, tasks.counters = tasks.counters, tasks.counters + 1
    for r in states:
        set_edges(tasks, r, "signal", [(new, 1)])
    for r in tasks.records:
        if r.stage == "out_proj":
            waits = tasks.waits(r)
            empty = next(i for i, (_, count) in enumerate(waits) if count == 0)
            waits[empty] = (new, len(states))
            set_edges(tasks, r, "wait", waits)
    alias_output_and_y(p)


def alias_output_and_y(p):
    buffer(p, "output").storage = buffer(p, "Y").storage


EQUIVALENTS = [
    renamed_counters, scaled_counts, waits_listed_backwards, signal_for_nobody, same_wait_twice,
    twin_counter, independent_tasks_swapped, implied_waits_dropped, dead_memory_used_again,
]  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("change", EQUIVALENTS, ids=lambda f: f.__name__)
def test_equivalents_are_accepted(name, change):
    program = layer(*SMALL[name])
    before = copy.deepcopy(tasks_of(program))
    tasks = own_edges(tasks_of(program))
    change(program, tasks)
    assert tasks != before
    assert retabled(program).faults() == []
    assert sound(program)


def test_memory_is_not_used_again_while_somebody_reads_it():
    """The order that `dead_memory_used_again` adds is what makes it sound."""
    program = layer(*SMALL["tiled"])
    alias_output_and_y(program)
    assert any(": memory: " in fault for fault in program.faults())
    assert not sound(program)


def with_slots(program: plan.Program, *, gap: int = 0) -> plan.Program:
    """Both states in two slots, `gap` elements between them."""
    (d,) = program.dispatches
    d.constants[401] = 1  # kSlots
    strides = []
    for old, new, size in (("conv_in", "conv_out", 2), ("state_in", "state_out", 4)):
        strides.append(buffer(program, old).bytes // size + gap)
        buffer(program, new).storage = buffer(program, old).storage
        for name in (old, new):
            b = buffer(program, name)
            b.bytes += strides[-1] * size
            view = next(v for v in d.views if v.buffer == program.buffers.index(b))
            view.extent = b.bytes
    index, data = d.arguments[-1]
    d.arguments[-1] = (index, data[:8] + struct.pack("<2I", *strides))
    return program


@pytest.mark.parametrize("gap", [0, 8])
def test_slots(gap):
    """What is read is in one slot, what is written in the other."""
    assert with_slots(layer(*SMALL["tiled"]), gap=gap).faults() == []


def test_slots_that_overlap_or_are_none():
    faults = with_slots(layer(*SMALL["tiled"]), gap=-8).faults()
    assert {f.split(": ")[1] for f in faults} == {"memory"} and len(faults) == 2
    one = with_slots(layer(*SMALL["tiled"]))
    one.dispatches[0].constants[401] = 0
    assert any(": memory: " in f for f in one.faults())
