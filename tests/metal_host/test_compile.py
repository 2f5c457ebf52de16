"""Compiling: includes, function constants, templates, diagnostics, the cache, failures."""

import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from metal_text import HEAD

from torch_mps_fusion.metal_host import CompileError, LaunchError, Library, compiler

ROOT = Path(__file__).parents[2]


def write(folder, **files):
    for name, text in files.items():
        path = folder / name.replace("__", ".")
        path.write_text(text)
    return path


def test_includes_and_their_lines(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "deep.h").write_text(
        '#pragma once\n#include "more.h"\nstatic float two() { return one() + 1; }\n'
    )
    (tmp_path / "parts" / "more.h").write_text(
        "#ifndef MORE\n#define MORE\nstatic float one() { return 1; }\n#endif\n"
    )
    main = write(
        tmp_path,
        main__metal=HEAD
        + '#include "parts/deep.h"\n#include "parts/more.h"\n'
        + "kernel void k(device float* x [[buffer(0)]]) { x[0] = two() + one(); }\n",
    )
    x = np.zeros(1, np.float32)
    Library(main).kernel("k")(1, 1, [x])
    assert x[0] == 3
    (tmp_path / "parts" / "more.h").write_text("\n\nstatic float one() { return nothing; }\n")
    with pytest.raises(CompileError, match=r"more\.h:3:\d+: error: .*nothing"):
        Library(main)


def test_include_not_found_names_the_line(tmp_path):
    main = write(tmp_path, main__metal=HEAD + '#include "gone.h"\n')
    with pytest.raises(CompileError, match=r'main\.metal:3: include "gone\.h" not found'):
        Library(main)
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "gone.h").write_text("")
    Library(main, include_dirs=[extra])


def test_diagnostics_name_the_line():
    text = HEAD + "kernel void k(device float* x [[buffer(0)]]) {\n  x[0] = missing;\n}\n"
    with pytest.raises(CompileError, match=r"shader\.metal:4:10: error: .*missing"):
        Library("shader.metal", text=text)


CONSTANTS = (
    HEAD
    + """
constant bool flag [[function_constant(0)]];
constant int count [[function_constant(3)]];
constant float scale [[function_constant(7)]];
constant float used = is_function_constant_defined(scale) ? scale : 9.0f;
kernel void k(device float* x [[buffer(0)]]) { x[0] = flag ? count : -count; x[1] = used; }
"""
)


def test_function_constants():
    x = np.zeros(2, np.float32)
    Library("c.metal", {"flag": True, 3: 5}, text=CONSTANTS).kernel("k")(1, 1, [x])
    assert x.tolist() == [5, 9]
    Library("c.metal", {0: 0, "count": np.int32(5), "scale": 0.5}, text=CONSTANTS).kernel("k")(
        1, 1, [x]
    )
    assert x.tolist() == [-5, 0.5]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"flag": True}, "count"),
        ({"flag": True, "count": 1, "size": 1}, "'size'.*no such.*flag"),
        ({"flag": 2, "count": 1}, "'flag'.*not a bool"),
        ({"flag": True, "count": 1.5}, "'count'.*int"),
        ({"flag": True, "count": 1, "scale": "x"}, "'scale'.*not a number"),
    ],
)
def test_bad_function_constants(given, message):
    with pytest.raises(CompileError, match=message):
        Library("c.metal", given, text=CONSTANTS)


def test_template_instances_and_macros():
    text = (
        HEAD
        + """
template <typename T, int N>
[[kernel]] void fill(device T* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = T(N); }
#define INSTANCE(T, N) \\
  template [[host_name("fill_" #T "_" #N)]] [[kernel]] decltype(fill<T, N>) fill<T, N>;
INSTANCE(float, 3)
INSTANCE(half, 4)
template [[host_name("fill_int")]] [[kernel]] void fill<int, 5>(device int*, uint);
#define ARGUMENT(n) [[buffer(n)]]
#define KERNEL kernel void
KERNEL plain(device float* x ARGUMENT(0)) { x[0] = 7; }
"""
    )
    library = Library("t.metal", text=text)
    assert library.kernels == ("plain", "fill_float_3", "fill_half_4", "fill_int")
    for name, dtype, value in (
        ("fill_float_3", "f4", 3),
        ("fill_half_4", "f2", 4),
        ("fill_int", "i4", 5),
    ):
        x = np.zeros(8, dtype)
        library.kernel(name)(1, 8, [x])
        assert (x == value).all()


