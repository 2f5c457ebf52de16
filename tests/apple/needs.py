"""What the Apple checks need of the machine: a clear skip where it is missing, a failure in CI."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import fake_device
import pytest
import wheels


def missing(what: str) -> NoReturn:
    """Skips; fails where TMF_CI is set, as CI installs everything."""
    if os.environ.get("TMF_CI"):
        pytest.fail(f"missing in CI: {what}")
    pytest.skip(what)


def asked() -> None:
    """Skips unless TMF_APPLE is set: these checks fetch wheels, and a fake device stays loaded in
    the process and changes what `supports` says."""
    if not os.environ.get("TMF_APPLE"):
        pytest.skip("the macOS side has a run of its own: ./dev apple")


def wheel(name: str) -> Path:
    """The folder of a macOS wheel."""
    asked()
    try:
        return wheels.unpacked(name)
    except OSError as error:
        missing(str(error))


def device() -> fake_device.Device:
    """The fake mps device with the extension's own code loaded."""
    asked()
    try:
        made = fake_device.load()
    except fake_device.Missing as error:
        missing(str(error))
    fake_device.load_program_op()
    fake_device.load_extension()
    return made
