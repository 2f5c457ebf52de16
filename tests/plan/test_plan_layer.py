"""The planner in C++ against the plain one in Python: the same calls, byte by byte."""

import re

import abi
import pytest
import torch
from cases import DTYPES, Shape, pack_layer
from program import Geometry, Program
from settings import BLOCK, RAGGED, SETTINGS, TILED, WIDE, Setting, make_case

from torch_mps_fusion import plan, shaders

IDS = {
    name: int(number)
    for family in shaders.FAMILIES
    for name, number in re.findall(
        r"constant bool (\w+) \[\[function_constant\((\d+)\)\]\]",
        shaders.flat_text(abi.SHADERS / f"{family}.metal"),
    )
}
# One tile a threadgroup, and no split unless asked for: what the plain planner does.
PLAIN = ";groups_per_core=0"
FREE = "host;dispatch_limit_us=1000000000;row_threshold=500000"
GEOMETRIES = [
    (Geometry(), ""),
    (Geometry(joined_norm=True), ""),
    (Geometry("nt1u4", groups=2), ";tile=nt1u4;groups=2"),
    (Geometry(block=3, core="r4"), ";block=3;core=r4"),
]


def planned(case, variant, geometry="", device=FREE, layer=None, **options) -> plan.Program:
    packed = layer or pack_layer(case.layer)
    return plan.plan_layer(
        case.hidden,
        *packed.weights,
        packed.input_norm_weight,
        *(case.states or (None, None)),
        case.mask,
        **packed.keywords,
        variant=variant,
        device=device,
        geometry=PLAIN + geometry,
        **options,
    )


def calls_of(made: Program, layer) -> list[str]:
    """The calls that an encoder should get for the plain program."""
    names = {}
    for name in ("in_proj", "out_proj"):
        names[getattr(layer, name)[0].data_ptr()] = name
    for name in ("conv_weight", "A_log", "dt_bias", "norm_weight", "input_norm_weight"):
        if getattr(layer, name) is not None:
            names[getattr(layer, name).data_ptr()] = name
    for name in ("Y", "G", "C", "Q", "K", "KQ", "gates", "O", "output"):
        if hasattr(made, name):
            names[getattr(made, name).data_ptr()] = name
    names[made.hidden.data_ptr()] = "hidden"
    names[made.conv_out.data_ptr()] = "conv_out"
    names[made.state_out.data_ptr()] = "state_out"
    if hasattr(made, "normed"):
        names[made.normed.data_ptr()] = "X"
    if made.states:
        names[made.states[0].data_ptr()] = "conv_in"
        names[made.states[1].data_ptr()] = "state_in"
    if made.mask is not None:
        names[made.mask.data_ptr()] = "mask"
    lines = []
    for i, d in enumerate(made.dispatches):
        if i:
            lines.append("barrier")
        ids = sorted((IDS[k], v) for k, v in d.constants.items())
        lines.append(f"kernel {d.kernel} {','.join(f'{k}={v}' for k, v in ids)}".rstrip())
        for j, b in enumerate(d.buffers):
            if b.numel() in (48, 96) and b.data_ptr() not in names:
                lines.append(f"bytes {j} {bytes(b.tolist()).hex()}")
            else:
                lines.append(f"buffer {j} {names.get(b.data_ptr(), 'unused')} 0")
        grid = (*d.grid, 1, 1)[:3]
        lines.append(f"dispatch {' '.join(map(str, grid))} {d.threads}")
    return lines


def compared(case, variant, geometries, **options):
    plain_geometry, text = geometries
    layer = pack_layer(case.layer)
    weights = (layer.in_proj[0], layer.out_proj[0])
    made = Program(
        variant, layer, case.hidden, case.states, case.mask,
        geometry=plain_geometry, weights=weights, **options,
    )  # fmt: skip
    found = planned(
        case, variant, text, layer=layer, own_norm=plain_geometry.joined_norm, **options
    )
    return [c.rstrip() for c in found.calls.splitlines()], calls_of(made, layer), found


def masked_off(calls, dispatches):
    """Buffers of paths that are off may be anything: both sides call them unused."""
    used = []
    for d in dispatches:
        used += [v.access != "none" for v in d.views]
    flags = iter(used)
    return [
        c if not c.startswith("buffer ") or next(flags) else f"buffer {c.split()[1]} unused 0"
        for c in calls
    ]


@pytest.mark.parametrize("variant", ("packed", "core"))
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("rows", [(1, 1), (1, 8), (3, 3), (2, 41), (5, 17)])
def test_calls_equal_the_plain_planners(variant, setting, rows):
    for i, geometry in enumerate(GEOMETRIES):
        case = make_case(setting, DTYPES[(i + sum(rows)) % 3], *rows)
        found, wanted, program = compared(case, variant, geometry)
        assert found == masked_off(wanted, program.dispatches)
        assert program.faults() == []


@pytest.mark.parametrize("variant", ("packed", "core"))
def test_in_place_binds_the_same_memory(variant):
    case = make_case(
        Setting(RAGGED, masked=True, width=3, keys_adjacent=False), torch.bfloat16, 2, 9
    )
    found, wanted, program = compared(case, variant, GEOMETRIES[3], in_place=True)
    same = str.maketrans({})
    rename = [(" conv_out ", " conv_in "), (" state_out ", " state_in ")]
    for old, new in rename:
        found = [c.translate(same).replace(old, new) for c in found]
    assert found == masked_off(wanted, program.dispatches)
    storages = {b.name: b.storage for b in program.buffers}
    assert storages["conv_in"] == storages["conv_out"]
    assert storages["state_in"] == storages["state_out"]
    assert program.faults() == []


@pytest.mark.parametrize("shape", [BLOCK, TILED, RAGGED, WIDE, Shape(512, 4, 12)])
def test_at_most_seven_and_three_dispatches(shape):
    case = make_case(Setting(shape), torch.bfloat16, 1, 8)
    assert len(planned(case, "packed").dispatches) == 6
    assert len(planned(case, "packed", own_norm=True).dispatches) == 7
    assert len(planned(case, "core").dispatches) == 3


def test_listing_and_back():
    program = planned(make_case(SETTINGS[1], torch.float16, 2, 5), "packed")
    assert plan.parse(program.listing()).listing() == program.listing()
