"""Every command on this machine, receipts and report included: what a contributor runs.

On a Mac: `python -m benchmarks all`. Each command runs in a process of its own, under a limit: one
that fails or hangs costs the others nothing; which did is said at the end. `--quick` takes a few
minutes: the cells that the report needs most.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .. import facts, receipts

LIMIT_S = 3600
# What --quick runs, with its arguments and seconds after which it is given up, in this order.
QUICK: dict[str, tuple[str, int]] = {
    "paired": ("--a core hybrid mega --shape 0.8b 9b 27b --rows 1 8", 120),
    "layer": ("--rounds 11", 180),
    "gaps": ("--shape 9b --rows 1", 45),
    "stream": ("", 60),
    "ksplit": ("--shape gdn_out --rounds 11", 45),
    "projection": ("--shape gdn_in gdn_out --rows 1 8", 60),
    "replay": ("", 45),
    "serving": ("--lens 128 512 1024 --layers 8 --new 32", 60),
    "registers": ("--shape 9b", 45),
    "contract": ("", 45),
    "numerics": ("", 45),
    "counters": ("--shape 9b --rows 1", 75),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", help="names of commands")
    parser.add_argument("--quick", action="store_true", help="a few minutes on a GPU")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, metavar="S", help="seconds of one command"
    )
    parser.add_argument(
        "--budget", type=float, metavar="S", help="seconds after which no command is begun"
    )
    parser.add_argument(
        "--cool-down",
        type=float,
        metavar="S",
        help="seconds between commands on a GPU; default: 20, or 0 with --quick",
    )


def folder(device: str) -> Path:
    """A folder of the machine: device and OS build, so that builds never mix."""
    d = facts.device(device)
    words = f"{d['name']} {d['os_build'] or 'unknown'}"
    return receipts.RESULTS / re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-")


def plan(options: argparse.Namespace) -> dict[str, tuple[list[str], float]]:
    """Words and limit in seconds of each command that is run."""
    from ..__main__ import COMMANDS, module

    names = options.only or (list(QUICK) if options.quick else COMMANDS)
    found = {}
    for name in names:
        device = getattr(module(name), "DEVICE", options.device)
        words, limit = ["--device", device, "--seed", str(options.seed)], options.limit
        if options.quick and name in QUICK:
            more, own = QUICK[name]
            words, limit = [*words, *more.split()], min(limit, own)
        found[name] = ([*words, "--smoke"] if options.smoke else words, limit)
    return found


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    out = (options.out or folder(options.device)).resolve()
    rest = options.cool_down
    if rest is None:
        rest = 0.0 if options.quick or options.smoke or options.device == "cpu" else 20.0
    begin, failed, taken = time.monotonic(), {}, {}
    for name, (words, limit) in plan(options).items():
        left = (options.budget or float("inf")) - (time.monotonic() - begin)
        if left <= 0:
            failed[name] = "not begun: the budget was spent"
            continue
        print(f"\n== {name} {' '.join(words)}", flush=True)
        start = time.monotonic()
        if reason := execute([name, *words, "--out", str(out)], min(limit, left)):
            failed[name] = reason
            print(f"error: {name}: {reason}", flush=True)
        taken[name] = round(time.monotonic() - start, 1)
        time.sleep(rest)  # heat of one command is not the next one's
    print("\n== report", flush=True)
    if reason := execute(["report", "--receipts", str(out), "--page", str(out / "report.md")], 300):
        failed["report"] = reason
    options.out = out
    print(f"\nreceipts and report: {out.name}; please attach the folder to an issue")
    yield receipts.new(
        options,
        "arithmetic",
        results={"failed": [f"{n}: {why}" for n, why in failed.items()], "seconds": taken},
        caveats=["a list of what ran; the receipts of the commands are beside it"],
    )


def execute(words: list[str], limit: float) -> str:
    """Runs one command in a process of its own; why it failed, or nothing."""
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks", *words],
            cwd=facts.ROOT,
            stderr=errors,
            start_new_session=True,
        )
        reason = ""
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            reason = f"given up after {limit:.0f} s"
        finally:
            if process.returncode is None:
                end(process)
        errors.seek(0)
        said = errors.read().strip()
    if said:
        print(said, file=sys.stderr, flush=True)
    if reason or process.returncode == 0:
        return reason
    return (said.splitlines() or [f"exit status {process.returncode}"])[-1]


def end(process: subprocess.Popen) -> None:
    """Ends a process and what it began. One that a driver holds is left behind."""
    os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        print(f"process {process.pid} did not end", file=sys.stderr)
