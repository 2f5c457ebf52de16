"""The verifier of task programs: proves the planner's, refuses every broken one for the right
reason, and agrees with a machine that runs the program with any task stopped for good."""

import copy
import random
import re
import struct

import pytest
import torch
from task_machine import sound

from torch_mps_fusion import plan

# batch, tokens, hidden, Hk, Hv, Dk, Dv; variant, head map
SMALL = {
    "two_passes": ((3, 3, 32, 1, 2, 32, 32), "mega", "block"),
    "tiled": ((1, 2, 64, 2, 4, 32, 32), "mega", "tiled"),
    "wide_head": ((2, 1, 32, 1, 1, 32, 128), "mega", "block"),
    "hybrid": ((3, 3, 64, 2, 4, 32, 32), "hybrid", "block"),
}


def layer(shape, variant, head_map, **keywords) -> plan.Program:
    batch, tokens, hidden, k_heads, v_heads, k_dim, v_dim = shape
    arguments, names = plan.meta_layer(
        batch=batch, tokens=tokens, hidden_size=hidden, num_k_heads=k_heads, num_v_heads=v_heads,
        head_k_dim=k_dim, head_v_dim=v_dim, conv_width=4, dtype=torch.bfloat16,
        weight_format="tiles16-apple",
    )  # fmt: skip
    keywords = {"device": "M1"} | names | {"variant": variant, "head_map": head_map} | keywords
    return plan.plan_layer(*arguments, **keywords)


@pytest.fixture(params=SMALL, scope="module")
def program(request) -> plan.Program:
    found = layer(*SMALL[request.param])
    assert found.faults() == [] and sound(found)
    return found


def tasks_of(program: plan.Program) -> plan.Tasks:
    (found,) = [d.tasks for d in program.dispatches if d.tasks]
    return found


def buffer(program: plan.Program, name: str) -> plan.Buffer:
    return next(b for b in program.buffers if b.name == name)


def retabled(program: plan.Program) -> plan.Program:
    """The program with tables as long as its records and edges."""
    (d,) = [d for d in program.dispatches if d.tasks]
    records, edges = 32 * len(d.tasks.records), 8 * len(d.tasks.edges)
    number = program.buffers.index(buffer(program, "tasks"))
    program.buffers[number].bytes = records + edges
    first, second = [v for v in d.views if v.buffer == number]
    first.extent = first.read = second.offset = records
    second.extent = second.read = edges
    index, data = d.arguments[-1]
    d.arguments[-1] = (index, struct.pack("<I", len(d.tasks.records)) + data[4:])
    counters = buffer(program, "counters")
    view = next(v for v in d.views if v.buffer == program.buffers.index(counters))
    counters.bytes = view.extent = 4 * (8 + 8 * d.tasks.counters)
    return program


def set_edges(tasks: plan.Tasks, task: plan.Task, kind: str, edges: list) -> None:
    """Gives a record edges of its own; `kind`: wait or signal."""
    setattr(task, f"first_{kind}", len(tasks.edges))
    setattr(task, f"n_{kind}s", len(edges))
    tasks.edges += edges


def own_edges(tasks: plan.Tasks) -> plan.Tasks:
    """The same program, no edge shared by two records."""
    old = [(tasks.waits(r), tasks.signals(r)) for r in tasks.records]
    tasks.edges = []
    for r, (waits, signals) in zip(tasks.records, old, strict=True):
        set_edges(tasks, r, "wait", waits)
        set_edges(tasks, r, "signal", signals)
    return tasks


def reorder(tasks: plan.Tasks, order: list[int]) -> None:
    """Makes order[i] the ticket i."""
    ticket = {old: new for new, old in enumerate(order)}
    tasks.records = [tasks.records[old] for old in order]
    for t in tasks.touches:
        t.task = ticket[t.task]


def some(rng, tasks, *, stage=None, having=None) -> plan.Task:
    return rng.choice(
        [
            r
            for r in tasks.records
            if stage in (None, r.stage) and (having is None or getattr(r, f"n_{having}s"))
        ]
    )


# Mutations: each changes a program and says which rules may refuse it.


def drop_signal(rng, p, tasks):
    r = some(rng, tasks, having="signal")
    signals = tasks.signals(r)
    del signals[rng.randrange(len(signals))]
    set_edges(tasks, r, "signal", signals)
    return "count"


def drop_wait(rng, p, tasks):
    """An output tile has eight waits; a wait for zero stands for none."""
    r = some(rng, tasks, having="wait")
    waits = tasks.waits(r)
    gone = rng.randrange(len(waits))
    if r.stage == "out_proj" and rng.random() < 0.5:
        waits[gone] = (waits[gone][0], 0)
        set_edges(tasks, r, "wait", waits)
        return "count"
    del waits[gone]
    set_edges(tasks, r, "wait", waits)
    return "waits" if r.stage == "out_proj" else "read"


