"""Every command on this machine, receipts and report included: what a contributor runs.

On a Mac: `python -m benchmarks all`. A command that fails does not stop the others; which did is
said at the end, and the receipts of the rest are kept.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator
from pathlib import Path

from .. import facts, receipts
from ..errors import BenchmarkError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", help="names of commands")
    parser.add_argument(
        "--cool-down",
        type=float,
        default=20.0,
        metavar="S",
        help="seconds between timed commands on a GPU",
    )


def folder(device: str) -> Path:
    """A folder of the machine: device and OS build, so that builds never mix."""
    d = facts.device(device)
    words = f"{d['name']} {d['os_build'] or 'unknown'}"
    return receipts.RESULTS / re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-")


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    from ..__main__ import COMMANDS, execute, make_parser

    parser = make_parser()
    out = options.out or folder(options.device)
    failed: dict[str, str] = {}
    for name in options.only or COMMANDS:
        words = [name, "--device", options.device, "--out", str(out), "--seed", str(options.seed)]
        words += ["--smoke"] if options.smoke else []
        print(f"\n== {name}", flush=True)
        try:
            for receipt in execute(parser.parse_args(words)):
                if receipt["results"].get("failed"):
                    failed[name] = "; ".join(map(str, receipt["results"]["failed"]))
        except (BenchmarkError, ValueError, NotImplementedError, RuntimeError) as error:
            failed[name] = f"{type(error).__name__}: {error}"
            print(f"error: {name}: {error}")
        if options.device != "cpu" and not options.smoke:
            time.sleep(options.cool_down)  # heat of one command is not the next one's
    print("\n== report", flush=True)
    execute(parser.parse_args(["report", "--receipts", str(out), "--page", str(out / "report.md")]))
    options.out = out
    print(f"\nreceipts and report: {out.name}; please attach the folder to an issue")
    yield receipts.new(
        options,
        "arithmetic",
        results={"failed": [f"{n}: {why}" for n, why in failed.items()]},
        caveats=["a list of what ran; the receipts of the commands are beside it"],
    )