def test_host_name_of_a_plain_kernel_and_array_arguments():
    text = (
        HEAD
        + """
[[host_name("other")]] kernel void k(device float* y [[buffer(0)]],
                                     constant float (&w)[4] [[buffer(1)]],
                                     threadgroup float (&t)[4] [[threadgroup(0)]],
                                     uint i [[thread_position_in_grid]]) {
  t[i] = w[i];
  y[i] = 2 * t[i];
}
"""
    )
    library = Library("h.metal", text=text)
    assert library.kernels == ("other",)
    w, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    library.kernel("other")(1, 4, {"y": y, "w": w}, threadgroup_memory={"t": 16})
    assert (y == 2 * w).all()
    with pytest.raises(LaunchError, match="`w`.*at least 16"):
        library.kernel("other")(1, 4, {"y": y, "w": w[:2]}, threadgroup_memory=[16])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kernel void k(device float* x) {}", "kernel k.*device float\\* x.*buffer"),
        ("kernel void k(texture2d<float> t [[texture(0)]]) {}", "kernel k.*texture"),
        ('template [[host_name("a")]] [[kernel]] void f<1>(device int*);', '"a".*`f`'),
        (
            "template <int N> kernel void f(device int* x [[buffer(0)]]) {}\n"
            'template [[host_name("a")]] [[kernel]] decltype(f<1>) f<1>;\n'
            'template [[host_name("a")]] [[kernel]] decltype(f<2>) f<2>;',
            "two kernels.*a",
        ),
        ("kernel void k(device float* x [[buffer(N)]]) {}", "index `N`"),
        ("kernel void k(device float* x [[buffer(0)]] {}", r"^bad\.metal:3: unbalanced \($"),
        ("\nkernel void k(device float* x) {}", r"^bad\.metal:4: kernel k"),
        ("kernel int k(device int* x [[buffer(0)]]) { return 0; }", "returns void, not int"),
        ("kernel void k(device int* x [[buffer(31)]]) {}", "`x`.*last index is 30"),
        (
            "kernel void k(device int* x [[buffer(1)]], device int* y [[buffer(1)]]) {}",
            r"`x` and `y` are both \[\[buffer\(1\)\]\]",
        ),
    ],
)
def test_bad_declarations(text, message):
    with pytest.raises(CompileError, match=message):
        Library("bad.metal", text=HEAD + text + "\n")


def test_diagnostics_are_in_metals_words():
    kernel = "kernel void k(coherent(device) device float* x [[buffer(0)]]) {\n%s\n}\n"
    for body, message in (
        ("device float* y = x; y[0] = 1;", r"'device float \*' with.*'coherent\(device\) device"),
        ("threadgroup float s[4]; device float* y = s;", r"'threadgroup float"),
        ("double y = x[0];", r"4:1: error: this word is not in the Metal language"),
        ("float3 y = float4x4(1);", "float3"),
    ):
        with pytest.raises(CompileError, match=message) as refused:
            Library("words.metal", text=HEAD + kernel % body)
        assert not re.search("__global|__local|ext_vector|zig: ", str(refused.value))


def test_values_of_function_constants():
    text = HEAD + (
        "constant float f [[function_constant(0)]];\nconstant uchar u [[function_constant(1)]];\n"
        "kernel void k(device float* x [[buffer(0)]]) { x[0] = f; x[1] = u; }\n"
    )
    x = np.zeros(2, np.float32)
    for f in (np.inf, -np.inf, np.nan, -1e-30):
        Library("v.metal", text=text, constants={"f": f, "u": 255}).kernel("k")(1, 1, [x])
        np.testing.assert_array_equal(x, np.array([f, 255], np.float32))
    for u in (256, -1):
        with pytest.raises(CompileError, match=rf"\['u'\]: {u} does not fit uchar"):
            Library("v.metal", text=text, constants={"f": 0, "u": u})
    with pytest.raises(CompileError, match=r"u \(1, uchar\) has no value.*--constant u="):
        Library("v.metal", text=text, constants={"f": 0})


@pytest.mark.parametrize("on", (False, True))
def test_two_buffers_of_one_index_of_which_a_constant_chooses(on):
    text = HEAD + (
        "constant bool on [[function_constant(0)]];\nconstant bool off = !on;\n"
        "kernel void k(device float* y [[buffer(0)]],\n"
        "              device const float* a [[buffer(1), function_constant(on)]],\n"
        "              device const int* b [[buffer(1), function_constant(off)]]) {\n"
        "  if (on) y[0] = a[0]; else y[0] = b[0];\n"
        "}\n"
    )
    kernel = Library("choice.metal", text=text, constants={"on": on}, checked=True).kernel("k")
    y, a, b = np.zeros(1, np.float32), np.full(1, 5, np.float32), np.full(1, 7, np.int32)
    kernel(1, 1, {"y": y} | ({"a": a} if on else {"b": b}))
    assert y[0] == (5 if on else 7)
    with pytest.raises(LaunchError, match="`b`.*another of the same index"):
        kernel(1, 1, [y, a, b])


def test_defines_and_versions():
    text = (
        HEAD
        + "kernel void k(device int* x [[buffer(0)]]) { x[0] = SIZE; x[1] = __METAL_VERSION__; }\n"
    )
    x = np.zeros(2, np.int32)
    Library("d.metal", text=text, defines={"SIZE": 12}, metal_version=310).kernel("k")(1, 1, [x])
    assert x.tolist() == [12, 310]


