"""Builds torch_mps_fusion._C: portable C++ on every platform, plus csrc/mps/*.mm on Darwin."""

import importlib.util
import os
import platform
import sys
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).parent
DARWIN = sys.platform == "darwin"
if DARWIN:
    # macOS 14 on Apple silicon, whatever Python itself was built for (a universal build of Python
    # would otherwise ask for an x86-64 half, which no torch wheel links with).
    os.environ.setdefault("ARCHFLAGS", "-arch arm64")
    os.environ.setdefault("MACOSX_DEPLOYMENT_TARGET", "14.0")
SHADER_TEXT = Path("build", "shader_text.cpp")  # generated


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


class Build(BuildExtension):
    def build_extensions(self) -> None:
        embed_shaders()
        super().build_extensions()


def compile_args() -> list[str]:
    # Contraction off: a fused multiply-add is written fma(), so one line rounds alike everywhere.
    # TMF_OPTIMIZE=-O0 is for a build that only has to work.
    args = [
        "-std=c++20",
        os.environ.get("TMF_OPTIMIZE", "-O3"),
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
