"""What stops a benchmark, by type."""

from __future__ import annotations


class BenchmarkError(Exception):
    """A run that cannot give a number; the message says why."""


class DeadlineExceeded(BenchmarkError):
    """An arm did not come back in time: the device may hang."""


class GateFailed(BenchmarkError):
    """Results were wrong before, or other ones after, the timed calls."""


class TimerMissing(BenchmarkError):
    """No honest clock for this device here; the message names what is missing."""


class ReportRefusal(BenchmarkError):
    """A statement that the receipts do not support."""
