"""Ratios within rounds, their intervals, wins and drift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from scipy import stats as scipy_stats

CONFIDENCE = 0.95
RESAMPLES = 9999
NOISE_BAND = 0.03  # declared beforehand: an effect below it is not claimed


@dataclass(frozen=True)
class Ratio:
    """Geometric mean of a / b over rounds, its bootstrap interval, and in how many a was faster."""

    mean: float
    low: float
    high: float
    wins: int
    rounds: int


@dataclass(frozen=True)
class Comparison:
    """What a paired run says of two arms. `verdict` is "faster", "slower" or "not established"."""

    a: str
    b: str
    ratio: Ratio
    drift: float
    control: float
    verdict: str
    reasons: list[str] = field(default_factory=list)

    def as_dict(self) -> dict:
        return asdict(self)


def ratio(a: Sequence[float], b: Sequence[float], seed: int = 0) -> Ratio:
    """Of samples that belong together by round. ValueError for fewer than two rounds."""
    if len(a) != len(b) or len(a) < 2:
        raise ValueError(f"samples: got {len(a)} and {len(b)}; accepted: two rounds or more, equal")
    logs = np.log(a) - np.log(b)
    low, high = interval(logs, seed)
    mean = float(np.exp(logs.mean()))
    return Ratio(mean, math.exp(low), math.exp(high), int((logs < 0).sum()), len(logs))


def interval(values: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """Of the mean, bias-corrected and accelerated; a point where all values are the same."""
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    found = scipy_stats.bootstrap(
        (values,),
        np.mean,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="BCa",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(found.low), float(found.high)


def drift(samples: Sequence[float]) -> float:
    """How far an arm moved over all rounds, by a robust slope, relative to its median."""
    if len(samples) < 3:
        return 0.0
    slope = scipy_stats.theilslopes(samples).slope
    return abs(float(slope)) * len(samples) / float(np.median(samples))


def compare(
    samples: dict[str, list[float]],
    a: str,
    b: str,
    *,
    control: str | None,
    band: float = NOISE_BAND,
    seed: int = 0,
) -> Comparison:
    """Whether `a` is faster than `b`. `control` is the unchanged duplicate of one of them.

    Nothing is claimed unless the interval excludes 1 and the effect exceeds the declared band, the
    bias between an arm and its duplicate, and the drift over the run.
    """
    found = ratio(samples[a], samples[b], seed)
    moved = max(drift(samples[a]), drift(samples[b]))
    bias = 0.0
    if control is not None:
        original = control.removesuffix(AGAIN)
        bias = abs(ratio(samples[control], samples[original], seed).mean - 1)
    effect = abs(found.mean - 1)
    reasons = []
    if found.low <= 1 <= found.high:
        reasons.append("the interval includes 1")
    for name, limit in (("noise band", band), ("A/A bias", bias), ("drift of the run", moved)):
        if effect <= limit:
            reasons.append(f"an effect of {effect:.2%} is within the {name} of {limit:.2%}")
    verdict = "not established" if reasons else "faster" if found.mean < 1 else "slower"
    return Comparison(a, b, found, moved, bias, verdict, reasons)


AGAIN = " (again)"


def repeated(first: Comparison, second: Comparison) -> tuple[str, str]:
    """(verdict, reason) of two runs of one comparison: both must say the same."""
    if (first.a, first.b) != (second.a, second.b):
        raise ValueError("comparison: the two runs compare different arms")
    for run, number in ((first, "first"), (second, "second")):
        if run.verdict == "not established":
            return "not established", f"{number} run: {'; '.join(run.reasons)}"
    if first.verdict != second.verdict:
        return "not established", "the two runs have opposite signs"
    return first.verdict, "the same sign in two runs, both intervals without 1"
