"""Cost of a verify pass with draft tokens: deferred, because a state has no partial commit yet.

The seam: `cost_per_useful_token` takes a measured pass and tokens that a run accepted; with an
assumed acceptance its result is labelled a projection.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from .. import receipts

BECAUSE = "deferred, because a state cannot be committed up to a token yet (state.commit)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--draft-len", type=int, default=7)


def cost_per_useful_token(
    pass_seconds: float, useful_tokens: float, *, measured: bool
) -> tuple[float, str]:
    """(seconds a useful token, what it is): "projection" unless the tokens were counted."""
    if not useful_tokens > 0:
        raise ValueError(f"useful_tokens: got {useful_tokens}; accepted: a positive number")
    return pass_seconds / useful_tokens, "measured" if measured else "projection"


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    print(BECAUSE)
    yield receipts.new(
        options,
        "arithmetic",
        scope="serving",
        results={"draft_len": options.draft_len},
        needs=[BECAUSE],
    )
