"""Every rule that the fake device is strict about, broken once in csrc/mps: each is caught."""

from __future__ import annotations

import re

import fake_device
import pytest
from mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant_is_caught(device, mutant: Mutant) -> None:
    fake_device.load_extension({mutant.file: (mutant.old, mutant.new)})
    device.faults()
    said = []
    try:
        mutant.scenario(device)
    except (RuntimeError, AssertionError, MemoryError) as error:
        said.append(str(error))  # whatever the mistake leads to; the faults say what it was
    finally:
        device.reset()
    said += device.faults()
    text = "\n".join(said)
    if mutant.said:
        assert re.search(mutant.said, text), text or "not caught"
    else:
        assert text == ""
