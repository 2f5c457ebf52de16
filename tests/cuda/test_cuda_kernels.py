"""The PTX of CUDA tensors' kernels: what is needed, where it is found, what errors say. No GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import pytest
import torch
from cases import REAL, SMALL, make_hidden, make_layer, make_states, pack_layer
from cuda_device import why_not_cuda
from needed import BF16, in_slots, sizes, slots_of

from torch_mps_fusion import cuda_kernels, host_kernels, plan, shaders, supports
from torch_mps_fusion.metal_host import CompileError, compiler, cuda

SHAPE = sizes(REAL["27b"])


def _no_compiler() -> bool:
    try:
        compiler.compiler()
    except CompileError:
        return True
    return cuda.libdevice() is None


needs_compiler = pytest.mark.skipif(_no_compiler(), reason="no clang, or no libdevice")


@pytest.fixture(scope="module")
def kernels() -> list[cuda_kernels.Kernel]:
    return sorted(cuda_kernels.needed(SHAPE, BF16, (1, 8), masks=True))


def test_what_both_variants_need(kernels) -> None:
    families = {family for family, _, _ in kernels}
    middle = {"conv", "qk_gates", "rule", "gated_norm", "core"}
    assert families == {"rms_norm", "projection", *middle}
    arguments, keywords = plan.meta_layer(
        batch=1, tokens=8, dtype=BF16, weight_format="tiles16-nvidia", **SHAPE
    )
    for variant in cuda_kernels.VARIANTS:
        program = plan.plan_layer(*arguments, **keywords, variant=variant, device="H200")
        assert set(cuda_kernels.kernels_of(program)) <= set(kernels)
        for dispatch in program.kernels:  # launch bounds are those of the launches
            assert dispatch.threads == shaders.threads(dispatch.kernel)


@needs_compiler
def test_one_kernel_a_file_with_its_arguments_by_value(tmp_path, kernels, monkeypatch) -> None:
    monkeypatch.setenv(cuda_kernels.FOLDER, str(tmp_path))
    kernel = next(k for k in kernels if k[0] == "core")
    assert cuda_kernels.fill(tmp_path, [kernel]) == 1
    text, values = cuda_kernels.find(*kernel)
    assert values == "10"
    assert text.count(".entry") == 1 and f".entry {kernel[1]}(" in text
    assert ".maxntid 512, 1, 1" in text
    # everything is inlined, and no argument is copied to local memory
    assert ".func" not in text and "__local_depot" not in text


def test_a_folder_is_looked_in_first_and_names_are_of_the_content(
    tmp_path, kernels, monkeypatch
) -> None:
    monkeypatch.setenv(cuda_kernels.FOLDER, str(tmp_path / "given"))
    monkeypatch.setenv("METAL_HOST_CACHE", str(tmp_path / "cache"))
    assert len({cuda_kernels.file_name(k) for k in kernels}) == len(kernels)
    (tmp_path / "given").mkdir()
    path = tmp_path / "given" / cuda_kernels.file_name(kernels[0])
    path.write_text("// by value: 5 10\nthe text")
    assert cuda_kernels.find(*kernels[0]) == ("// by value: 5 10\nthe text", "5 10")
    path.write_text("another text")
    with pytest.raises(CompileError, match="no file of this version"):
        cuda_kernels.find(*kernels[0])


def test_without_a_compiler_the_error_says_how_to_get_the_kernel(
    tmp_path, kernels, monkeypatch
) -> None:
    monkeypatch.setenv("METAL_HOST_CACHE", str(tmp_path))
    monkeypatch.setenv("METAL_HOST_CLANG", "/nonexistent/clang")
    monkeypatch.delenv(cuda_kernels.FOLDER, raising=False)
    compiler.compiler.cache_clear()
    try:
        with pytest.raises(CompileError, match="python -m torch_mps_fusion ptx DIR.*PTX=DIR"):
            cuda_kernels.find(*kernels[0])
    finally:
        compiler.compiler.cache_clear()


def test_supports_says_why_not() -> None:
    sizes = {"num_k_heads": 2, "num_v_heads": 4, "head_k_dim": 64, "head_v_dim": 64}
    reason = why_not_cuda()
    if not torch.cuda.is_available():
        assert reason.startswith("variant 'core': no shaders run on cuda: ")
    answer = supports("packed", device="cuda", dtype=BF16, **sizes, weight_format="tiles16-apple")
    assert not answer
    assert reason or "accepted: 'tiles16-nvidia'" in answer.reason


@needs_compiler
@pytest.mark.parametrize("variant", ["hybrid", "mega"])
def test_persistent_kernels_can_be_made(tmp_path, variant) -> None:
    """Their text becomes PTX; up to the rows that they take."""
    shape = sizes(SMALL)
    made = cuda_kernels.needed(shape, BF16, (1, 40), variants=[variant])
    assert made == cuda_kernels.needed(shape, BF16, (1,), variants=[variant])
    persistent = sorted(k for k in made if k[0] == "persistent")
    assert ("400=1" in persistent[-1][2]) == (variant == "mega")
    path = tmp_path / cuda_kernels.file_name(persistent[-1])
    text = cuda_kernels.write(persistent[-1], path)
    assert text.startswith("// by value: 22 23 24 25\n") and "fence" in text


@pytest.mark.parametrize("variant", ["hybrid", "mega"])
def test_states_in_slots_are_among_what_is_needed(variant) -> None:
    """As a module's decode step runs: by its constants, which are the devices' but for the norm."""

    def of_the_call(constants: Mapping[int, int]) -> dict[int, int]:
        return {i: v for i, v in constants.items() if i != cuda_kernels.NORM}

    layer = pack_layer(make_layer(SMALL, BF16, input_norm=True))
    states = slots_of(make_states(SMALL, 1, BF16))
    control = torch.zeros(16, dtype=torch.int32)
    with host_kernels.running(count_only=True) as launches:
        in_slots(layer, make_hidden(SMALL, 1, 1, BF16), states, control, variant)
    ran = of_the_call(launches[-1].constants)
    assert launches[-1].family == "persistent" and ran[cuda_kernels.SLOTS] == 1
    made = cuda_kernels.needed(sizes(SMALL), BF16, (1,), variants=[variant])
    persistent = [
        host_kernels.parse_constants(c) for family, _, c in made if family == "persistent"
    ]
    assert ran in map(of_the_call, persistent)


def test_the_command_lists_what_it_would_make(tmp_path) -> None:
    command = [sys.executable, "-m", "torch_mps_fusion", "ptx", str(tmp_path), "--shape", "27b"]
    command += ["--tokens", "1", "--list"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    names = said.split()
    assert any(name.startswith("tmf_core_bf16_f32_dk128dv128") for name in names)
    assert not list(tmp_path.iterdir())
