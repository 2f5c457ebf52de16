"""What all tests share: which variants and devices run here, and poisoned allocations."""

import os
import sys
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from cases import CPU_VARIANTS
from cuda_device import why_not_cuda


@pytest.fixture(params=CPU_VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    """Each variant that runs on CPU tensors."""
    return request.param


@pytest.fixture(params=["cpu", "mps", "cuda"])
def shader_device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each device that runs our shaders: "mps" is the real one, else the fake one of tests/apple,
    which must end the test without a fault; "cuda" is real or skipped."""
    if request.param == "cuda":
        if reason := why_not_cuda():
            pytest.skip(reason)
        yield "cuda"
        torch.cuda.synchronize()
        return
    if request.param == "cpu" or torch.backends.mps.is_available():
        yield request.param
        return
    fake = request.getfixturevalue("fake_mps")
    fake.faults()
    before = fake.counters()["dispatches"]
    yield "mps"
    fake.synchronize()
    assert fake.faults() == []
    assert fake.counters()["dispatches"] > before


@pytest.fixture(scope="session")
def fake_mps():
    if find_spec("ziglang") is None and not os.environ.get("TMF_CI"):
        pytest.skip("no ziglang: the fake mps device is compiled with it")
    sys.path.insert(0, str(Path(__file__).parent / "apple"))
    import needs

    return needs.device()


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    """Each test draws what it always draws, whatever ran before it."""
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def poisoned_allocations():
    """Every fresh tensor starts as NaN, so that an element which nobody wrote is seen."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
