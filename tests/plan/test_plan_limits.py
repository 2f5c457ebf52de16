"""Numbers: large calls, limits of grids and structs, the row threshold, devices, geometry."""

import re
import struct
from pathlib import Path

import abi
import pytest
import torch
from test_plan_layer import IDS

from torch_mps_fusion import device, plan

ROOT = Path(__file__).parents[2]
SHAPES = {  # hidden, Hk, Hv
    "0.8b": (1024, 16, 16),
    "9b": (4096, 16, 32),
    "27b": (5120, 16, 48),
}


def big(name="27b", variant="core", batch=1, tokens=1, on="M1", dtype=torch.bfloat16, **options):
    hidden, k_heads, v_heads = SHAPES[name]
    spec = device.find(on)
    arguments, keywords = plan.meta_layer(
        batch=batch,
        tokens=tokens,
        hidden_size=hidden,
        num_k_heads=k_heads,
        num_v_heads=v_heads,
        head_k_dim=128,
        head_v_dim=128,
        conv_width=4,
        dtype=dtype,
        weight_format=spec.weight_format,
    )
    return plan.plan_layer(*arguments, **keywords, variant=variant, device=on, **options)


def between(program):
    return [d for d in program.kernels if d.family not in ("projection", "rms_norm")]


@pytest.mark.parametrize("variant", ["packed", "core"])
@pytest.mark.parametrize(
    ("batch", "tokens", "on"),
    [
        (512, 512, "M5 Max"),
        (512, 512, "H200"),
        (1, 70_000, "M1 Max"),
        (4, 17_000, "M1 Max"),
        (70_000, 3, "M5 Max"),
        (70_000, 3, "H200"),
        (300, 8, "M1;cores=1"),
    ],
)
def test_B4_H1_H2_large_calls(variant, batch, tokens, on):
    """Grids stay within limits, dispatches within a millisecond, every token is taken once."""
    program = big("27b", variant, batch, tokens, on)
    assert program.faults() == []
    taken = {}
    for d in program.kernels:
        assert d.grid[0] < 2**31 and d.grid[1] <= 65535 and d.grid[2] <= 65535
        assert d.threads <= 1024
    for d in between(program):
        # one sequence and one token of 48 heads is the least that can be dispatched
        assert d.estimate_us <= 1000, d
        values = struct.unpack("<22i2f", d.arguments[-1][1])
        args = dict(zip(abi.fields("GdnArgs"), values, strict=True))
        taken[d.family] = taken.get(d.family, 0) + args["batch"] * args["count"]
    assert set(taken.values()) == {batch * tokens}


def test_split_is_no_finer_than_needed():
    """The next larger block of the same sequences would be estimated above the limit."""
    whole = big(tokens=4096, on="M1;dispatch_limit_us=1000000000")
    parts = between(big(tokens=4096, on="M1"))
    (one,) = between(whole)
    assert one.estimate_us > 1000
    assert len(parts) <= one.estimate_us / 1000 * 1.1 + 1
    assert all(d.estimate_us > 900 for d in parts[:-1])


def test_offsets_are_64_bit():
    """B8: the last sequence of a large batch lies beyond 2^31 and 2^32 bytes of its buffers."""
    program = big("27b", "packed", 4096, 64, "M1")
    assert program.faults() == []
    names = [b.name for b in program.buffers]
    for name in ("Y", "C", "state_out"):
        offsets = [v.offset for d in program.kernels for v in d.views if names[v.buffer] == name]
        assert max(offsets) > 2**32, name


@pytest.mark.parametrize("variant", ["packed", "core"])
def test_row_threshold(variant):
    few, many = big("0.8b", variant, 1, 32), big("0.8b", variant, 1, 33)
    assert not any(d.product for d in few.dispatches)
    stages = [d.stage for d in many.dispatches]
    assert stages[:2] == ["input_norm", "in_proj"] and stages[-2:] == ["out_proj", "conv_state"]
    assert [d.stage for d in many.dispatches if d.product] == ["in_proj", "out_proj"]
    assert "product in_proj" in many.calls.splitlines()
    # by rows, not by tokens; and by the device
    assert any(d.product for d in big("0.8b", variant, 33, 1).dispatches)
    assert any(d.product for d in big("0.8b", variant, 1, 9, "M1;row_threshold=8").dispatches)
    assert many.faults() == []


