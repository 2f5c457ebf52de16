"""The programs of persistent dispatches: order, counters, and that text carries them whole."""

from collections import Counter

import pytest
import torch

from torch_mps_fusion import plan

# batch, tokens, hidden, Hk, Hv, Dk, Dv
SHAPES = {
    "0.8B": (1, 1, 1024, 16, 16, 128, 128),
    "27B": (1, 8, 5120, 16, 48, 128, 128),
    "sequences_across_passes": (3, 3, 96, 2, 6, 32, 64),
    "one_head": (1, 2, 32, 1, 1, 32, 32),
    "passes": (2, 16, 64, 3, 3, 64, 32),
}


def layer(variant, shape, **keywords):
    batch, tokens, hidden, k_heads, v_heads, k_dim, v_dim = SHAPES[shape]
    arguments, names = plan.meta_layer(
        batch=batch,
        tokens=tokens,
        hidden_size=hidden,
        num_k_heads=k_heads,
        num_v_heads=v_heads,
        head_k_dim=k_dim,
        head_v_dim=v_dim,
        conv_width=4,
        dtype=torch.bfloat16,
        weight_format="tiles16-apple",
    )
    keywords = {"device": "M1 Max"} | keywords
    return plan.plan_layer(*arguments, **names | keywords, variant=variant)


def tasks_of(program):
    (found,) = [d.tasks for d in program.dispatches if d.tasks]
    return found


@pytest.mark.parametrize("head_map", ["block", "tiled"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("variant", ["hybrid", "mega"])
def test_every_wait_is_met_by_earlier_tickets(variant, shape, head_map):
    tasks = tasks_of(layer(variant, shape, head_map=head_map))
    added: Counter[int] = Counter()
    for task in tasks.records:
        for counter, count in tasks.waits(task):
            assert count == 0 or added[counter] == count, (task, counter)
        for counter, count in tasks.signals(task):
            added[counter] += count
    assert set(added) == set(range(tasks.counters)) - {
        c for c, n in tasks.edges if n == 0
    }  # a segment of K that is empty has a counter that nobody uses


@pytest.mark.parametrize("shape", SHAPES)
def test_every_tile_is_made_once(shape):
    batch, tokens, hidden, k_heads, v_heads, k_dim, v_dim = SHAPES[shape]
    tasks = tasks_of(layer("mega", shape))
    made = Counter((r.stage, r.tile, r.part) for r in tasks.records)
    passes = range(-(-batch * tokens // 8))
    channels = 2 * k_heads * k_dim + v_heads * v_dim
    columns = channels + v_heads * v_dim + 2 * v_heads
    wanted = (
        [("in_proj", t, p) for t in range(-(-columns // 16)) for p in passes]
        + [("head", p, b) for p in range(v_heads * v_dim // 32) for b in range(batch)]
        + [("gated_norm", h, b) for h in range(v_heads) for b in range(batch)]
        + [("conv_state", c, b) for c in range(-(-channels // 256)) for b in range(batch)]
        + [("out_proj", t, p) for t in range(hidden // 16) for p in passes]
    )
    assert made == Counter(wanted)


def test_heads_start_while_input_tiles_are_made():
    """A layer has one join that everybody waits for, in front of the output tiles."""
    stages = [r.stage for r in tasks_of(layer("mega", "27B")).records]
    first_head, last_input = stages.index("head"), len(stages) - 1 - stages[::-1].index("in_proj")
    assert first_head < last_input / 4
    assert stages[last_input + 1 :].count("head") < 16


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("variant", ["hybrid", "mega"])
def test_dispatches_and_text(variant, in_place):
    program = layer(variant, "sequences_across_passes", in_place=in_place)
    stages = {"hybrid": ["input_norm+in_proj", "conv+out_proj"], "mega": ["layer"]}[variant]
    assert [d.stage for d in program.dispatches] == stages + ["commit"] * in_place
    assert program.faults() == []
    again = plan.parse(program.listing())
    assert again.listing() == program.listing()
    assert tasks_of(again) == tasks_of(program)


def test_the_program_is_a_pure_function_of_the_shape():
    assert layer("mega", "passes").listing() == layer("mega", "passes").listing()


@pytest.mark.parametrize("variant", ["hybrid", "mega"])
def test_refusals(variant):
    with pytest.raises(ValueError, match="device: msl: got 310; accepted: 320"):
        layer(variant, "0.8B", device="M1;msl=310")
    with pytest.raises(ValueError, match="persistent variant: got 32; accepted: at most 16"):
        layer(variant, "passes", device="M1;row_threshold=16")
