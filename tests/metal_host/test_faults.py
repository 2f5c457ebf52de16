"""Every class of fault: a faulty kernel that must be reported, a corrected twin that must pass.

`faults/*.metal` hold both. The first line says how to launch; `// fault: kind` stands at the line
that the report must name.
"""

import json
import platform
import re
from pathlib import Path

import numpy as np
import pytest
from metal_text import HEAD

from torch_mps_fusion.metal_host import FAULT_KINDS, FaultError, Library

FOLDER = Path(__file__).parent / "faults"
FILES = sorted(FOLDER.glob("*.metal"))
# Faults that only a launch option can bring about have tests of their own.
ELSEWHERE = {"deadlock"}


def read(path):
    text = path.read_text()
    run = json.loads(re.match(r"// run: (.*)", text)[1])
    line, kind = next(
        (i, m[1])
        for i, s in enumerate(text.split("\n"), 1)
        if (m := re.search(r"// fault: (\S+)", s))
    )
    return run, line, kind


def arguments(kernel, length):
    made = {}
    for p in kernel.buffers:
        dtype = {
            "f": np.float32,
            "i": np.int32,
            "u": np.uint32 if p.element_size == 4 else np.uint8,
        }
        data = np.zeros(length, dtype[p.element])
        if p.name == "x":
            data[:] = np.arange(length)
        made[p.name] = data
    return made


def launch(library, name, run, **options):
    kernel = library.kernel(name)
    return kernel(
        run.get("grid", 1),
        run["threadgroup"],
        arguments(kernel, run.get("length", 1024)),
        threadgroup_memory=run.get("threadgroup_memory"),
        **run.get("options", {}),
        **options,
    )


def check_report(error, line, kind, path):
    fault = error.value.faults[0]
    assert fault.kind == kind, str(fault)
    places = [(p.file, p.line) for p in fault.locations]
    assert (str(path), line) in places, str(fault)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_fault_is_reported_at_its_line(path):
    run, line, kind = read(path)
    for checked in (True, False):
        if checked and run.get("unchecked_only") or not checked and not run.get("plain"):
            continue
        library = Library(path, checked=checked)
        more = {"poison": run["poison"]} if run.get("poison") else {}
        for seed in range(run.get("seeds", 1)):
            try:
                launch(library, "faulty", run, seed=seed, **more)
            except FaultError:
                break
        with pytest.raises(FaultError) as error:
            launch(library, "faulty", run, seed=seed, **more)
        check_report(error, line, kind, path)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_corrected_twin_passes(path):
    run, _, _ = read(path)
    checked = Library(path, checked=True)
    more = {"poison": run["poison"]} if run.get("poison") else {}
    for seed in range(4):
        launch(checked, "fixed", run, seed=seed, **more)
    if run.get("options", {}).get("schedule"):
        return
    for schedule in ("random", "priority", "reverse"):
        for seed in range(4):
            launch(checked, "fixed", run, seed=seed, schedule=schedule, preempt=5, **more)
    launch(Library(path), "fixed", run)


def test_every_kind_has_a_faulty_kernel():
    kinds = {read(path)[2] for path in FILES}
    assert kinds | ELSEWHERE == set(FAULT_KINDS)


@pytest.mark.parametrize("where", (".", "..", "/"))
def test_locations_are_the_path_as_it_was_given(tmp_path, monkeypatch, where):
    # the compiler shortens paths that lie below the folder it runs in
    path = tmp_path / "here" / "k.metal"
    path.parent.mkdir()
    path.write_text((FOLDER / "race_bytes.metal").read_text())
    monkeypatch.chdir(tmp_path / where)
    with pytest.raises(FaultError) as error:
        Library(path, checked=True).kernel("faulty")(1, 64, [np.zeros(64, np.uint8)])
    assert error.value.faults[0].location.file == str(path)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors take it")
@pytest.mark.parametrize("checked", (False, True), ids=("plain", "checked"))
def test_a_crash_says_that_an_address_is_not_aligned(checked):
    text = HEAD + (
        "kernel void k(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {\n"
        "  ((device float4*)(x + 1))[i] = float4(i);\n"
        "}\n"
    )
    with pytest.raises(FaultError, match=r"crash: .* not aligned for its type.* at k\.metal:4"):
        Library("k.metal", text=text, checked=checked).kernel("k")(1, 1, [np.zeros(16, "f4")])


def test_an_update_of_what_was_never_written_is_called_so():
    path = FOLDER / "uninitialised_atomic.metal"
    with pytest.raises(FaultError, match="uninitialised: atomic update of threadgroup `sum`"):
        launch(Library(path, checked=True), "faulty", {"threadgroup": 64})
