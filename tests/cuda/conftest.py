"""Tests of a CUDA device; skipped, with the reason, where no shaders run on one."""

import os
from pathlib import Path

import pytest
import torch
from cuda_device import why_not_cuda

from torch_mps_fusion import cuda_kernels
from torch_mps_fusion.metal_host import CompileError, compiler


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    reason = why_not_cuda() if any(item.get_closest_marker("gpu") for item in here) else ""
    for item in here:
        if reason and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def from_metal_host():
    """Results of metal_host: made here, or where the folder of PTX was made."""
    from needed import host_results

    given = os.environ.get(cuda_kernels.FOLDER)
    if given and Path(given, "metal_host.pt").is_file():
        return torch.load(Path(given, "metal_host.pt"))
    try:
        compiler.compiler()
    except CompileError as error:
        pytest.skip(f"no results of metal_host in {cuda_kernels.FOLDER}, and {error}")
    return host_results()
