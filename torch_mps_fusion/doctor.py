"""The doctor: what is here, what is missing and how to get it, which variants run where."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import time

import torch

from . import cuda_kernels
from .models.choice import format_for
from .ops import VARIANTS, supports

OPTIONAL = {
    "transformers": "tests and comparisons with its modules: pip install 'torch-mps-fusion[test]'",
    "ziglang": "metal_host's compiler: pip install 'torch-mps-fusion[host]'",
    "scipy": "benchmarks: pip install 'torch-mps-fusion[bench]'",
}

# One kernel of each shader family: if it becomes a pipeline, so can the family's others.
KERNELS = {
    "rms_norm": "tmf_rms_norm_bf16_f32_n256__group",
    "projection": "tmf_projection_bf16_f32_nt1u2p__group",
    "conv": "tmf_conv_bf16_f32_n256__thread",
    "qk_gates": "tmf_qk_gates_bf16_f32_dk128dv128__simd",
    "rule": "tmf_rule_bf16_f32_dk128dv128r1s4__group",
    "gated_norm": "tmf_gated_norm_bf16_f32_dk128dv128__simd",
    "core": "tmf_core_bf16_f32_dk128dv128r2__group",
    "persistent": "tmf_persistent_bf16_f32_dk128dv128nt1u2p__grid",
    "commit": "tmf_commit_bf16_f32_n256__thread",
}


def run_doctor() -> int:
    """Prints the findings; returns 0 (a missing optional part is not a failure)."""
    for title, findings in (
        ("Here", environment()),
        ("Shader families on mps", families()),
        ("Optional packages", optional_packages()),
        ("Variants (9B shape, bfloat16)", variants()),
    ):
        print(title)
        width = max(len(name) for name, _ in findings)
        for name, finding in findings:
            print(f"  {name:<{width}}  {finding}")
        print()
    print(
        "Nothing of this package has been run on Apple hardware by its authors. What is proved\n"
        "without it, and how, is in README.md under 'How it is proved'."
    )
    return 0


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def environment() -> list[tuple[str, str]]:
    return [
        ("python", f"{platform.python_version()} on {platform.platform()}"),
        ("torch", f"{torch.__version__}, {torch.get_num_threads()} threads"),
        ("extension", "torch_mps_fusion._C is built and its ops are registered"),
        ("mps", mps_finding()),
        ("cuda", torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no device"),
        ("cuda kernels", cuda_kernels.finding()),
    ]


def mps_finding() -> str:
    if torch.backends.mps.is_available():
        return f"available, macOS {platform.mac_ver()[0]}"
    if sys.platform != "darwin":
        return "not available: Apple GPUs need macOS"
    if not torch.backends.mps.is_built():
        return "not available: this torch was built without MPS"
    return "not available: macOS 14 or later on Apple silicon is needed"


def families() -> list[tuple[str, str]]:
    """Whether Metal makes a pipeline of each family, with its message and the time where it was
    tried: a family that fails takes no other one down."""
    if not torch.backends.mps.is_available():
        return [(", ".join(KERNELS), "not tried: no mps device")]
    findings = []
    for family, kernel in KERNELS.items():
        begin = time.perf_counter()
        message = torch.ops.mps_fusion._prepare_kernel("mps", family, kernel)
        seconds = time.perf_counter() - begin
        findings.append((family, message or f"compiles ({seconds:.2f} s)"))
    return findings


def optional_packages() -> list[tuple[str, str]]:
    return [(name, version(name) or f"missing; for {how}") for name, how in OPTIONAL.items()]


def variants() -> list[tuple[str, str]]:
    findings = []
    for device in ("cpu", "mps", "cuda"):
        answers = {
            variant: supports(
                variant,
                device=device,
                dtype=torch.bfloat16,
                num_k_heads=16,
                num_v_heads=32,
                head_k_dim=128,
                head_v_dim=128,
                weight_format=format_for(variant, torch.device(device)),
            )
            for variant in VARIANTS
        }
        findings.append((device, "runs " + ", ".join(v for v, a in answers.items() if a)))
        findings += [("", f"{v}: {a.reason}") for v, a in answers.items() if not a]
    return findings