STRUCTS = (
    HEAD
    + """
struct P { uint a, b; };
kernel void k(device P* p [[buffer(0)]], constant P& c [[buffer(1)]],
              device packed_float3* r [[buffer(2)]], device float4x4* m [[buffer(3)]]) {
  P q = p[0], s = c;
  q.a += q.b + s.a;
  p[1] = q;
  float3 v = r[0];
  r[1] = r[0] * 2 + float3(r[0]) + v;
  m[0][1] = m[0] * float4(1, 2, 3, 4);
}
"""
)


@pytest.mark.parametrize("checked", (False, True), ids=("plain", "checked"))
def test_whole_struct_copies_give_up_address_spaces(checked):
    library = Library("copy.metal", text=STRUCTS, checked=checked)
    assert library.warnings.startswith("copy.metal:7:")
    assert "address spaces are not checked" in library.warnings
    p, r = np.array([1, 2, 0, 0], np.uint32), np.arange(1, 7, dtype=np.float32)
    m = np.eye(4, dtype=np.float32)
    library.kernel("k")(1, 1, [p, np.array([10, 0], np.uint32), r, m])
    assert p.tolist() == [1, 2, 13, 2]
    assert r.tolist() == [1, 2, 3, 4, 8, 12]
    assert m[1].tolist() == [1, 2, 3, 4]


def test_struct_copies_do_not_hide_an_error_of_address_spaces():
    text = STRUCTS.replace("q.a +=", "thread float* wrong = r; q.a +=")
    with pytest.raises(CompileError, match=r"copy\.metal:8:\d+: error: "):
        Library("copy.metal", text=text)


# ---------------------------------------------------------------- the cache

SMALL = HEAD + "kernel void k(device float* x [[buffer(0)]]) { x[0] += 1; }\n"


def test_cache_is_by_content(tmp_path, monkeypatch):
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(compiler.cache_dir() / "zig"))
    monkeypatch.setenv("METAL_HOST_CACHE", str(tmp_path))
    compiler.runtime.cache_clear()
    try:
        first = Library("s.metal", text=SMALL).binary
        stamp = first.stat().st_ctime_ns, first.read_bytes()
        assert Library("s.metal", text=SMALL).binary == first
        assert first.read_bytes() == stamp[1]
        others = {
            Library("s.metal", text=SMALL + "\n").binary,
            Library("s.metal", text=SMALL, checked=True).binary,
            Library("s.metal", text=SMALL, defines={"A": 1}).binary,
        }
        assert len(others | {first}) == 4
        assert not [p for p in tmp_path.iterdir() if p.name.startswith(".making")]
    finally:
        compiler.runtime.cache_clear()


def test_processes_share_the_cache(tmp_path):
    code = (
        "import numpy as np\nfrom torch_mps_fusion.metal_host import Library\n"
        f"x = np.zeros(1, np.float32)\nLibrary('s.metal', text={SMALL!r}).kernel('k')(1, 1, [x])\n"
        "assert x[0] == 1"
    )
    zig = str(compiler.cache_dir() / "zig")
    env = {**os.environ, "METAL_HOST_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    env.setdefault("ZIG_GLOBAL_CACHE_DIR", zig)
    both = [subprocess.Popen([sys.executable, "-c", code], env=env) for _ in range(2)]
    assert [p.wait(timeout=300) for p in both] == [0, 0]


# ---------------------------------------------------------------- failures


def test_missing_compiler_says_what_to_install(monkeypatch):
    monkeypatch.delenv("METAL_HOST_CLANG", raising=False)
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    with pytest.raises(CompileError, match="pip install ziglang"):
        compiler.compiler.__wrapped__()


def test_wrong_compiler_variable(monkeypatch):
    monkeypatch.setenv("METAL_HOST_CLANG", "/no/such/clang")
    with pytest.raises(CompileError, match="METAL_HOST_CLANG.*no/such/clang"):
        compiler.compiler.__wrapped__()


def fake_compiler(tmp_path, body):
    path = tmp_path / "clang"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_crash_of_the_compiler_is_reported(tmp_path):
    crash = fake_compiler(tmp_path, "kill -SEGV $$")
    with pytest.raises(CompileError, match="compiler crashed"):
        compiler.invoke([crash], "the shader")


def test_endless_compiler_is_stopped(tmp_path):
    endless = fake_compiler(tmp_path, "sleep 60 & wait")
    begin = time.monotonic()
    with pytest.raises(CompileError, match="limit of 0.3 s"):
        compiler.invoke([endless], "the shader", 0.3)
    assert time.monotonic() - begin < 10


def test_endless_template_is_refused():
    text = (
        HEAD
        + """
template <int N> struct F { static constant constexpr int v = F<N + 1>::v; };
kernel void k(device int* x [[buffer(0)]]) { x[0] = F<0>::v; }
"""
    )
    with pytest.raises(CompileError, match=r"f\.metal:4.*(template|instantiation)"):
        Library("f.metal", text=text)


def test_import_needs_neither_torch_nor_the_extension():
    code = (
        "import sys\nsys.modules['torch'] = None\nsys.modules['torch_mps_fusion._C'] = None\n"
        "import torch_mps_fusion.metal_host as m\nprint(m.Library.__name__)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    assert out.stdout.strip() == "Library", out.stderr
