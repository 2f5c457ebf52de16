"""Whether a declared fusion candidate is worth building, by the study's rule.

A candidate must name work that it removes (an intermediate read or write, a redundant
transformation, a repeated weight load, a measured scheduling gap), how much, the primitive that it
must beat, the numerical class it keeps, the shapes it supports and what it does elsewhere.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .. import receipts
from ..numeric_classes import CLASSES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent.parent / "candidates"
REMOVALS = {
    "intermediate": "bytes",
    "transformation": "bytes",
    "weight_load": "bytes",
    "scheduling_gap": "microseconds",
}
PAYLOAD_SHARE = 0.005  # a removal below this share of the region's bytes cannot be told from noise


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "candidate_file", nargs="*", type=Path, help="TOML files (default: those that come along)"
    )


def verdict(candidate: Mapping[str, Any]) -> list[str]:
    """Why the candidate is refused; empty if it is accepted."""
    reasons = []
    removes = candidate.get("removes", {})
    kind = removes.get("kind")
    if kind not in REMOVALS:
        reasons.append(f"removes.kind: got {kind!r}; accepted: {', '.join(REMOVALS)}")
    else:
        amount = removes.get(REMOVALS[kind])
        if not isinstance(amount, (int, float)) or amount <= 0:
            reasons.append(f"removes.{REMOVALS[kind]}: how much is removed is not stated")
        elif kind == "scheduling_gap" and not removes.get("receipt"):
            reasons.append("removes.receipt: a gap must be measured; no receipt is named")
        elif kind != "scheduling_gap":
            reasons += _share(removes, amount)
    if not removes.get("what"):
        reasons.append("removes.what: the read, write, transformation or load is not named")
    baseline = candidate.get("baseline", {})
    if not baseline.get("primitive"):
        reasons.append("baseline.primitive: no existing primitive is named that it must beat")
    if not baseline.get("why_not_enough"):
        reasons.append("baseline.why_not_enough: the primitive may already cover it")
    if not baseline.get("same_packing_and_geometry"):
        reasons.append("baseline.same_packing_and_geometry: the control needs the same")
    if candidate.get("numerics") not in CLASSES:
        got = candidate.get("numerics")
        reasons.append(f"numerics: got {got!r}; accepted: {', '.join(CLASSES)}")
    for name in ("supported", "elsewhere", "breaking_case"):
        if not candidate.get(name):
            reasons.append(f"{name}: not stated")
    return reasons


def _share(removes: Mapping[str, Any], amount: float) -> list[str]:
    whole = removes.get("region_bytes")
    if not isinstance(whole, (int, float)) or whole <= 0:
        return ["removes.region_bytes: the bytes of the whole region are not stated"]
    if amount / whole < PAYLOAD_SHARE:
        return [f"removes: {amount / whole:.3%} of the region's bytes; too little to be measured"]
    return []


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    files = options.candidate_file or sorted(HERE.glob("*.toml"))
    found: dict[str, Any] = {}
    failed = []
    for path in files:
        try:
            content = tomllib.loads(path.read_text())
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"{path}: {error}") from None
        reasons = verdict(content)
        found[path.stem] = {"accepted": not reasons, "reasons": reasons}
        print(f"{path.stem}: {'refused' if reasons else 'accepted'}")
        print("\n".join(f"  {reason}" for reason in reasons) or "  worth building and measuring")
        if options.candidate_file and reasons:
            failed.append(f"{path.stem}: refused")
    yield receipts.new(
        options,
        "arithmetic",
        results={"candidates": found, "failed": failed},
        claim="accepted means: worth measuring; nothing is said of its speed",
    )
