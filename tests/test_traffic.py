"""`benchmarks traffic`: what metal_host counts is what the planner says."""

import pytest
import torch

from benchmarks.commands import traffic
from torch_mps_fusion.explain import plan_call


@pytest.mark.parametrize("variant", traffic.VARIANTS)
@pytest.mark.parametrize("rows", [1, 5])
def test_distinct_bytes_are_the_planned_ones(rows, variant):
    lines = traffic.count(traffic.SMALL, rows, variant)
    call = plan_call(traffic.SMALL, torch.bfloat16, variant=variant, device="host", tokens=rows)
    planned = {"weight": 0, "state": 0, "other": 0}
    for program in call.programs:
        for d in program.dispatches:
            for role, n in program.bytes_by_role(d).items():
                planned[role if role in planned else "other"] += n
    found = dict.fromkeys(traffic.ALL_ROLES, 0)
    for x in lines:
        found[x.role] += x.distinct + x.written
    # A_log, dt_bias: float32 in the module, not in the plan
    floats = 2 * 2 * traffic.SMALL.num_v_heads
    assert found["packed weights"] + found["small weights"] == planned["weight"] + floats
    assert found["states"] == planned["state"]
    assert found["activations"] == planned["other"]
    windows = [
        x for x in lines if x.buffer in ("conv_in", "conv_state") and x.family != "projection"
    ]
    assert any(x.requested > x.distinct for x in windows) == (variant == "core")


def test_the_report_names_what_is_more_than_the_least():
    lines = traffic.count(traffic.SMALL, 1, "core")
    out = "\n".join(traffic.report(traffic.SMALL, 1, "core", lines))
    padded = 2 * 64 * (-(128 + 2 * 192 + 6 - 64) % 16)
    assert "padded rows" in out and f"{padded / 1e6:.4f} MB" in out
