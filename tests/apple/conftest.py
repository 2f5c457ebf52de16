"""Wheels and the fake device as fixtures; programs of the shader tests are run here too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import fake_device
import needs
import pytest
import wheels

sys.path += [str(Path(__file__).parents[1] / "shaders")]


@pytest.fixture(scope="session")
def pyobjc() -> Path:
    return needs.wheel("pyobjc")


@pytest.fixture(scope="session")
def mlx_metal() -> Path:
    return needs.wheel("mlx-metal")


@pytest.fixture(scope="session", params=wheels.TORCHES)
def mac_torch(request: pytest.FixtureRequest) -> Path:
    return needs.wheel(request.param)


@pytest.fixture(scope="module")
def device() -> fake_device.Device:
    """The fake mps device, with the unchanged extension loaded anew."""
    return needs.device()


@pytest.fixture
def mps(device: fake_device.Device) -> Iterator[fake_device.Device]:
    """The fake device; a fault or an open pool that the test leaves fails it."""
    device.faults()
    yield device
    assert device.faults() == []
    assert device.ops.open_pools() == 0
