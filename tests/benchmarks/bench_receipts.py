"""Receipts that the tests of claims and reports share: small, valid, made up."""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks import receipts
from benchmarks.harness import Measured

HASH = "a" * 64


def options(command: str = "layer", **given: Any) -> argparse.Namespace:
    return argparse.Namespace(command=command, smoke=True, out=None, device="cpu", **given)


def measured(samples: dict[str, list[float]]) -> Measured:
    rounds = len(next(iter(samples.values())))
    orders = [list(samples)] * rounds
    warm = dict.fromkeys(samples, 0.03)
    return Measured("a clock", False, "shuffled", 0, orders, warm, samples)


def steady(value: float, rounds: int = 20) -> list[float]:
    """Samples with a little noise that does not drift."""
    return [value * (1 + 0.001 * (-1) ** i) for i in range(rounds)]


def receipt(backend: str = "cuda", scope: str = "layer", **arms: dict[str, Any]) -> dict:
    """Arms by name: fields of `receipts.arm`; `samples_s` makes the receipt a timed one."""
    samples = {n: a.pop("samples_s") for n, a in arms.items() if "samples_s" in a}
    found = measured(samples) if samples else None
    pairs = []
    if found is not None and len(samples) == 2:
        a, b = samples
        pairs = [found.compare(a, b).as_dict()]
    records = [receipts.arm(name, **fields) for name, fields in arms.items()]
    # the device fields are this machine's CPU: no GPU is asked
    made = receipts.new(
        options(),
        "cpu-native" if samples else "cpu-emulation",
        scope=scope,
        measured=found,
        arms=records,
        comparisons=pairs,
    )
    made["backend"] = backend
    made["label"] = receipts.LABELS[backend]
    if found is not None and backend in ("cuda", "mps"):
        made["warm_up_gpu_s"] = 0.03
    receipts.validate(made)
    return made
