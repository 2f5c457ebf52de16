"""What metal_host raises, and the faults that a launch can report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .library import Result


class MetalHostError(Exception):
    """Base of everything that metal_host raises on purpose."""


class CompileError(MetalHostError):
    """The text was refused, the compiler is missing, crashed, or ran past its time limit."""


class LaunchError(MetalHostError, ValueError):
    """A launch was refused before anything ran; the message names the argument or option."""


@dataclass(frozen=True)
class Location:
    """A place in the `.metal` text."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Fault:
    """One thing that a launch did wrong.

    `kind` is one of FAULT_KINDS; `locations` are the places in the text, the faulty access first.
    """

    kind: str
    message: str
    locations: tuple[Location, ...] = field(default=())

    @property
    def location(self) -> Location | None:
        return self.locations[0] if self.locations else None

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


FAULT_KINDS = {
    "race": "two accesses of one place, one of them a write, that nothing orders",
    "coherence": "data crosses threadgroups through a pointer that is not coherent(device)",
    "bounds": "an access outside every bound buffer or threadgroup variable",
    "uninitialised": "a read of threadgroup memory or of a poisoned buffer before any write",
    "barrier-divergence": "threads of one threadgroup do not meet at the same barrier",
    "simdgroup-divergence": "lanes of one simdgroup do not meet at the same operation",
    "inactive-lanes": "a simdgroup operation while lanes of the simdgroup are inactive",
    "simdgroup-spin": "a lane waits for another lane of its own simdgroup",
    "threadgroup-memory": "more threadgroup memory than the limit",
    "deadlock": "no thread can run",
    "livelock": "every thread that may run only polls memory that nobody changes",
    "timeout": "the launch ran past its time limit",
    "crash": "the kernel trapped: a wild address, a division by zero, an exhausted stack",
}


class FaultError(MetalHostError):
    """A launch ran and was found faulty. `faults` says how, `result` holds its counters."""

    def __init__(self, faults: list[Fault], result: Result | None = None):
        self.faults = faults
        self.result = result
        super().__init__("\n".join(str(f) for f in faults))
