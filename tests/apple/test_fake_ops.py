"""The ops on the fake device: what a call compiles, and what it leaves behind."""

from __future__ import annotations

import fake_device
import pytest
import torch
from cases import Shape, make_hidden, make_layer, make_states, pack_layer
from compare import run_layer, run_layer_in_place
from test_shader_devices import moved, on


@pytest.fixture
def fresh(mps: fake_device.Device) -> fake_device.Device:
    fake_device.load_extension()
    return mps


def compiled(device: fake_device.Device) -> tuple[int, int]:
    counts = device.counters()
    return counts["libraries"], counts["pipelines"]


# Libraries and pipelines of a first call, and what the first call of more than 32 rows adds: its
# projections are products of aten, the row norm and the conv state are dispatches of their own.
@pytest.mark.parametrize(
    ("variant", "first", "many"), [("packed", (5, 6), (1, 2)), ("core", (2, 3), (1, 2))]
)
def test_only_a_first_call_compiles(fresh, variant, first, many) -> None:
    layer = moved(make_layer(Shape(), torch.bfloat16, input_norm=True), "mps")
    hidden = make_hidden(Shape(), 1, 70, torch.bfloat16).to("mps")
    states = on("mps", make_states(Shape(), 1, torch.bfloat16))

    def added(tokens: int) -> tuple[int, int]:
        before = compiled(fresh)
        run_layer(layer, hidden[:, :tokens], states, variant=variant)
        after = compiled(fresh)
        return after[0] - before[0], after[1] - before[1]

    assert added(1) == first
    assert [added(t) for t in (2, 3, 8, 9, 32)] == [(0, 0)] * 5
    assert added(40) == many
    assert [added(t) for t in (33, 70, 1)] == [(0, 0)] * 3


@pytest.mark.parametrize("variant", ["packed", "core"])
def test_J1_calls_leave_no_object_behind(mps, variant) -> None:
    layer = moved(make_layer(Shape(), torch.bfloat16), "mps")
    hidden = make_hidden(Shape(), 1, 1, torch.bfloat16).to("mps")
    states = on("mps", make_states(Shape(), 1, torch.bfloat16))
    run_layer_in_place(layer, hidden, states, variant=variant)
    mps.synchronize()
    before = mps.live()
    for _ in range(50):
        run_layer_in_place(layer, hidden, states, variant=variant)
    mps.synchronize()
    assert mps.live() == before


def test_a_pipeline_that_fails_leaves_the_states_as_they_were(fresh) -> None:
    layer = moved(make_layer(Shape(), torch.float32), "mps")
    hidden = make_hidden(Shape(), 1, 2, torch.float32).to("mps")
    given = make_states(Shape(), 1, torch.float32)
    states = on("mps", given)
    fresh.fail_pipelines(1)
    with pytest.raises(RuntimeError, match="the device says no"):
        run_layer_in_place(layer, hidden, states, variant="core")
    for state, before in zip(states, given, strict=True):
        assert torch.equal(state.cpu(), before)
    run_layer_in_place(layer, hidden, states, variant="core")
    assert not torch.equal(states[1].cpu(), given[1])


def test_supports_says_what_runs(mps) -> None:
    from torch_mps_fusion.ops import supports

    sizes = {"num_k_heads": 2, "num_v_heads": 4, "head_k_dim": 32, "head_v_dim": 32}
    format_ = pack_layer(make_layer(Shape(), torch.float32)).keywords["weight_format"]
    for variant in ("packed", "core", "hybrid", "mega"):
        assert supports(variant, device="mps", dtype=torch.float32, weight_format=format_, **sizes)
    sizes["rows"] = 33
    assert not supports("mega", device="mps", dtype=torch.float32, weight_format=format_, **sizes)
