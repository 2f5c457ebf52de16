"""What the Apple checks need of the machine: a clear skip where it is missing, a failure in CI."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest
import wheels


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
