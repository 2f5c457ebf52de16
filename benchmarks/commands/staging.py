"""Threadgroup staging of quantised weights: deferred, because no quantised format is packed yet.

The seam: arms `direct`, `one` and `two` of the down projection at q4, 24 alternating pairs
(`--order abba`), staged output bit-equal to direct, the sign reported whatever it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from .. import receipts

BECAUSE = "deferred, because quantised weight formats are not packed yet"
ARMS = ("direct", "one", "two")
PAIRS = 24


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=PAIRS)


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    print(BECAUSE)
    yield receipts.new(
        options, "arithmetic", scope="operator", results={"arms": list(ARMS)}, needs=[BECAUSE]
    )
