"""csrc/mps, unchanged, on the fake device: whole layers, bit for bit as metal_host runs them."""

from __future__ import annotations

import pytest
import torch
import written_programs
from compare import assert_equal
from host import run
from program import Geometry, Program
from settings import SETTINGS, make_case


def both(case, variant: str, **options) -> tuple[Program, Program]:
    """The program of a case run by the host, and by the extension on the fake device."""
    programs = []
    for _ in range(2):
        states = case.states and tuple(
            s.clone(memory_format=torch.preserve_format) for s in case.states
        )
        programs.append(Program(variant, case.layer, case.hidden, states, case.mask, **options))
    host, device = programs
    run(host)
    written = written_programs.write(device)
    written.encode()
    written.fetch()
    return host, device


@pytest.mark.parametrize("variant", ["packed", "core"])
@pytest.mark.parametrize(
    ("setting", "dtype", "rows"),
    [
        (SETTINGS[0], torch.bfloat16, (1, 1)),
        (SETTINGS[1], torch.float16, (3, 3)),
        (SETTINGS[2], torch.float32, (2, 8)),
    ],
)
def test_a_layer_equals_the_host_bitwise(mps, variant, setting, dtype, rows) -> None:
    host, device = both(make_case(setting, dtype, *rows), variant)
    assert_equal(device.results, host.results)
    assert device.arena.guards_intact()


def test_in_place_states_and_blocks_of_tokens(mps) -> None:
    case = make_case(SETTINGS[0], torch.bfloat16, 2, 9)
    host, device = both(case, "packed", in_place=True, geometry=Geometry(block=4))
    assert_equal(device.results, host.results)