@pytest.mark.parametrize("rows", [1, 8, 9, 32, 33])
def test_linear(rows):
    program = plan.plan_linear(rows, 1024, 100, torch.float16, device="M1")
    (d,) = program.dispatches
    assert d.product == (rows > 32) and program.faults() == []
    if not d.product:
        assert d.grid == (7, -(-rows // 8), 1)
        assert d.views[0].read == 112 * 1024 * 2 * -(-rows // 8)


def test_groups_of_a_normalising_projection():
    """All threadgroups make the same number of tiles, but the last."""
    program = big("27b", on="M1 Max")
    groups, tiles = program.dispatches[0].grid[0], 1030
    rounds = -(-tiles // groups)
    assert groups <= 4 * 32 and groups * rounds >= tiles > groups * (rounds - 1)
    assert program.dispatches[2].grid[0] > 5120 // 16  # and the groups of the conv state


def test_bytes_at_real_shapes():
    """Weights and state once, beside the least that is possible: what is more is named."""
    for name, (hidden, k_heads, v_heads) in SHAPES.items():
        for variant in ("packed", "core"):
            program = big(name, variant)
            by_role = {}
            for d in program.dispatches:
                for role, n in program.bytes_by_role(d).items():
                    by_role[role] = by_role.get(role, 0) + n
            state = 8 * v_heads * 128 * 128
            channels = (2 * k_heads + v_heads) * 128
            # a state of W = 4: one column more than K - 1 is kept, and the window is read twice
            conv = 2 * channels * (3 + 3 + 4)
            rows = channels + v_heads * 128 + 2 * v_heads
            weights = 2 * hidden * (-(-rows // 16) * 16 + v_heads * 128)
            small = 2 * (channels * 4 + 128 + hidden + 2 * v_heads)
            assert by_role["weight"] == weights + small
            assert by_role["state"] == state + conv
            assert program.minimum_bytes <= program.bytes < 1.03 * program.minimum_bytes


REFUSED = [
    ({"on": "M9"}, "device: got 'M9'"),
    ({"on": "M1;speed=2"}, "device: got 'speed'"),
    ({"on": "M1;cores=x"}, "device: cores: got 'x'"),
    ({"on": "M1;msl=300"}, "device: msl: got 300; accepted: 310"),
    (
        {"on": "M1;threadgroup_memory=16000"},
        "threadgroup memory: got 16000; accepted: at least 17024",
    ),
    ({"geometry": ";tile=nt9"}, "geometry: tile: got 'nt9'"),
    ({"geometry": ";rule=r3s4"}, "geometry: rule"),
    ({"geometry": ";core=r1"}, "geometry: core"),
    ({"geometry": ";what=1"}, "geometry: got 'what'"),
    ({"geometry": ";tile"}, "setting: got 'tile'"),
    ({"variant": "stock"}, "variant: got 'stock'"),
    ({"batch": 2**20, "tokens": 2**12}, r"hidden: batch \* tokens: got 4294967296"),
    ({"batch": 2**19, "tokens": 1}, r"batch \* convolution channels|stride"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_refused_by_number(given, message):
    with pytest.raises(ValueError, match=message):
        big(**given)


def test_odd_tiles_do_not_go_by_two():
    with pytest.raises(ValueError, match="geometry: tile: got nt2u2p"):
        plan.plan_linear(1, 64, 33, torch.float32, device="M1", geometry=";tile=nt2u2p")


def test_function_constants_are_those_of_the_shaders():
    text = (ROOT / "csrc" / "plan" / "constants.h").read_text()
    found = {name: int(i) for name, i in re.findall(r"(k\w+) = (\d+),", text)}
    assert found == IDS


def test_planning_is_pure():
    """No torch, no device, no environment, no Python in csrc/plan."""
    for file in sorted((ROOT / "csrc" / "plan").iterdir()):
        text = re.sub(r"//[^\n]*", "", file.read_text())
        includes = re.findall(r'#include\s+[<"]([^>"]+)[>"]', text)
        for name in includes:
            shared = re.fullmatch(r"shaders/include/(abi|tasks)\.h", name)
            assert "/" not in name or shared, (file.name, name)
        assert not re.search(r"getenv|at::|c10::|Py_|TORCH_", text), file.name


def test_devices():
    specs = device.table()
    assert len({s.name for s in specs}) == len(specs) >= 20
    assert all(s.cores > 0 and s.bandwidth > 0 and s.threadgroup_memory >= 32768 for s in specs)
    assert device.find("apple m1 max").name == "M1 Max" == device.find("M1Max").name
    assert device.find("H200").weight_format == "tiles16-nvidia"
    assert device.find("M1 Max;cores=24;bandwidth=200").bandwidth == 200
    assert device.current("cpu").name == "host"
    with pytest.raises(ValueError, match="device: got 'M0'; accepted: M1,"):
        device.find("M0")
