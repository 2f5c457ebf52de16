"""Builds torch_mps_fusion._C: portable C++ on every platform, plus csrc/mps/*.mm on Darwin."""

import importlib.util
import os
import platform
import sys
from pathlib import Path

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).parent
DARWIN = sys.platform == "darwin"
if DARWIN:
    # macOS 14 on Apple silicon, whatever Python itself was built for (a universal build of Python
    # would otherwise ask for an x86-64 half, which no torch wheel links with).
    os.environ.setdefault("ARCHFLAGS", "-arch arm64")
    os.environ.setdefault("MACOSX_DEPLOYMENT_TARGET", "14.0")
BUILD = Path("build")
SHADER_TEXT = BUILD / "shader_text.cpp"  # generated
# Folders of csrc whose sources can be one unit: no two of them have a local name in common.
JOINED = ("csrc", "csrc/autograd", "csrc/cpu", "csrc/host", "csrc/stock")


def sources() -> list[str]:
    files = sorted((ROOT / "csrc").rglob("*.cpp"))
    if DARWIN:
        files += sorted((ROOT / "csrc" / "mps").glob("*.mm"))
    return [str(f.relative_to(ROOT)) for f in files] + [str(SHADER_TEXT)]


def embed_shaders() -> None:
    """Writes the flat shader texts as a C++ source: Metal makes libraries of texts."""
    path = ROOT / "tools" / "embed_shaders.py"
    spec = importlib.util.spec_from_file_location("embed_shaders", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write(ROOT / SHADER_TEXT)


def joined(files: list[str]) -> list[str]:
    """The sources with one unit, written to the build folder, for each of JOINED, so that torch's
    headers are read once for each. What is compiled once per instruction set stays by itself."""
    units: dict[str, list[str]] = {}
    for file in files:
        path = Path(file)
        folder = path.parent.as_posix()
        together = folder in JOINED and not path.name.startswith("isa_")
        units.setdefault(folder.replace("/", "_") if together else file, []).append(file)
    made = []
    for unit, members in units.items():
        if unit in members:
            made.append(unit)
            continue
        path = BUILD / f"joined_{unit}.cpp"
        path.write_text("".join(f'#include "{m}"\n' for m in members))
        made.append(str(path))
    return made


class Build(BuildExtension):
    def build_extensions(self) -> None:
        embed_shaders()
        # Kept also by an editable install, which then compiles what changed; in the tree, so that
        # a compiler cache sees the same relative paths from any other tree.
        self.build_temp = str(BUILD / f"temp-torch-{torch.__version__}-{sys.version_info.minor}")
        if os.environ.get("TMF_JOIN"):
            for extension in self.extensions:
                extension.sources = joined(extension.sources)
        super().build_extensions()


def compile_args() -> list[str]:
    # Contraction off: a fused multiply-add is written fma(), so one line rounds alike everywhere.
    # No debug information, which Python's own flags ask for and a quarter of the compiler's time
    # goes into. TMF_OPTIMIZE=-O0 TMF_JOIN=1 is for a build that only has to work.
    args = [
        "-std=c++20",
        *os.environ.get("TMF_OPTIMIZE", "-O3").split(),
        "-g0",
        "-fvisibility=hidden",
        "-ffp-contract=off",
        "-Wall",
        "-Wextra",
    ]
    # torch's own headers are not free of unused parameters.
    args += ["-Wno-unused-parameter"]
    if not DARWIN:
        # at::parallel_for runs serially in an extension that is compiled without OpenMP.
        args += ["-fopenmp"]
    if platform.machine() in ("x86_64", "AMD64"):
        # Vector types wider than the baseline are passed between inlined functions only.
        args += ["-Wno-psabi"]
    return args


extension = CppExtension(
    "torch_mps_fusion._C",
    sources(),
    include_dirs=[str(ROOT / "csrc"), str(ROOT)],
    define_macros=[("Py_LIMITED_API", "0x030A0000")],
    extra_compile_args=compile_args(),
    extra_link_args=["-framework", "Metal", "-framework", "Foundation"] if DARWIN else ["-fopenmp"],
    py_limited_api=True,
)

setup(
    packages=[
        "torch_mps_fusion",
        "torch_mps_fusion.integrations",
        "torch_mps_fusion.metal_host",
        "torch_mps_fusion.models",
    ],
    package_dir={"torch_mps_fusion.models": "models"},
    package_data={"torch_mps_fusion": ["py.typed"], "torch_mps_fusion.metal_host": ["**/*"]},
    ext_modules=[extension],
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
