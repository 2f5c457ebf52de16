"""Arguments of a launch: what is accepted, and that the rest is refused by name beforehand."""

import numpy as np
import pytest
from metal_text import HEAD

from torch_mps_fusion.metal_host import LaunchError, Library, Options

TEXT = (
    HEAD
    + """
struct Shape { uint rows, columns; };
constant bool on [[function_constant(0)]];
kernel void scale(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                  constant float& factor [[buffer(2)]], constant Shape& shape [[buffer(4)]],
                  device half* h [[buffer(5), function_constant(on)]],
                  uint i [[thread_position_in_grid]]) {
  if (i < shape.rows * shape.columns) y[i] = x[i] * factor;
}
kernel void wide(device const float4* x [[buffer(0)]], device bfloat* y [[buffer(1)]],
                 device atomic_uint* c [[buffer(2)]], constant bool& flag [[buffer(3)]],
                 constant long& big [[buffer(6)]]) {}
[[max_total_threads_per_threadgroup(64)]] kernel void local(
    device float* y [[buffer(0)]], threadgroup float* a [[threadgroup(0)]],
    threadgroup int* b [[threadgroup(1)]], uint i [[thread_index_in_threadgroup]]) {
  a[i] = i;
  b[i] = -int(i);
  y[i] = a[i] + b[i];
}
"""
)


@pytest.fixture(scope="module")
def library():
    return Library("launch.metal", text=TEXT, constants={"on": False})


@pytest.fixture
def scale(library):
    return library.kernel("scale")


def shape(rows=2, columns=32):
    return np.array([rows, columns], np.uint32)


def good():
    x = np.arange(64, dtype=np.float32)
    return {"x": x, "y": np.zeros(64, np.float32), "factor": 2.0, "shape": shape()}


def test_by_position_by_name_and_by_index(scale):
    args = good()
    scale(2, 32, args)
    assert (args["y"] == 2 * args["x"]).all()
    args = good()
    scale((2, 1, 1), (32,), [*args.values(), None])
    assert (args["y"] == 2 * args["x"]).all()
    args = good()
    scale(2, 32, {0: args["x"], 1: args["y"], 2: np.float32(3), 4: shape().tobytes()})
    assert (args["y"] == 3 * args["x"]).all()


def test_views_with_offsets(scale):
    torch = pytest.importorskip("torch")
    base, out = torch.arange(128.0), torch.zeros(200)
    scale(2, 32, good() | {"x": base[64:], "y": out[100:164]})
    assert torch.equal(out[100:164], 2 * base[64:]) and not out[:100].any() and not out[164:].any()
    array = np.arange(200, dtype=np.float32)
    scale(2, 32, good() | {"x": array[3:67], "y": array[101:165]})
    assert (array[101:165] == 2 * np.arange(3, 67)).all() and array[165] == 165


def test_checked_launch_writes_views_of_one_storage(library):
    checked = Library("launch.metal", text=TEXT, constants={0: True}, checked=True)
    array = np.arange(128, dtype=np.float32)
    args = good() | {"x": array[:64], "y": array[64:], "h": np.zeros(1, np.float16)}
    checked.kernel("scale")(2, 32, args)
    assert (array[64:] == 2 * array[:64]).all()


def test_grid_in_threads_cuts_the_edge(scale):
    args = good() | {"shape": shape(100, 100)}
    scale(50, 32, args, grid_in_threads=True)
    assert (args["y"][:50] == 2 * args["x"][:50]).all() and not args["y"][50:].any()


def test_threadgroup_memory_arguments(library):
    y = np.ones(64, np.float32)
    local = library.kernel("local")
    local(1, 64, [y], threadgroup_memory={"a": 256, "b": 256})
    assert not y.any()
    local(1, 64, [y], threadgroup_memory=[256, 256])


def wide(**more):
    args = {
        "x": np.zeros((4, 4), np.float32),
        "y": np.zeros(4, np.uint16),
        "c": np.zeros(1, np.uint32),
        "flag": True,
        "big": -(2**40),
    }
    return args | more


def test_types_are_those_of_the_signature(library):
    kernel = library.kernel("wide")
    kernel(1, 1, wide())
    kernel(1, 1, wide(flag=0, c=np.zeros(1, np.int32)))
    torch = pytest.importorskip("torch")
    kernel(1, 1, wide(y=torch.zeros(4, dtype=torch.bfloat16)))


class Bomb:
    """Not an array."""


