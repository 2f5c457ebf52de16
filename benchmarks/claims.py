"""What may be said of receipts, and what is refused.

Every number that `report` prints passes through here.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .errors import ReportRefusal
from .receipts import Receipt
from .stats import Comparison, repeated

EMULATED = ("arithmetic", "cpu-emulation")


def arm_of(receipt: Receipt, name: str) -> dict[str, Any]:
    for arm in receipt["arms"]:
        if arm["name"] == name:
            return arm
    names = ", ".join(a["name"] for a in receipt["arms"])
    raise ReportRefusal(f"{receipt['command']}: no arm {name!r}; there are: {names}")


def time_of(receipt: Receipt, name: str) -> float:
    """Median seconds of an arm for a performance table."""
    arm = arm_of(receipt, name)
    if receipt["backend"] in EMULATED or arm["emulated"]:
        raise ReportRefusal(f"{name}: emulated; an emulation has no time")
    if arm["instrumented"]:
        raise ReportRefusal(f"{name}: instrumented; its times describe the instrumented run only")
    if not arm["samples_s"]:
        raise ReportRefusal(f"{name}: no samples")
    return statistics.median(arm["samples_s"])


def rate(receipt: Receipt, name: str) -> tuple[float, str]:
    """(GB/s, what it is) of an arm's payload. A best of a sweep is not a rate."""
    arm = arm_of(receipt, name)
    if arm["selection"] != "fixed":
        raise ReportRefusal(
            f"{name}: the best of a sweep; a rate comes from repeats of one fixed configuration"
        )
    if arm["payload_bytes"] is None:
        raise ReportRefusal(f"{name}: no payload is recorded")
    if not arm["launch"]:
        raise ReportRefusal(f"{name}: no GB/s without the pattern and geometry that gave it")
    gb_s = arm["payload_bytes"] / time_of(receipt, name) / 1e9
    return gb_s, "rate" if receipt["warm_up_gpu_s"] is not None else "observed reference"


def same_scope(*receipts: Receipt) -> str:
    """The scope that all have; arithmetic across scopes is refused."""
    scopes = sorted({r["scope"] for r in receipts})
    if len(scopes) != 1:
        raise ReportRefusal(
            f"arithmetic across scopes {', '.join(scopes)}: times of different scope are neither "
            "subtracted nor divided"
        )
    return scopes[0]


def same_system(*receipts: Receipt) -> None:
    """Devices and OS builds share no axis."""
    for name in ("kind", "name", "os_build"):
        found = sorted({str(r["device"][name]) for r in receipts})
        if len(found) != 1:
            raise ReportRefusal(f"one axis for different {name}: {', '.join(found)}")


def difference(a: Receipt, arm_a: str, b: Receipt, arm_b: str) -> float:
    """Seconds between two arms' medians, of one scope and one system."""
    same_scope(a, b)
    same_system(a, b)
    return time_of(a, arm_a) - time_of(b, arm_b)


def total(diagnostics: Sequence[tuple[Receipt, float]]) -> float:
    """A sum of diagnostics of one variant."""
    if len({r["variant_hash"] for r, _ in diagnostics}) > 1:
        raise ReportRefusal("a sum of diagnostics of different variants explains nothing")
    same_scope(*(r for r, _ in diagnostics))
    return sum(value for _, value in diagnostics)


def fusion(receipt: Receipt, fused: str, control: str) -> str:
    """What a paired run says of fusion: only where packs, numeric geometry and replay are equal."""
    a, b = arm_of(receipt, fused), arm_of(receipt, control)
    for field, what in (
        ("pack_sha256", "packed operands"),
        ("geometry_sha256", "numeric geometry"),
        ("replay", "replay mode"),
    ):
        if a[field] is None or a[field] != b[field]:
            raise ReportRefusal(
                f"{fused} against {control}: {what} differ ({field}), so that a difference is not "
                "one of fusion: the control needs the same"
            )
    time_of(receipt, fused), time_of(receipt, control)
    for c in receipt["comparisons"]:
        if (c["a"], c["b"]) == (fused, control):
            r = c["ratio"]
            return (
                f"{fused} / {control} = {r['mean']:.4f} ({r['low']:.4f} to {r['high']:.4f}), wins "
                f"{r['wins']} of {r['rounds']}: {c['verdict']}"
            )
    raise ReportRefusal(f"{fused} against {control}: not compared in one randomised run")


def attribution(first: Comparison, second: Comparison, cause: str) -> str:
    """A cause for a difference, which both of two separate runs must show."""
    verdict, reason = repeated(first, second)
    if verdict == "not established":
        raise ReportRefusal(f"{cause}: not established: {reason}")
    return f"{cause}: {first.a} is {verdict} than {first.b} ({reason})"


@dataclass(frozen=True)
class Bound:
    """A lower bound on a time: a least traffic and a highest sustained rate, each with its proof.

    The best stream of a sweep bounds neither.
    """

    minimum_bytes: int
    maximum_gb_s: float
    traffic_proof: str
    rate_proof: str

    def __post_init__(self) -> None:
        if not self.traffic_proof or not self.rate_proof:
            raise ReportRefusal(
                "bound: both a proof of the least traffic and one of the highest rate are needed"
            )
        if "stream" in self.rate_proof or "best of" in self.rate_proof:
            raise ReportRefusal("bound: an observed stream is no upper bound on the rate")

    @property
    def seconds(self) -> float:
        return self.minimum_bytes / self.maximum_gb_s / 1e9
