"""Reading MSL text."""

import pytest

from torch_mps_fusion.metal_host import CompileError, source


def test_comments_and_strings_do_not_fool_the_reader():
    text = 'a /* kernel\n "x" */ "b // c /* d" // e "f\ng \'"\' h'
    assert source.blank_comments(text).split() == [
        "a",
        '"b',
        "//",
        "c",
        "/*",
        'd"',
        "g",
        "'\"'",
        "h",
    ]
    assert len(source.blank_comments(text)) == len(text)


def test_separators_of_digits_open_no_string():
    assert source.blank_comments("x = 1'000 + 0xff'ff; // it's").rstrip() == "x = 1'000 + 0xff'ff;"


def test_kernels_and_their_parameters():
    text = """
template <typename T, int N>
[[kernel, max_total_threads_per_threadgroup(128)]] void f(
    device const vec<T, 4>* x [[buffer(3)]], constant Args& a [[ buffer(0) ]],
    threadgroup float (&t)[4] [[threadgroup(1)]], device T *y [[buffer(1), function_constant(has)]],
    uint2 g [[threadgroup_position_in_grid]]) {}
[[max_total_threads_per_threadgroup(64)]] kernel void h(device float* x [[buffer(0)]]) {}
void not_a_kernel(float x) {}
"""
    f, h = source.kernels(text)
    assert (f.name, f.template, f.max_threads) == ("f", True, 128)
    assert (h.name, h.template, h.max_threads) == ("h", False, 64)
    x, a, t, y, g = f.parameters
    assert (x.name, x.kind, x.index, x.type) == ("x", "device", 3, "device const vec<T, 4>*")
    assert (a.name, a.kind, a.index) == ("a", "constant", 0)
    assert (t.kind, t.index) == ("threadgroup", 1)
    assert (y.name, y.index, y.optional) == ("y", 1, "has")
    assert (g.kind, g.builtin) == ("builtin", "threadgroup_position_in_grid")


def test_instances_and_constants():
    text = """
constant bool has [[function_constant(4)]];
template [[host_name("f_" "a")]] [[kernel]] decltype(f<float, 4>) f<float, 4>;
template [[host_name("f_b")]] [[kernel]] void f<half, 8>(device half*, uint);
"""
    assert [(i.host, i.callee) for i in source.instances(text)] == [
        ("f_a", "f<float, 4>"),
        ("f_b", "f<half, 8>"),
    ]
    (constant,) = source.function_constants(text)
    assert (constant.name, constant.type, constant.index) == ("has", "bool", 4)


def test_flattening_keeps_places(tmp_path):
    (tmp_path / "a.h").write_text("#pragma once\nint a;\n")
    (tmp_path / "b.h").write_text('#include "a.h"\nint b;\n')
    (tmp_path / "m.metal").write_text(
        '// "no"\n#include "b.h"\n  #  include "a.h" // again\nint m;\n'
    )
    flat = source.flatten(tmp_path / "m.metal")
    assert [line for line in flat.text.split("\n") if line.strip()] == [
        '// "no"',
        "int a;",
        "int b;",
        "int m;",
    ]
    line = flat.text.split("\n").index("int m;") + 1
    assert str(flat.location(line)) == f"{tmp_path / 'm.metal'}:4"
    assert len(flat.files) == 3
    with pytest.raises(CompileError, match="cannot be read"):
        source.flatten(tmp_path / "none.metal")


def test_include_in_a_comment_is_no_include(tmp_path):
    path = tmp_path / "m.metal"
    path.write_text('/*\n#include "gone.h"\n*/\nint m;\n')
    assert "int m;" in source.flatten(path).text


def test_recursive_includes_end(tmp_path):
    for name, other in (("a.h", "b.h"), ("b.h", "a.h")):
        guard = name[0].upper()
        (tmp_path / name).write_text(
            f'#ifndef {guard}\n#define {guard}\n#include "{other}"\nint {name[0]};\n#endif\n'
        )
    (tmp_path / "m.metal").write_text('#include "a.h"\n')
    assert source.flatten(tmp_path / "m.metal").text.count("int a;") == 1
