"""What the Apple checks need of the machine: a clear skip where it is missing, a failure in CI."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import wheels

# Programs and cases of the shader tests are run here too.
sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "shaders")]


def missing(what: str) -> NoReturn:
    """Skips; fails where TMF_CI is set, as CI installs everything."""
    if os.environ.get("TMF_CI"):
        pytest.fail(f"missing in CI: {what}")
    pytest.skip(what)


def wheel(name: str) -> Path:
    try:
        return wheels.unpacked(name)
    except OSError as error:
        missing(str(error))


@pytest.fixture(scope="session")
def pyobjc() -> Path:
    return wheel("pyobjc")


@pytest.fixture(scope="session")
def mlx_metal() -> Path:
    return wheel("mlx-metal")


@pytest.fixture(scope="session", params=wheels.TORCHES)
def mac_torch(request: pytest.FixtureRequest) -> Path:
    return wheel(request.param)


@pytest.fixture(scope="session")
def device():
    """The fake mps device with the extension's own code loaded."""
    import fake_device

    try:
        made = fake_device.load()
    except fake_device.Missing as error:
        missing(str(error))
    fake_device.load_program_op()
    fake_device.load_extension()
    return made


@pytest.fixture
def mps(device):
    """The fake device; the test fails if it leaves a fault."""
    device.faults()
    yield device
    assert device.faults() == []
