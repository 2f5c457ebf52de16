"""Two arms of one layer against each other, twice: fusion claims and attributions.

A verdict needs an interval without 1 in each of two separate runs, of the same sign, beyond the
noise band, A/A bias and drift; a fusion claim also equal packs, numeric geometry and replay.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch

from .. import claims, receipts
from ..errors import ReportRefusal
from ..layers import SHAPES, Ours, ours
from ..stats import Comparison, Ratio
from . import layer as layer_command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--a", default="core", help="the arm that is claimed to be faster")
    parser.add_argument("--b", default="packed", help="the control")
    parser.add_argument("--shape", nargs=1, choices=SHAPES, help="default: by device")
    parser.add_argument("--rows", type=int, nargs=1, default=[8])
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
    shape, rows = SHAPES[options.shape[0]], options.rows[0]
    options.geometry = [
        a.partition(";")[2] and ";" + a.partition(";")[2]
        for a in (options.a, options.b)
        if ";" in a
    ]
    here = {a.name: a for a in ours(shape, options.device, rows, torch.bfloat16, options.geometry)}
    missing = [name for name in (options.a, options.b) if name not in here]
    if missing:
        print(f"not here: {', '.join(missing)}; there are: {', '.join(here)}")
        yield receipts.new(
            options,
            "arithmetic",
            results={"missing": missing},
            needs=[f"variant {name} on {options.device}" for name in missing],
        )
        return
    options.only = [options.a, options.b]
    found = []
    for i in range(options.repeats):
        options.seed += i
        with torch.no_grad():
            for receipt in layer_command.cell(options, options.shape[0], rows):
                receipt["results"]["part"] += f"-run{i + 1}"
                found.append(receipt)
    timed = [r for r in found if r["comparisons"]]
    yield from found
    if len(timed) < 2:
        arms = [here[n] for n in options.only]
        print(verdict_without_times(arms, options.device))
        return
    first, second = (comparison(r, options.a, options.b) for r in timed[-2:])
    for receipt in timed[-2:]:
        try:
            print(claims.fusion(receipt, options.a, options.b))
        except ReportRefusal as refusal:
            print(f"refused: {refusal}")
    try:
        print(claims.attribution(first, second, options.cause or "difference of the two arms"))
    except ReportRefusal as refusal:
        print(f"refused: {refusal}")


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
