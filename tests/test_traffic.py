"""`benchmarks traffic`: what metal_host counts is what the planner says, and what fusion moves."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from benchmarks import stages
from benchmarks.commands import traffic
from torch_mps_fusion.explain import plan_call


@cache
def counted(variant: str, rows: int) -> traffic.Counted:
    return traffic.count(traffic.SMALL, rows, variant)


def total(lines: list[stages.Line], field: str) -> int:
    return sum(getattr(x, field) for x in lines)


@pytest.mark.parametrize("variant", traffic.VARIANTS)
@pytest.mark.parametrize("rows", [1, 5])
def test_distinct_bytes_are_the_planned_ones(rows, variant):
    lines = counted(variant, rows).lines
    call = plan_call(traffic.SMALL, torch.bfloat16, variant=variant, device="host", tokens=rows)
    planned = {"weight": 0, "state": 0, "control": 0, "other": 0}
    for program in call.programs:
        for d in program.dispatches:
            for role, n in program.bytes_by_role(d).items():
                planned[role if role in planned else "other"] += n
    found = dict.fromkeys(traffic.ALL_ROLES, 0)
    for x in lines:
        found[traffic.role(x)] += x.distinct + x.written
    # A_log, dt_bias: float32 in the module, not in the plan
    floats = 2 * 2 * traffic.SMALL.num_v_heads
    assert found["packed weights"] + found["small weights"] == planned["weight"] + floats
    # the planner counts the convolution's inputs for the heads and for the conv state
    persistent, channels = variant in ("hybrid", "mega"), 2 * traffic.SMALL.conv_dim
    old, new = (max(0, 4 - rows) * channels, min(rows, 4) * channels) if persistent else (0, 0)
    assert found["states"] == planned["state"] - old
    assert found["activations"] == planned["other"] - new
    assert found["coordination"] <= planned["control"]
    windows = [
        x for x in lines if x.buffer in ("conv_in", "conv_state") and x.family != "projection"
    ]
    assert any(x.requested > x.distinct for x in windows) == (variant != "packed")


@pytest.mark.parametrize("variant", traffic.VARIANTS[1:])
@pytest.mark.parametrize("rows", [1, 5])
def test_weights_and_states_are_those_of_packed_and_the_rest_is_itemised(rows, variant):
    mine, control = counted(variant, rows), counted("packed", rows)
    found = traffic.against(mine, control, variant)
    assert found["failed"] == []
    items = found["bytes_by_stage"].values()
    for field in stages.NOUGHT:
        assert sum(i[field] for i in items) == total(mine.lines, field) - total(
            control.lines, field
        )
    saved = found["bytes_by_stage"]["head"]  # what its stages hand to each other
    assert saved["written"] < 0 and saved["distinct"] < 0
    persistent = variant in ("hybrid", "mega")
    added = [found["counters"][n] for n in ("atomics", "fences", "spins")]
    assert all(n > 0 for n in added) if persistent else added == [0, 0, 0]
    assert (stages.COORDINATION in found["bytes_by_stage"]) == persistent
    assert ("in_proj" in found["tasks_by_stage"]) == (variant == "mega")
    assert ("out_proj" in found["tasks_by_stage"]) == persistent


def test_weights_that_are_read_twice_fail():
    control = counted("packed", 1)
    lines = [replace(x, distinct=2 * x.distinct) if x.buffer == "W" else x for x in control.lines]
    found = traffic.against(replace(control, lines=lines), control, "other")
    assert len(found["failed"]) == 1 and "other: bytes of packed weights" in found["failed"][0]


def test_one_memory_bound_twice_is_counted_once():
    lines = [
        stages.Line("persistent", name, 50, 10, 0) for name in ("X", "residual", "records", "edges")
    ]
    assert [(x.buffer, x.requested) for x in stages.apart(lines)] == [
        ("X", 40),
        ("residual", 10),
        ("records", 50),
    ]


def test_the_report_names_what_is_more_than_the_least():
    lines = counted("core", 1).lines
    out = "\n".join(traffic.report(traffic.SMALL, 1, "core", lines))
    padded = 2 * 64 * (-(128 + 2 * 192 + 6 - 64) % 16)
    assert "padded rows" in out and f"{padded / 1e6:.4f} MB" in out
