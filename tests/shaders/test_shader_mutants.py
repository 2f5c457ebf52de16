"""Every barrier and flag of the shaders is needed: without it the checking build finds a fault."""

import functools

import abi
import pytest
import torch
from cases import Shape
from host import declared, launch, run
from program import Geometry, Program
from settings import Setting, make_case

from torch_mps_fusion import shaders
from torch_mps_fusion.metal_host import FaultError, Library
from torch_mps_fusion.metal_host.mutate import hunt, mutants

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


# those of the persistent kernel are not hunted yet
@pytest.mark.parametrize(
    "family", sorted(set(shaders.FAMILIES) - set(WITH_BARRIERS) - {"persistent"})
)
def test_the_other_families_order_nothing(family):
    assert not mutants(abi.SHADERS / f"{family}.metal")
