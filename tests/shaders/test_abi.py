"""The argument structs as C++ sees them, against the table that the shaders are written for."""

import re
import shutil
import subprocess
import sys

import abi
import pytest

# struct: bytes, and every field with its offset
TABLE = {
    "ProjectionArgs": (
        48,
        "k n tiles rows x_stride y_stride r_stride groups eps reserved0 reserved1 reserved2",
    ),
    "GdnArgs": (
        96,
        "batch tokens first count k_heads v_heads conv_channels conv_taps conv_width y_stride "
        "mask_batch mask_token conv_in_batch conv_in_channel conv_in_time conv_out_batch "
        "conv_out_channel conv_out_time state_in_batch state_in_head state_out_batch "
        "state_out_head eps q_scale",
    ),
    "CommitArgs": (
        48,
        "batch channels width conv_batch conv_channel conv_time heads head_elements state_batch "
        "state_head reserved0 reserved1",
    ),
    "TaskArgs": (16, "tasks spin_limit conv_slot state_slot"),
    "TaskRecord": (32, "stage tile part first_wait waits first_signal signals reserved0"),
    "TaskEdge": (8, "counter count"),
    "TaskTime": (16, "worker drawn over reserved0"),
    "TaskWait": (16, "begin end counter polls"),
}


def compiler() -> list[str]:
    found = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    return [found] if found else [sys.executable, "-m", "ziglang", "c++"]


@pytest.mark.parametrize("name", TABLE)
def test_fields_are_those_of_the_table(name):
    size, names = TABLE[name]
    assert list(abi.fields(name)) == names.split()
    assert 4 * len(abi.fields(name)) == size
    assert size % 16 == 0 or name == "TaskEdge"


def test_every_struct_is_in_the_table():
    assert set(re.findall(r"struct (\w+)", abi.headers())) == set(TABLE)


def test_cxx_lays_the_structs_out_as_the_table_says(tmp_path):
    """Compiles the header as C++20 with warnings as errors; the assertions are in the program."""
    checks = [f'#include "{header.name}"' for header in abi.HEADERS]
    checks += ["#include <cstddef>", "#include <type_traits>"]
    for name, (size, names) in TABLE.items():
        checks.append(f"static_assert(sizeof({name}) == {size} && alignof({name}) == 4);")
        checks.append(f"static_assert(std::is_trivially_copyable_v<{name}>);")
        for i, field in enumerate(names.split()):
            kind = abi.fields(name)[field]
            checks.append(f"static_assert(offsetof({name}, {field}) == {4 * i});")
            checks.append(f"static_assert(std::is_same_v<decltype({name}::{field}), {kind}>);")
    source = tmp_path / "abi.cpp"
    source.write_text("\n".join(checks) + "\nint main() {}\n")
    command = [*compiler(), "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    done = subprocess.run(
        [*command, "-I", str(abi.HEADERS[0].parent), str(source)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_values_land_where_the_table_says():
    values = {n: i for i, n in enumerate(TABLE["ProjectionArgs"][1].split()) if "reserved" not in n}
    data = abi.write("ProjectionArgs", **values | {"eps": 1.0})
    assert len(data) == 48
    assert data[12:16] == b"\x03\0\0\0" and data[32:36] == b"\0\0\x80?" and data[36:] == bytes(12)