def swap_counters(rng, p, tasks):
    """In all signals; the waits stay."""
    a, b = rng.sample(range(tasks.counters), 2)
    for r in tasks.records:
        set_edges(tasks, r, "signal", [({a: b, b: a}.get(c, c), n) for c, n in tasks.signals(r)])
    return "count|read|ticket|cycle"


def swap_counters_of_a_task(rng, p, tasks):
    r = some(rng, tasks, having=rng.choice(["wait", "signal"]))
    a, b = rng.sample(range(tasks.counters), 2)
    for kind, edges in (("wait", tasks.waits(r)), ("signal", tasks.signals(r))):
        set_edges(tasks, r, kind, [({a: b, b: a}.get(c, c), n) for c, n in edges])
    return "count|read|ticket|cycle"


def move_ticket(rng, p, tasks):
    order = list(range(len(tasks.records)))
    order.insert(rng.randrange(len(order)), order.pop(rng.randrange(len(order))))
    reorder(tasks, order)
    return "ticket"


def swap_tickets(rng, p, tasks):
    order = list(range(len(tasks.records)))
    a, b = rng.sample(order, 2)
    order[a], order[b] = order[b], order[a]
    reorder(tasks, order)
    return "ticket"


def wrong_count(rng, p, tasks):
    kind = rng.choice(["wait", "signal"])
    r = some(rng, tasks, having=kind)
    edges = tasks.waits(r) if kind == "wait" else tasks.signals(r)
    i = rng.randrange(len(edges))
    counter, count = edges[i]
    edges[i] = (counter, max(0, count + rng.choice([-2, -1, 1, 2])))
    set_edges(tasks, r, kind, edges)
    return "count"


def shrink_buffer(rng, p, tasks):
    # By more than the row padding of Y, of which no task touches anything.
    touched = sorted({t.buffer for t in tasks.touches})
    b = p.buffers[rng.choice(touched)]
    b.bytes -= rng.randint(33, b.bytes - 1)
    return "bounds"


def alias_intermediates(rng, p, tasks):
    names = ["G", "output", "conv_out", "state_out"] + ["Y"] * any(b.name == "Y" for b in p.buffers)
    a, b = rng.sample(names, 2)
    buffer(p, a).storage = buffer(p, b).storage
    return "memory"


def alias_of_what_all_read(rng, p, tasks):
    a = rng.choice(["counters", "control", "norm_weight", "A_log", "out_proj", "tasks"])
    buffer(p, a).storage = buffer(p, rng.choice(["G", "output", "state_out"])).storage
    return "memory"


def duplicate_writer(rng, p, tasks):
    """A task twice: as another task, or twice in its touches."""
    t = rng.choice([t for t in tasks.touches if t.access == "write"])
    other = copy.copy(t)
    if rng.random() < 0.8:
        other.task = rng.choice([i for i in range(len(tasks.records)) if i != t.task])
    tasks.touches.append(other)
    return "writer"


def duplicate_task(rng, p, tasks):
    ticket = rng.randrange(len(tasks.records))
    twin = copy.copy(tasks.records[ticket])
    twin.n_signals = 0
    tasks.records.append(twin)
    mine = [copy.copy(t) for t in tasks.touches if t.task == ticket]
    for t in mine:
        t.task = len(tasks.records) - 1
    tasks.touches += mine
    return "writer"


def lose_task(rng, p, tasks):
    """With its signals counted out, so that only its work is missing."""
    ticket = rng.randrange(len(tasks.records))
    gone = tasks.records.pop(ticket)
    less = dict(tasks.signals(gone))
    for r in tasks.records:
        set_edges(tasks, r, "wait", [(c, n - less.get(c, 0)) for c, n in tasks.waits(r)])
    tasks.touches = [t for t in tasks.touches if t.task != ticket]
    for t in tasks.touches:
        t.task -= t.task > ticket
    return "written"


def cycle(rng, p, tasks):
    """A head waits for an output counter that it signals, or two heads for each other's."""
    r = some(rng, tasks, stage="head")
    counter, _ = rng.choice(tasks.signals(r))
    total = sum(n for s in tasks.records for c, n in tasks.signals(s) if c == counter)
    set_edges(tasks, r, "wait", [*tasks.waits(r), (counter, total)])
    return "cycle"


def early_access(rng, p, tasks):
    """An output tile reads a segment of K behind the wait of another one."""
    t = rng.choice([t for t in tasks.touches if t.wait >= 0])
    t.wait = rng.choice([w for w in range(8) if w != t.wait])
    return "read"


