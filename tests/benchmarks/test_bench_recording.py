"""The recording encoder of `overhead`, and plans that a thread keeps."""

from __future__ import annotations

import pytest
import torch

from benchmarks.commands import overhead
from benchmarks.layers import SHAPES, Layer, Ours


def recorded() -> int:
    """Dispatches that this thread has recorded so far."""
    return torch.ops.mps_fusion._record_host_programs(True)


@pytest.mark.parametrize("variant", ["packed", "core"])
def test_a_recorded_call_encodes_every_dispatch_and_runs_none(variant):
    layer = Layer(SHAPES["host"], "cpu", 0)
    program = Ours(variant).plan(layer.shape, "cpu", 1, torch.bfloat16)
    states = layer.states()
    with overhead.recording():
        before = recorded()
        Ours(variant)(layer, layer.hidden(1), states)
        assert recorded() - before == len(program.dispatches)
    assert all(map(torch.equal, states, layer.states()))
    Ours(variant)(layer, layer.hidden(1), states)
    assert not torch.equal(states[1], layer.state)


def test_a_kept_plan_is_not_taken_for_another_geometry_or_number_of_rows():
    layer = Layer(SHAPES["host"], "cpu", 0)
    counts = {}
    with overhead.recording():
        for _ in range(2):
            for rows in (1, 40):  # above the row threshold the projections are aten's
                for geometry in ("", ";block=8"):
                    before = recorded()
                    Ours("core", geometry)(layer, layer.hidden(rows), layer.states())
                    found = recorded() - before
                    assert counts.setdefault((rows, geometry), found) == found
    assert counts[40, ";block=8"] > counts[40, ""]
    assert counts[1, ""] == counts[1, ";block=8"]