BAD_ARGUMENTS = {
    "too few": (lambda a: list(a.values())[:3], "args: the kernel takes 5 buffers"),
    "no list": (lambda a: None, "args: None is neither"),
    "missing": (lambda a: {k: v for k, v in a.items() if k != "y"}, "`y`"),
    "unknown name": (lambda a: a | {"z": a["x"]}, r"args\['z'\]"),
    "twice": (lambda a: a | {0: a["x"]}, "`x`.*twice"),
    "None": (lambda a: a | {"x": None}, "`x`"),
    "kind": (lambda a: a | {"x": Bomb()}, "`x`.*Bomb"),
    "element size": (lambda a: a | {"x": a["x"].astype("f8")}, "`x`.*float64"),
    "element kind": (lambda a: a | {"x": np.zeros(64, np.int32)}, "`x`.*int32"),
    "strides": (lambda a: a | {"x": np.zeros(128, np.float32)[::2]}, "`x`.*strides"),
    "read-only": (lambda a: a | {"y": np.frombuffer(bytes(256), np.float32)}, "`y`.*read-only"),
    "bytes to write": (lambda a: a | {"y": bytes(256)}, "`y`"),
    "alignment": (
        lambda a: a | {"x": np.frombuffer(bytearray(260), np.uint8)[1:257].view(np.float32)},
        "`x`.*multiple of 4",
    ),
    "struct too small": (lambda a: a | {"shape": np.zeros(1, np.uint32)}, "`shape`.*at least 8"),
    "empty": (lambda a: a | {"x": np.zeros(0, np.float32)}, "`x`.*at least 4"),
    "number for a pointer": (lambda a: a | {"x": 1.0}, "`x`.*number"),
    "number for a struct": (lambda a: a | {"shape": 1}, "`shape`.*number"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_bad_arguments(scale, case):
    change, message = BAD_ARGUMENTS[case]
    args = good()
    with pytest.raises(LaunchError, match=message):
        scale(2, 32, change(args))
    assert not args["y"].any()


def test_bad_tensors(scale):
    torch = pytest.importorskip("torch")
    with pytest.raises(LaunchError, match="`x`.*strides"):
        scale(2, 32, good() | {"x": torch.zeros(8, 8).t()})
    with pytest.raises(LaunchError, match="`x`.*float64"):
        scale(2, 32, good() | {"x": torch.zeros(64, dtype=torch.float64)})
    with pytest.raises(LaunchError, match="`x`.*meta"):
        scale(2, 32, good() | {"x": torch.zeros(64, device="meta")})


def test_bad_scalars(library):
    kernel = library.kernel("wide")
    for big in (2**63, 1.5):
        with pytest.raises(LaunchError, match="`big`"):
            kernel(1, 1, wide(big=big))
    with pytest.raises(LaunchError, match="`x`.*multiple of 16"):
        kernel(1, 1, wide(x=np.zeros(20, np.float32)[1:]))
    with pytest.raises(LaunchError, match="`y`.*bfloat of 2 bytes"):
        kernel(1, 1, wide(y=np.zeros(4, np.float16)))


BAD_OPTIONS = {
    "grid of zero": ({"grid": 0}, "grid"),
    "grid of four": ({"grid": (1, 1, 1, 1)}, "grid"),
    "grid of a string": ({"grid": "2"}, "grid"),
    "grid too large": ({"grid": (2**20, 2**10)}, "grid"),
    "threadgroup too large": ({"threadgroup": 1025}, "threadgroup.*1024"),
    "threadgroup of zero": ({"threadgroup": (32, 0)}, "threadgroup"),
    "grid of a float": ({"grid": 2.0}, "grid: 2.0"),
    "unknown option": ({"sched": "fifo"}, "sched: unknown option.*poison.*grid_in_threads"),
    "unknown schedule": ({"schedule": "fair"}, "schedule: 'fair'.*unfair"),
    "unknown order": ({"order": "up"}, "order"),
    "negative seed": ({"seed": -1}, "seed"),
    "seed of a float": ({"seed": 1.0}, "seed"),
    "negative residency": ({"residency": -1}, "residency"),
    "time limit": ({"time_limit": -1}, "time_limit"),
    "threads and schedule": ({"threads": 2, "schedule": "random"}, "threads.*schedule"),
    "preempt unchecked": ({"preempt": 2}, "preempt.*checked"),
    "poison unchecked": ({"poison": ["y"]}, "poison.*checked"),
    "unknown poison": ({"poison": ["z"]}, "poison: 'z'"),
    "unwanted local memory": ({"threadgroup_memory": [16]}, "threadgroup_memory"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options(scale, case):
    more, message = BAD_OPTIONS[case]
    call = {"grid": 2, "threadgroup": 32} | more
    with pytest.raises(LaunchError, match=message):
        scale(call.pop("grid"), call.pop("threadgroup"), good(), **call)


def test_bad_threadgroup_memory(library):
    local, y = library.kernel("local"), np.zeros(64, np.float32)
    cases = (
        None,
        [256],
        {"a": 256},
        [256, 8],
        [256, 32768],
        {"a": 256, "b": 256, "c": 16},
        [0, 16],
    )
    for given in cases:
        with pytest.raises(LaunchError, match="threadgroup_memory"):
            local(1, 64, [y], threadgroup_memory=given)
    with pytest.raises(LaunchError, match="threadgroup.*64"):
        local(1, 128, [y], threadgroup_memory=[512, 512])


def test_unknown_kernel(library):
    with pytest.raises(LaunchError, match="'sum'.*scale, wide, local"):
        library.kernel("sum")


def test_options_object(scale):
    options = Options(schedule="random", seed=5)
    a = scale(2, 32, good(), options=options)
    assert a.trace == scale(2, 32, good(), schedule="random", seed=5).trace
    assert a.trace != scale(2, 32, good(), options=options, seed=6).trace
