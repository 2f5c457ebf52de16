"""Every barrier and flag of the shaders is needed: without it the checking build finds a fault.

The marked tests take minutes: python -m pytest -m long tests/shaders/test_shader_mutants.py
"""

import functools
import re
from pathlib import Path

import abi
import pytest
import torch
from cases import Shape
from host import declared, launch, run
from program import Geometry, Program
from settings import Setting, make_case

from torch_mps_fusion import host_kernels, shaders
from torch_mps_fusion.explore import explore
from torch_mps_fusion.explore_run import call_of
from torch_mps_fusion.explore_schedule import Schedule, drawn
from torch_mps_fusion.metal_host import FaultError, Library
from torch_mps_fusion.metal_host.mutate import Mutant, hunt, mutants

WITH_BARRIERS = ("rms_norm", "projection", "rule", "core")
WAYS = ({"seed": 1, "schedule": "random"}, {"seed": 2, "schedule": "reverse"})


@functools.cache
def dispatches() -> dict:
    """Dispatches by family: several blocks of tokens, several tiles a threadgroup, a row norm."""
    found = {}
    case = make_case(Setting(Shape(64, 1, 2, 64, 64), masked=True), torch.bfloat16, 1, 17)
    for variant, joined in (("packed", True), ("core", False)):
        geometry = Geometry(groups=3, joined_norm=joined)
        made = Program(variant, case.layer, case.hidden, case.states, case.mask, geometry=geometry)
        run(made)
        # the first projection of core normalises its rows
        found |= {d.family: d for d in reversed(made.dispatches)}
    return found


@pytest.mark.parametrize("family", WITH_BARRIERS)
def test_every_mutant_is_caught(family, tmp_path):
    dispatch = dispatches()[family]
    path = abi.SHADERS / f"{family}.metal"

    def judge(mutant):
        folder = tmp_path / mutant.id.replace("/", "_").replace("#", "_")
        copy = mutant.write(folder, path)
        values = dict.fromkeys(declared(path), 0) | dispatch.constants
        built = Library(copy, values, True, defines=shaders.defines(dispatch.kernel))
        for way in WAYS:
            buffers = [memoryview(b.numpy()) for b in dispatch.buffers]
            try:
                built.kernel(dispatch.kernel)(dispatch.grid, dispatch.threads, buffers, **way)
            except FaultError as fault:
                return str(fault)
        return None

    for way in WAYS:
        launch(dispatch, checked=True, **way)
    report = hunt(mutants(path), judge)
    assert report.caught and not report.survivors, report


def test_the_barrier_of_commit_is_caught(tmp_path):
    """A threadgroup counts when all its threads have seen the bit that the last one withdraws."""
    path, words = abi.SHADERS / "commit.metal", dict(re.findall(r"k(C\w+) = (\d+)", abi.headers()))
    slot, ready = int(words["ControlSlot"]), 4
    args = abi.write(
        "CommitArgs", batch=1, channels=64, width=4, conv_batch=256, conv_channel=4, conv_time=1,
        heads=2, head_elements=1024, state_batch=2048, state_head=1024,
    )  # fmt: skip

    def judge(mutant):
        copy = (
            path if mutant is None else mutant.write(tmp_path / mutant.id.replace("/", "_"), path)
        )
        name = "tmf_commit_f32_f32_n256__thread"
        built = Library(copy, {}, True, defines=shaders.defines(name)).kernel(name)
        conv, state = torch.randn(256), torch.randn(2048)
        for seed in range(8):
            control = torch.zeros(int(words["ControlWords"]), dtype=torch.int32)
            control[slot] = ready
            to = torch.zeros_like(conv), torch.zeros_like(state)
            built(2, 256, [control, conv, state, *to, args], schedule="random", seed=seed)
            if not (torch.equal(to[0], conv) and torch.equal(to[1], state)):
                return "a part was not copied"
            if control.any():
                return "the bit was not withdrawn"
        return None

    assert judge(None) is None
    report = hunt(mutants(path), judge)
    assert report.caught and not report.survivors, report


