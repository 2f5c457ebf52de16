"""The hand-written declarations against what public wheels say of Apple's interface.

Sources: the protocol metadata compiled into pyobjc-framework-Metal, its table of enum values and
structs, metal-cpp's headers in mlx-metal, and the selectors that the macOS torch itself sends.
"""

from __future__ import annotations

import re
from pathlib import Path

import clang
import cross
import metal_cpp
import pytest
from macho import MachO

HEADERS = clang.DECLARATIONS / "any"
# Declared by us, described by no wheel that is read here: only the name is known, from torch.
ONLY_NAMED = {("NSString", "+stringWithUTF8String:")}


def described(folder: Path, *headers: Path) -> MachO:
    """An image, made in `folder`, in which clang has written down what the headers declare."""
    target = ("-target", cross.TARGET)
    source = ("-x", "objective-c++", "-fblocks", "-std=c++20")
    include = [f for h in headers for f in ("-isystem", h)]
    probe = ("-c", clang.DECLARATIONS / "probe.mm", "-o", folder / "probe.o")
    made = clang.zig("c++", *target, *source, *include, *probe)
    assert made.returncode == 0, made.stderr
    loose = ("-undefined", "dynamic_lookup")
    out = folder / "probe.dylib"
    made = clang.zig("c++", *cross.LINK, *loose, "-o", out, folder / "probe.o")
    assert made.returncode == 0, made.stderr
    return MachO(out)


def methods(image: MachO) -> dict[tuple[str, str], str]:
    """Type encoding by class or protocol and signed selector."""
    found = {(p, m): t for p, about in image.protocols().items() for m, t in about.methods.items()}
    for name, about in image.classes().items():
        found |= {(name, m): t for m, t in about.items()}
    return found


def declarations(image: MachO) -> dict[tuple[str, str], str]:
    """Without NSObject, which zig's Darwin headers declare, and without the getters of writable
    properties, which nothing calls."""
    found = {key: types for key, types in methods(image).items() if key[0] != "NSObject"}
    written = {(c, m[4].lower() + m[5:-1]) for c, m in found if m.startswith("-set")}
    return {(c, m): t for (c, m), t in found.items() if (c, m[1:]) not in written}


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    return declarations(described(tmp_path_factory.mktemp("probe"), HEADERS))


@pytest.fixture(scope="module")
def published(pyobjc: Path) -> dict[tuple[str, str], str]:
    (image,) = (pyobjc / "Metal").glob("_Metal*.so")
    found = MachO(image).protocols()
    return {(p, m): t for p, about in found.items() for m, t in about.methods.items()}


@pytest.fixture(scope="module")
def cpp(mlx_metal: Path) -> Path:
    return mlx_metal / "mlx" / "include" / "metal_cpp"


def test_every_selector_and_its_types(
    declared: dict[tuple[str, str], str], published: dict[tuple[str, str], str], cpp: Path
) -> None:
    of_cpp = metal_cpp.load(cpp)
    by_pyobjc, by_cpp, unknown, wrong = set(), set(), set(), []
    for (cls, method), types in declared.items():
        in_cpp = of_cpp.get((cls, method[1:]))
        if (cls, method) in published:
            by_pyobjc.add((cls, method))
            if published[cls, method] != types:
                wrong.append((cls, method, types, published[cls, method]))
        elif in_cpp is not None:
            by_cpp.add((cls, method))
            if types not in in_cpp:
                wrong.append((cls, method, types, in_cpp))
        else:
            unknown.add((cls, method))
    assert wrong == []
    assert unknown == ONLY_NAMED
    assert ("MTLComputeCommandEncoder", "-memoryBarrierWithScope:") in by_pyobjc
    assert ("MTLDevice", "-newLibraryWithSource:options:error:") in by_cpp
    assert len(by_pyobjc) >= 6 and len(by_cpp) >= 8


def test_the_only_named_selectors_are_sent_by_torch(mac_torch: Path) -> None:
    sent = MachO(mac_torch / "torch" / "lib" / "libtorch_cpu.dylib").strings("__objc_methname")
    assert {method[1:] for _, method in ONLY_NAMED} <= sent


def test_enum_values(pyobjc: Path, cpp: Path) -> None:
    text = (HEADERS / "Metal" / "Metal.h").read_text()
    ours = {n: int(v) for n, v in re.findall(r"\b(MTL\w+) = (\d+)", text)}
    table = (pyobjc / "Metal" / "_metadata.py").read_text()
    theirs = {n: int(v) for n, v in re.findall(r"\$(MTL\w+)@(\d+)", table)}
    also = metal_cpp.enum_values(cpp)
    assert len(ours) == 6
    assert {n: theirs.get(n) for n in ours} == ours
    assert {n: also.get(n) for n in ours} == ours


def test_struct_layout(declared: dict[tuple[str, str], str], pyobjc: Path) -> None:
    table = (pyobjc / "Metal" / "_metadata.py").read_text()
    match = re.search(r'"Metal\.MTLSize",\s*b"\{MTLSize=(\w+)\}",\s*\[([^\]]*)\]', table)
    assert match is not None
    assert re.findall(r"\w+", match[2]) == ["width", "height", "depth"]
    key = "MTLComputeCommandEncoder", "-dispatchThreadgroups:threadsPerThreadgroup:"
    assert f"{{?={match[1]}}}" in declared[key]


def test_every_declaration_is_used() -> None:
    """Only what we use: each selector and enum value of Metal.h is in csrc/mps."""
    text = (HEADERS / "Metal" / "Metal.h").read_text()
    code = "\n".join(f.read_text() for f in (clang.ROOT / "csrc" / "mps").iterdir())
    values = re.findall(r"\b(MTL\w+) = \d+", text)
    labels = re.findall(r"^- \([^)]*\)(\w+)", text, re.M)
    plain = re.sub(r"__attribute__\(\(.*\)\)", "", text)
    named = [p.split()[-1] for p in re.findall(r"@property\([^)]*\)([^;]*);", plain)]
    assert len(values) == 6 and len(labels) == 9 and len(named) == 6
    for name in (*values, *labels, *named):
        assert re.search(rf"\b{name}\b", code), name


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("length:(NSUInteger)length", "length:(int)length"),
        ("memoryBarrierWithScope:", "memoryBarrierScope:"),
        ("setBuffer:(id<MTLBuffer>)buffer offset", "setBuffer:(const void*)buffer offset"),
        ("error:(NSError**)error;", "error:(NSError*)error;"),
        ("NSUInteger width, height, depth;", "unsigned width, height, depth;"),
    ],
)
def test_a_wrong_declaration_is_found(
    right: str, wrong: str, tmp_path: Path, published: dict[tuple[str, str], str], cpp: Path
) -> None:
    text = (HEADERS / "Metal" / "Metal.h").read_text()
    assert right in text
    (tmp_path / "Metal").mkdir()
    (tmp_path / "Metal" / "Metal.h").write_text(text.replace(right, wrong, 1))
    mutated = declarations(described(tmp_path, tmp_path, HEADERS))
    with pytest.raises(AssertionError):
        test_every_selector_and_its_types(mutated, published, cpp)
