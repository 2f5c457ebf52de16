"""The checker refuses every broken program, and nothing that is sound."""

import copy
import itertools

import pytest
import torch
from cases import pack_layer
from settings import RAGGED, SETTINGS, Setting, make_case

from torch_mps_fusion import plan

VARIANTS = ("packed", "core")
# The old and the new of a state, and the two sides of the gated norm: each value is read by the
# thread that writes it.
INSIDE = {("state_in", "state_out"), ("conv_in", "conv_out"), ("O", "G")}


def program(variant, setting=SETTINGS[1], rows=(2, 9), geometry="", **options) -> plan.Program:
    case = make_case(setting, torch.bfloat16, *rows)
    layer = pack_layer(case.layer)
    return plan.plan_layer(
        case.hidden, *layer.weights, layer.input_norm_weight, *(case.states or (None, None)),
        case.mask, **layer.keywords, variant=variant, device="host", geometry=geometry, **options,
    )  # fmt: skip


PROGRAMS = {
    f"{variant}{geometry}{' in place' if in_place else ''}": (variant, geometry, in_place)
    for variant in VARIANTS
    for geometry in ("", ";block=4", ";block=4;overlap=1;norm=own")
    for in_place in (False, True)
}


@pytest.fixture(params=PROGRAMS)
def sound(request) -> plan.Program:
    variant, geometry, in_place = PROGRAMS[request.param]
    found = program(variant, geometry=geometry, in_place=in_place)
    assert found.faults() == []
    return found


def is_free(p, i):
    """A block's convolution depends on nothing that the last block's gated norm did."""
    return i > 0 and (p.dispatches[i - 1].stage, p.dispatches[i].stage) == ("gated_norm", "conv")


def test_every_barrier_is_needed(sound):
    for i, d in enumerate(sound.dispatches):
        broken = copy.deepcopy(sound)
        broken.dispatches[i].barrier = False
        assert bool(broken.faults()) == (d.barrier and not is_free(sound, i)), i


def test_neighbours_do_not_change_places(sound):
    for i in range(len(sound.dispatches) - 1):
        broken = copy.deepcopy(sound)
        ds = broken.dispatches
        ds[i], ds[i + 1] = ds[i + 1], ds[i]
        ds[i].barrier, ds[i + 1].barrier = i > 0, True
        assert bool(broken.faults()) != is_free(sound, i + 1), i


def test_no_dispatch_may_be_missing(sound):
    for i in range(len(sound.dispatches)):
        broken = copy.deepcopy(sound)
        del broken.dispatches[i]
        # the last one is read by nobody here: the ops see to its result
        assert bool(broken.faults()) == (i < len(sound.dispatches) - 1), i


def flow(p: plan.Program) -> list:
    """The meaning of a program: what each dispatch reads, and what is left in the end, as symbols.

    Storage is taken as it is; a dispatch that would read what it writes means nothing.
    """
    content = {b.storage: ("given", b.name) for b in p.buffers if b.given}
    seen = []
    for i, d in enumerate(p.dispatches):
        views = [(v, p.buffers[v.buffer]) for v in d.views if v.access != "none"]
        writes = [b for v, b in views if "write" in v.access]
        for w in writes:
            others = [b for _, b in views if b is not w and b.storage == w.storage]
            if any((o.name, w.name) not in INSIDE for o in others):
                return []
        seen.append((d.stage, [content.get(b.storage) for v, b in views if "read" in v.access]))
        content |= {w.storage: ("made", w.name, i) for w in writes}
    ends = [b for b in p.buffers if b.role != "scratch"]
    return [*seen, [(b.name, content.get(b.storage)) for b in ends]]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("in_place", [False, True])