def edge_that_is_none(rng, p, tasks):
    r = some(rng, tasks, having=(kind := rng.choice(["wait", "signal"])))
    if rng.random() < 0.5:
        setattr(r, f"first_{kind}", len(tasks.edges))
    else:
        set_edges(tasks, r, kind, [(tasks.counters, 1)] * getattr(r, f"n_{kind}s"))
    return "table"


MUTATIONS = [
    drop_signal, drop_wait, swap_counters, swap_counters_of_a_task, move_ticket, swap_tickets,
    wrong_count, shrink_buffer, alias_intermediates, alias_of_what_all_read, duplicate_writer,
    duplicate_task, lose_task, cycle, early_access, edge_that_is_none,
]  # fmt: skip
# Those that may leave a program sound, and why.
MAY_BE_SOUND = {
    "swap_counters": "two counters that the same tasks signal, or nobody waits for one",
    "swap_counters_of_a_task": "the task names neither, or the same tasks signal both",
    "move_ticket": "tasks that do not depend on each other have no order",
    "swap_tickets": "tasks that do not depend on each other have no order",
    "early_access": "the other wait is for a counter that the same tasks signal",
    "wrong_count": "a wait for zero of a counter that nobody signals stays one",
    "drop_wait": "a wait for zero of a counter that nobody signals is none",
}


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda f: f.__name__)
def test_mutants_are_refused_for_the_right_reason(program, mutate):
    refused = 0
    for seed in range(8):
        mutant = copy.deepcopy(program)
        tasks = own_edges(tasks_of(mutant))
        rules = mutate(random.Random(seed), mutant, tasks)
        faults = retabled(mutant).faults()
        fine = mutate is not alias_of_what_all_read and sound(mutant)
        assert (faults == []) == fine, (seed, faults)
        if fine:
            assert mutate.__name__ in MAY_BE_SOUND, seed
            continue
        refused += 1
        assert any(re.search(rf": ({rules}): ", f) for f in faults), (seed, faults)
    assert refused


# What is wrong with a launch or a table whatever the order is: rule, and change of the program.


def table_cut_short(p, tasks):
    index, data = p.dispatches[0].arguments[-1]
    p.dispatches[0].arguments[-1] = (index, struct.pack("<I", len(tasks.records) - 1) + data[4:])


def one_worker_more(p, tasks):
    tasks.workers += 1


def more_signals_than_threads(p, tasks):
    set_edges(tasks, tasks.records[0], "signal", [(tasks.counters, 1)] * 257)
    tasks.counters += 1


def input_tile_that_waits(p, tasks):
    set_edges(tasks, tasks.records[0], "wait", tasks.waits(tasks.records[-1])[:1])


def counts_beyond_the_sign(p, tasks):
    tasks.edges = [(counter, count << 29) for counter, count in tasks.edges]


def counters_without_end(p, tasks):
    tasks.counters = 2**32 - 1


def touch_of_nobody(p, tasks):
    tasks.touches[0].task = len(tasks.records)


def touch_without_end(p, tasks):
    tasks.touches[0].rows = tasks.touches[0].pitch = 2**60


def touch_of_what_is_only_read(p, tasks):
    tasks.touches[0].buffer = p.buffers.index(buffer(p, "hidden"))
    tasks.touches[0].rows = 1


@pytest.mark.parametrize(
    "rule, change",
    [
        ("records", table_cut_short),
        ("workers", one_worker_more),
        ("signals", more_signals_than_threads),
        ("waits", input_tile_that_waits),
        ("count", counts_beyond_the_sign),
        ("table", counters_without_end),
        ("touch", touch_of_nobody),
        ("bounds", touch_without_end),
        ("bounds", touch_of_what_is_only_read),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_launches_and_tables(rule, change):
    mutant = layer(*SMALL["tiled"])
    change(mutant, tasks_of(mutant))
    assert any(f": {rule}: " in fault for fault in mutant.faults()), mutant.faults()


def test_a_stage_that_is_none():
    listing = layer(*SMALL["tiled"]).listing().replace("\ntask 0 ", "\ntask 7 ", 1)
    faults = torch.ops.mps_fusion._check_program(listing)
    assert ": stage: task 0 (stage 7, tile " in faults


def test_a_line_names_task_counter_and_bytes():
    mutant = layer(*SMALL["tiled"])
    tasks = own_edges(tasks_of(mutant))
    ticket, head = next((t, r) for t, r in enumerate(tasks.records) if r.stage == "head")
    set_edges(tasks, head, "wait", tasks.waits(head)[1:])
    (first, *_) = retabled(mutant).faults()
    assert re.fullmatch(
        rf"dispatch 0 \(layer\): read: task {ticket} \(head, tile 0, part 0\) reads bytes \d+ to "
        r"\d+ of Y and does not wait for task \d+ \(in_proj, tile \d+, part 0\), which writes them",
        first,
    )
