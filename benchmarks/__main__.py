"""``python -m benchmarks NAME``: one command for each thing that is measured or checked.

``list`` shows them. Each takes ``--smoke`` (seconds on a CPU) and writes a receipt to ``--out``.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path
from types import ModuleType

import torch

from . import receipts
from .errors import BenchmarkError, TimerMissing
from .layers import SHAPES, ours

# In the order in which `all` runs them.
COMMANDS = (
    "audit",
    "price",
    "contract",
    "numerics",
    "candidate",
    "stream",
    "projection",
    "ksplit",
    "layer",
    "paired",
    "gaps",
    "counters",
    "timeline",
    "registers",
    "replay",
    "overhead",
    "memory",
    "traffic",
    "serving",
    "rule",
    "generate",
    "staging",
    "speculation",
)
LAST = ("report", "ptx", "all")
DEVICES = ("cpu", "cuda", "mps")


def module(name: str) -> ModuleType:
    return importlib.import_module(f".commands.{name}", __package__)


def title(name: str) -> str:
    return (module(name).__doc__ or "").splitlines()[0]


def available() -> str:
    """The best device here."""
    if torch.backends.mps.is_available():
        return "mps"
    return "cuda" if torch.cuda.is_available() else "cpu"


def require(device: str) -> None:
    """TimerMissing where PyTorch sees no such device; a note where our shaders do not run on it."""
    there = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}
    if device in there and not there[device]():
        raise TimerMissing(f"--device {device}: PyTorch sees no such device here")
    if device != "cpu" and not ours(SHAPES["small"], device, 1, torch.bfloat16)[1:]:
        print(f"no shaders run on {device} here (python -m torch_mps_fusion doctor)", flush=True)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--smoke", action="store_true", help="the smallest run: seconds on a CPU")
    parser.add_argument("--device", choices=DEVICES, help="default: the best one here")
    parser.add_argument("--seed", type=int, default=0, help="of orders and inputs")
    parser.add_argument("--rounds", type=positive, help="timed rounds; default: by command")
    parser.add_argument("--order", choices=("shuffled", "abba"), default="shuffled")
    parser.add_argument(
        "--deadline", type=float, default=120.0, help="seconds after which an arm counts as hung"
    )
    parser.add_argument(
        "--warm-up-gpu-seconds", type=float, default=0.03, metavar="S", help="of each arm's clock"
    )
    parser.add_argument("--out", type=Path, help="write receipts to this folder")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    subparsers = parser.add_subparsers(dest="command", required=True)
    subparsers.add_parser("list", help="the commands, one line each")
    for name in (*COMMANDS, *LAST):
        own = subparsers.add_parser(name, help=title(name), description=module(name).__doc__)
        add_common(own)
        module(name).add_arguments(own)
    return parser


def execute(options: argparse.Namespace) -> list[receipts.Receipt]:
    """Runs one parsed command; writes each receipt where `--out` says as soon as it is there."""
    if options.device is None:
        options.device = available()
    require(options.device)
    threads = torch.get_num_threads()
    if options.smoke:
        torch.set_num_threads(1)  # nothing so small gains by more
    found = []
    try:
        for receipt in module(options.command).run(options):
            found.append(receipt)
            if options.out is not None:
                print(f"receipt: {receipts.write(receipt, options.out).name}", flush=True)
    finally:
        torch.set_num_threads(threads)
    return found


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    if options.command == "list":
        for name in (*COMMANDS, *LAST):
            print(f"{name:<12} {title(name)}")
        return 0
    begin = time.monotonic()
    try:
        found = execute(options)
    except BenchmarkError as error:
        print(f"error: {options.command}: {error}", file=sys.stderr)
        return 1
    except (ValueError, NotImplementedError) as error:
        print(f"error: {options.command}: {error}", file=sys.stderr)
        return 2
    failed = [str(f) for receipt in found for f in receipt["results"].get("failed", ())]
    for line in failed:
        print(f"failed: {line}", file=sys.stderr)
    print(f"({options.command}: {time.monotonic() - begin:.1f} s)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