def test_aliases_are_refused_unless_they_change_nothing(variant, in_place):
    """Every pair of buffers made one: refused exactly if some dispatch would see other contents."""
    sound = program(variant, in_place=in_place)
    meaning, reused = flow(sound), set()
    for a, b in itertools.combinations(range(1, len(sound.buffers)), 2):
        one, two = sound.buffers[a], sound.buffers[b]
        if one.storage == two.storage or (one.given and two.given):
            continue
        broken = copy.deepcopy(sound)
        broken.buffers[b].storage = broken.buffers[a].storage
        if {(one.name, two.name), (two.name, one.name)} & INSIDE:
            continue  # in place, or G in O: sound too, with another meaning
        harmless = not broken.faults()
        assert harmless == (flow(broken) == meaning), (one.name, two.name)
        if harmless:
            reused |= {one.name, two.name}
    # stage buffers that are dead may be used again, and nothing else
    assert reused <= {"C", "Q", "K", "KQ", "gates", "O", "G", "output", "conv_out"}
    assert bool(reused) == (variant == "packed")


def test_shrunken_buffers(sound):
    for i, b in enumerate(sound.buffers):
        if b.role == "unused":
            continue
        broken = copy.deepcopy(sound)
        broken.buffers[i].bytes -= 1
        assert any(f" of {b.name}, which has {b.bytes - 1}" in f for f in broken.faults()), b.name


def test_extents_are_what_the_structs_say(sound):
    """The declared extent of every view cannot be smaller: the bounds are read a second time."""
    for i, d in enumerate(sound.dispatches):
        for j, a in enumerate(d.arguments):
            if not isinstance(a, plan.View) or a.access == "none":
                continue
            broken = copy.deepcopy(sound)
            extent = broken.dispatches[i].arguments[j]
            extent.extent = extent.extent // 2
            assert any("touches" in f for f in broken.faults()), (d.stage, a.index)
            broken = copy.deepcopy(sound)
            wrong = broken.dispatches[i].arguments[j]
            wrong.access = "write" if a.access == "read" else "read"
            assert any("wrong access" in f for f in broken.faults()), (d.stage, a.index)


@pytest.mark.parametrize("variant", VARIANTS)
def test_overlapping_dispatches_ask_ahead_for_nothing_that_is_written(variant):
    """What a kernel reads before it waits, made the memory that an earlier dispatch writes."""
    sound = program(variant, geometry=";overlap=1;norm=own;block=4", rows=(1, 9))
    assert sound.overlap and plan.parse(sound.listing()).overlap and sound.faults() == []
    names = {b.name: b for b in sound.buffers}
    asked = {"out_proj", "conv_weight", "conv_in"}
    asked |= {"hidden"} if sound.dispatches[-1].constants[201] else set()  # the residual
    asked |= {"A_log", "dt_bias", "norm_weight"} if variant == "core" else set()
    for name in asked:
        broken = copy.deepcopy(sound)
        next(b for b in broken.buffers if b.name == name).storage = names["Y"].storage
        assert any(f"asks ahead for {name}" in f for f in broken.faults()), name
        broken.overlap = False
        assert not any("asks ahead" in f for f in broken.faults()), name
    # a block's state is what the block before wrote: the kernel waits first, as `first` tells it
    rule = next(d for d in sound.dispatches if d.family in ("rule", "core") and is_later(d))
    broken = copy.deepcopy(sound)
    later = broken.dispatches[sound.dispatches.index(rule)]
    index, given = later.arguments[-1]
    later.arguments[-1] = (index, given[:8] + bytes(4) + given[12:])
    assert any("asks ahead for state_out" in f for f in broken.faults())


def is_later(dispatch):
    """A block of tokens behind the first."""
    return int.from_bytes(dispatch.arguments[-1][1][8:12], "little") > 0


def test_a_listing_that_is_none():
    for text in ("buffer x", "dispatch a b", "view 0 0 read 0 0 0 0", "what 1"):
        with pytest.raises(ValueError, match="listing: got"):
            torch.ops.mps_fusion._check_program(text)


def test_ragged_shapes_are_sound():
    for setting in (*SETTINGS, Setting(RAGGED, masked=True, width=9)):
        for variant in VARIANTS:
            for rows in ((1, 1), (3, 40), (7, 5)):
                assert program(variant, setting, rows).faults() == []
