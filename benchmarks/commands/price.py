"""What a payload costs at a streaming rate: an estimate, not a bound, and not a measurement.

The payload is that of `audit`; the rate is given, or is that of a `stream` receipt.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from .. import claims, facts, models, receipts
from . import audit

TRAFFIC_ASSUMPTIONS = (
    "cache reuse: none",
    "repeated reads: none",
    "discarded drafts: none",
    "context length: state, key and value traffic is not counted",
    "model format: the one named",
    "graph: every matrix once a pass",
)
STUDY_RATE = 570.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    audit.add_arguments(parser)
    parser.add_argument(
        "--rate", type=float, default=STUDY_RATE, help="GB/s (default: the study's reference)"
    )
    parser.add_argument("--stream-receipt", type=Path, help="take the rate from this receipt")


def milliseconds(payload_bytes: int, gb_s: float) -> float:
    return payload_bytes / gb_s / 1e6


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    if not options.rate > 0:
        raise ValueError(f"rate: got {options.rate}; accepted: a positive number of GB/s")
    model, form = models.MODELS[options.model], models.FORMATS[options.format]
    found = audit.totals(model, form, options.pad_rows)
    gb_s, kind = options.rate, "given"
    provenance = {"payload": facts.sha256_of(found), "rate": facts.sha256_of(gb_s)}
    if options.stream_receipt is not None:
        stream = receipts.load(options.stream_receipt)
        gb_s, kind = claims.rate(stream, "chosen")
        provenance["rate"] = facts.sha256_of(stream)
    ms = milliseconds(found["all"], gb_s)
    print(f"{found['all'] / 1e9:.9f} GB at {gb_s:g} GB/s ({kind}): {ms:.4f} ms")
    print("estimate, not a bound: neither the least traffic nor the highest rate is established")
    print("assumed: " + "; ".join(TRAFFIC_ASSUMPTIONS))
    print(
        "A measured time minus this is not removable overhead: the rest includes computation, "
        "state and\ncache traffic and dependencies, which may overlap."
    )
    yield receipts.new(
        options,
        "arithmetic",
        results={
            "estimate_ms": ms,
            "payload_bytes": found["all"],
            "rate_gb_s": gb_s,
            "rate_kind": kind,
            "provenance": provenance,
            "traffic_assumptions": list(TRAFFIC_ASSUMPTIONS),
        },
        claim="estimate, not a bound",
    )
