"""What all tests share: which variants run here, and poisoned allocations."""

import pytest
import torch
from cases import CPU_VARIANTS


@pytest.fixture(params=CPU_VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    """Each variant that runs on CPU tensors."""
    return request.param


@pytest.fixture(autouse=True)
def poisoned_allocations():
    """Every fresh tensor starts as NaN, so that an element which nobody wrote is seen."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)
