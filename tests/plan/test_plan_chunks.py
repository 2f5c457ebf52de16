"""Long calls as chunks, and what a call may hold in memory."""

import pytest
import torch
from test_plan_limits import SHAPES, big

from torch_mps_fusion import device, explain, plan
from torch_mps_fusion.models import KNOWN_SHAPES

LIMIT = 2048
SIZES = [
    (1, 1), (1, 2048), (1, 2049), (1, 65_536), (1, 70_001), (2, 1024), (2, 1025), (3, 5000),
    (700, 3), (2048, 1), (2049, 1), (70_000, 3), (5, 2047), (4, 17_000),
]  # fmt: skip


@pytest.mark.parametrize(("batch", "tokens"), SIZES)
def test_chunks_are_few_nearly_equal_and_within_the_limit(batch, tokens):
    sizes = plan.chunks(batch, tokens, "M1")
    assert sum(b * t for b, t in sizes) == batch * tokens
    assert all(b * t <= LIMIT for b, t in sizes)
    if batch * tokens <= LIMIT:
        assert sizes == [(batch, tokens)]
    elif tokens > LIMIT:  # a sequence at a time, its tokens in order
        assert {b for b, _ in sizes} == {1} and len(sizes) == batch * -(-tokens // LIMIT)
        one = [t for _, t in sizes[: len(sizes) // batch]]
        assert sum(one) == tokens and one * batch == [t for _, t in sizes]
        assert len(set(one[:-1])) == 1 and one[0] % 8 == 0 and one[-1] > one[0] - 8 * len(one)
    else:
        assert {t for _, t in sizes} == {tokens} and len(sizes) == -(-batch // (LIMIT // tokens))
        assert sizes[-1][0] > sizes[0][0] - len(sizes)


def test_the_limit_is_the_devices():
    assert device.find("M1;chunk_rows=40").chunk_rows == 40
    assert plan.chunks(1, 100, "M1;chunk_rows=40") == [(1, 40), (1, 40), (1, 20)]
    assert plan.chunks(1, 5, "M1;chunk_rows=1") == [(1, 1)] * 5
    with pytest.raises(ValueError, match="device: chunk_rows: got '0'"):
        plan.chunks(1, 1, "M1;chunk_rows=0")
    with pytest.raises(ValueError, match="_chunks: tokens: got 0"):
        plan.chunks(1, 0, "M1")


def scratch(program):
    return sum(b.bytes for b in program.buffers if b.role == "scratch")


@pytest.mark.parametrize("variant", ["packed", "core"])
@pytest.mark.parametrize("shape", ["0.8b", "27b"])
def test_H1_memory_and_work_of_a_dispatch_stay_bounded(shape, variant):
    """Whatever the number of tokens: scratch is that of 2,048 rows, and no kernel but a projection,
    whose weights alone may take longer, is estimated above a millisecond."""
    config = KNOWN_SHAPES[shape]
    given = {"variant": variant, "device": "M1"}
    most = scratch(explain.plan_config(config, torch.bfloat16, tokens=LIMIT, **given))
    assert most < 400e6
    for tokens in (2049, 70_000, 1_000_000):
        call = explain.plan_call(config, torch.bfloat16, tokens=tokens, **given)
        assert max(map(scratch, call.programs)) <= most
        for program in (call.programs[0], call.programs[-1]):
            assert program.faults() == []
            kernels = [d for d in program.kernels if d.family != "projection"]
            assert max(d.estimate_us for d in kernels) <= 1000


def test_H5_more_than_the_working_set_is_refused():
    hidden, k_heads, v_heads = SHAPES["27b"]
    channels = (2 * k_heads + v_heads) * 128
    rows = channels + v_heads * 128 + 2 * v_heads
    weights = 2 * hidden * (-(-rows // 16) * 16 + v_heads * 128)
    weights += 2 * (channels * 4 + 128 + hidden + 2 * v_heads)
    states = 2 * (4 * v_heads * 128 * 128 + 2 * 4 * channels)
    for tokens in (8, 2048, 70_000):
        program = big("27b", "packed", tokens=plan.chunks(1, tokens, "M1")[0][1], on="M1")
        needed = weights + states + 2 * 2 * hidden * tokens + scratch(program)
        enough, less = needed // 10**6 + 1, needed // 10**6
        big("27b", "packed", tokens=tokens, on=f"M1;working_set_mb={enough}")
        with pytest.raises(ValueError, match="hidden: memory of the call: got .* GB; accepted: at"):
            big("27b", "packed", tokens=tokens, on=f"M1;working_set_mb={less}")
    # without chunks a long call would be refused
    with pytest.raises(ValueError, match="memory of the call"):
        big("27b", "packed", tokens=70_000, on=f"M1;working_set_mb={enough};chunk_rows=70000")


def test_H5_linear():
    size = 2 * (1000 * 64 + 3 * 64 + 3 * 1000)  # one row of tiles is padded: 1008
    for rows, needed in ((3, size + 2 * 8 * 64), (100, 2 * (2 * 1008 * 64 + 100 * 1064))):
        plan.plan_linear(rows, 64, 1000, torch.float16, device="M1")
        assert needed < 10**6
        plan.plan_linear(rows, 64, 1000, torch.float16, device="M1;working_set_mb=1")
    with pytest.raises(ValueError, match=r"x: memory of the call: got 0\.13 GB; .* 0\.10 GB"):
        plan.plan_linear(1, 8192, 7800, torch.float16, device="M1;working_set_mb=100")
