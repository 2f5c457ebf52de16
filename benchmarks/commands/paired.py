"""Arms of one layer against their controls, twice: fusion claims and attributions.

A verdict needs an interval without 1 in each of two separate runs, of the same sign, beyond the
noise band, A/A bias and drift; a fusion claim also equal packs, numeric geometry and replay.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import product

import torch

from .. import claims, receipts
from ..errors import ReportRefusal
from ..layers import SHAPES, Layer, Ours, ours
from ..stats import Comparison, Ratio
from . import layer as layer_command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--a", nargs="+", default=["core"], help="the arms that are claimed to be faster"
    )
    parser.add_argument("--b", nargs="+", default=["packed"], help="the controls")
    parser.add_argument("--shape", nargs="+", choices=SHAPES, help="default: by device")
    parser.add_argument("--rows", type=int, nargs="+", default=[8])
    parser.add_argument("--repeats", type=int, default=2, help="separate runs")
    parser.add_argument("--cause", default="", help="an attribution to check")
    parser.set_defaults(cache="cold", geometry=[], only=None)


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    if options.repeats < 2:
        raise ValueError(f"repeats: got {options.repeats}; accepted: 2 or more")
    if options.smoke:
        options.shape, options.rows = ["small"], [2]
    if options.shape is None:
        options.shape = ["small" if options.device == "cpu" else "0.8b"]
    options.only = [*options.a, *options.b]
    options.geometry = sorted({";" + n.partition(";")[2] for n in options.only if ";" in n})
    with torch.no_grad():
        for name in options.shape:
            layer = Layer(SHAPES[name], options.device, options.seed)
            for rows in options.rows:
                yield from cell(options, name, layer, rows)


def cell(
    options: argparse.Namespace, name: str, layer: Layer, rows: int
) -> Iterator[receipts.Receipt]:
    """All pairs of one shape and number of rows, in separate runs."""
    found = ours(layer.shape, options.device, rows, torch.bfloat16, options.geometry)
    here = {a.name: a for a in found}
    missing = [n for n in options.only if n not in here]
    if missing:
        print(f"not here: {', '.join(missing)}; there are: {', '.join(here)}")
        yield receipts.new(
            options,
            "arithmetic",
            results={"missing": missing},
            needs=[f"variant {n} on {options.device}" for n in missing],
        )
        return
    timed, seed = [], options.seed
    for i in range(options.repeats):
        options.seed = seed + i
        for receipt in layer_command.cell(options, name, layer, rows):
            receipt["results"]["part"] += f"-run{i + 1}"
            timed += [receipt] if receipt["comparisons"] else []
            yield receipt
    options.seed = seed
    if len(timed) < 2:
        print(verdict_without_times([here[n] for n in options.only], options.device))
        return
    for a, b in product(options.a, options.b):
        print("\n".join(verdicts(timed[-2:], a, b, options.cause)))


def verdicts(runs: Sequence[receipts.Receipt], a: str, b: str, cause: str) -> list[str]:
    """What two runs say of a pair, each as a fusion claim and both as an attribution."""
    lines = []
    for receipt in runs:
        try:
            lines.append(claims.fusion(receipt, a, b))
        except ReportRefusal as refusal:
            lines.append(f"refused: {refusal}")
    try:
        first, second = (comparison(r, a, b) for r in runs)
        lines.append(claims.attribution(first, second, cause or "difference of the two arms"))
    except ReportRefusal as refusal:
        lines.append(f"refused: {refusal}")
    return lines


def comparison(receipt: receipts.Receipt, a: str, b: str) -> Comparison:
    """The receipt's comparison of a with b, whichever way round it was recorded."""
    for c in receipt["comparisons"]:
        ratio = Ratio(**c["ratio"])
        rest = (c["drift"], c["control"], c["verdict"], c["reasons"])
        if (c["a"], c["b"]) == (a, b):
            return Comparison(a, b, ratio, *rest)
        if (c["a"], c["b"]) == (b, a):
            turned = Ratio(
                1 / ratio.mean,
                1 / ratio.high,
                1 / ratio.low,
                ratio.rounds - ratio.wins,
                ratio.rounds,
            )
            word = {"faster": "slower", "slower": "faster"}.get(c["verdict"], c["verdict"])
            return Comparison(a, b, turned, c["drift"], c["control"], word, c["reasons"])
    raise ReportRefusal(f"{a} against {b}: not compared")


def verdict_without_times(arms: list[Ours], device: str) -> str:
    emulated = [a.name for a in arms if a.emulated(device)]
    return f"no verdict: {', '.join(emulated)} emulated here; a time needs a Mac or an NVIDIA GPU"
