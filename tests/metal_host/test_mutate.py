"""The mutator itself: what it changes, what it leaves alone, and the book-keeping of survivors."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_mps_fusion.metal_host.mutate import KINDS, hunt, mutants, mutants_of_text, sources

TEXT = """#include <metal_stdlib>
using namespace metal;
#define PUBLISH() \\
  atomic_thread_fence(mem_flags::mem_device, \\
                      memory_order_seq_cst, thread_scope_device)
// threadgroup_barrier(mem_flags::mem_device)
kernel void k(coherent(device) device float* x [[buffer(0)]], device atomic_uint* c [[buffer(1)]]) {
  x[0] = 1;
  PUBLISH();
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  metal::simdgroup_barrier(metal::mem_flags::mem_none);
  atomic_thread_fence(mem_flags::mem_device, memory_order_acq_rel);
}
"""

EXPECTED = {
    "drop-fence@shader.metal:4#0": "PUBLISH() \\\n  (void)0\\\n\n",
    "drop-flag@shader.metal:4#0": "atomic_thread_fence(mem_flags::mem_none, \\\n",
    "weaken-order@shader.metal:5#0": "memory_order_relaxed, thread_scope_device)",
    "weaken-scope@shader.metal:5#0": "memory_order_seq_cst, thread_scope_threadgroup)",
    "drop-coherent@shader.metal:7#0": "kernel void k( device float* x",
    "drop-barrier@shader.metal:10#0": "  PUBLISH();\n  (void)0;\n",
    "drop-flag@shader.metal:10#0": "(mem_flags::mem_none | mem_flags::mem_threadgroup);",
    "drop-flag@shader.metal:10#1": "(mem_flags::mem_device | mem_flags::mem_none);",
    "drop-barrier@shader.metal:11#0": "  (void)0;\n  atomic_thread_fence",
    "drop-fence@shader.metal:12#0": "  (void)0;\n}",
    "drop-flag@shader.metal:12#0": "_fence(mem_flags::mem_none, memory_order_acq_rel);",
    "weaken-order@shader.metal:12#0": "memory_order_acquire);",
    "weaken-order@shader.metal:12#1": "memory_order_release);",
    "weaken-scope@shader.metal:12#0": "memory_order_acq_rel, thread_scope_threadgroup);",
}


def test_each_edit() -> None:
    made = {m.id: m for m in mutants_of_text(TEXT)}
    assert set(made) == set(EXPECTED)
    for name, part in EXPECTED.items():
        assert part in made[name].text, made[name].text
        assert made[name].text.count("\n") == TEXT.count("\n"), "line numbers must not move"
        assert made[name].text != TEXT


def test_kinds() -> None:
    only = mutants_of_text(TEXT, kinds=("drop-coherent",))
    assert [m.kind for m in only] == ["drop-coherent"]
    assert {m.kind for m in mutants_of_text(TEXT)} == set(KINDS)


def test_unknown_kind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"kinds: got \['drop-all'\], accepted: drop-fence"):
        mutants(tmp_path / "a.metal", kinds=("drop-all",))


def test_comments_and_strings_stay() -> None:
    assert (
        mutants_of_text(
            '// coherent(device)\n/* threadgroup_barrier(x) */ "atomic_thread_fence(a, b)"'
        )
        == []
    )


def test_code_of_other_builds_stays() -> None:
    barrier = "threadgroup_barrier(mem_flags::mem_none);\n"
    text = f"#ifdef MSL_GPU\n{barrier}#else\n{barrier}#endif\n#ifdef NAME\n{barrier}#endif\n"
    assert [m.line for m in mutants_of_text(text)] == [4, 7]


def test_includes_are_mutated_too(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    header = tmp_path / "sub" / "sync.h"
    header.write_text("#pragma once\nvoid f() { threadgroup_barrier(mem_flags::mem_none); }\n")
    shader = tmp_path / "a.metal"
    shader.write_text('#include "sub/sync.h"\n#include "sub/sync.h"\n// end\n')
    assert sources(shader) == [str(shader), str(header)]
    (only,) = mutants(shader)
    assert only.id == "drop-barrier@sub/sync.h:2#0"
    copy = only.write(tmp_path / "out", shader)
    assert copy.read_text() == shader.read_text()
    assert "(void)0" in (tmp_path / "out" / "sub" / "sync.h").read_text()


def test_include_outside_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "h.h").write_text("void f() { threadgroup_barrier(mem_flags::mem_none); }\n")
    (tmp_path / "sub").mkdir()
    shader = tmp_path / "sub" / "a.metal"
    shader.write_text('#include "../h.h"\n')
    (only,) = mutants(shader)
    with pytest.raises(ValueError, match="outside its own directory"):
        only.write(tmp_path / "out", shader)


def test_hunt_keeps_books() -> None:
    made = mutants_of_text(TEXT, kinds=("drop-fence", "drop-coherent"))
    told = {made[0].id: "a race"}
    report = hunt(
        made, lambda m: told.get(m.id), {made[0].id: "wrong", made[1].id: "proof", "x": "gone"}
    )
    assert report.caught == told
    assert report.explained == {made[1].id: "proof"}
    assert report.survivors == made[2:]
    assert report.stale == [made[0].id, "x"]
    assert f"survives: {made[2].id}" in str(report)