@pytest.mark.parametrize(
    "family", sorted(set(shaders.FAMILIES) - {*WITH_BARRIERS, "commit", "persistent"})
)
def test_the_other_families_order_nothing(family):
    assert not mutants(abi.SHADERS / f"{family}.metal")


# ------------------------------------------------------------------------------------ persistent

PERSISTENT = abi.SHADERS / "persistent.metal"
CONVERTED = (
    "all accesses go through pointers of Across or Words, whose types have the qualifier: it is "
    "added when the parameter is converted"
)
EXPLAINED = {
    "drop-coherent@persistent.metal:29#0": CONVERTED,
    "drop-coherent@persistent.metal:29#1": CONVERTED,
    "drop-coherent@persistent.metal:30#0": CONVERTED,
    "drop-coherent@persistent.metal:30#1": CONVERTED,
    "drop-barrier@persistent.metal:137#0": "of the instrumented build: it orders a time, no data",
}


def calls(name: str) -> list[Mutant]:
    """Each call of a function of sync.h taken away: inside, `mutants` changes all at once."""
    path = next(m.path for m in mutants(PERSISTENT) if "sync.h" in m.path)
    text, found = Path(path).read_text(), []
    for i, at in enumerate(re.finditer(rf"^ +{name}\(.*?\);$", text, re.M)):
        line = text.count("\n", 0, at.start()) + 1
        changed = text[: at.start()] + ";" + text[at.end() :]
        what = f"{name} taken away"
        found.append(Mutant(f"drop-call@{name}#{i}", "drop-call", path, line, what, changed))
    return found


def schedules():
    """Nine rows: two passes and two blocks. Then workers that see late that another one failed:
    the one that says so arrives at once, or after it has waited."""
    yield from (drawn(0, n, variants=("mega",), rows=(9,)) for n in range(40))
    for n in range(40):
        yield Schedule(
            "mega", kind="broken", states="slots", workers=2 + n % 2, spins=200, seed=n,
            schedule=("random", "priority")[n // 2 % 2], stale=2,
        )  # fmt: skip
    for n in range(400):
        yield Schedule(
            "mega", kind="lag", states="slots", workers=2 + n % 2, spins=200, counter=n, seed=n,
            schedule=("random", "priority")[n // 2 % 2], preempt=20, stale=2,
        )  # fmt: skip


def hunted(todo, tmp_path):
    def judge(mutant):
        folder = tmp_path / re.sub("[^a-z0-9.-]", "_", mutant.id)
        flat = shaders.flat_text(mutant.write(folder, PERSISTENT))
        with host_kernels.replaced("persistent", flat):
            why = explore(schedules()).why or None
        # A cache that somebody emptied meanwhile says nothing of the mutant.
        assert why is None or not re.search(r"\bld: |linker", why), why
        return why

    for s in schedules():  # so that no mutant runs to make what is expected
        call_of(s.variant, s.dtype, s.batch, s.tokens, s.workers)
    return hunt(todo, judge, {m.id: EXPLAINED[m.id] for m in todo if m.id in EXPLAINED})


def soon(mutant):
    return mutant.id.startswith(("drop-fence@include/sync.h", "drop-barrier@include/worker.h"))


def test_mutants_of_the_persistent_family_are_caught(tmp_path):
    """Those that its hand-offs rest on; the marked test takes all."""
    report = hunted([m for m in mutants(PERSISTENT) if soon(m)], tmp_path)
    assert len(report.caught) == 5 and not report.survivors, report


@pytest.mark.long
def test_every_mutant_of_the_persistent_family_is_caught(tmp_path):
    report = hunted(mutants(PERSISTENT) + calls("device_fence"), tmp_path)
    for name, why in report.caught.items():
        print(f"{name}: {why[:150]}")
    assert set(report.explained) == set(EXPLAINED), report
    assert not report.survivors and not report.stale, report
