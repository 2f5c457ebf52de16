"""Figures from receipts: paired ratios with their intervals, one figure a system."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import claims
from .fusion_report import CONTROL
from .receipts import Receipt

FEW = 3


def draw(found: Sequence[Receipt], folder: Path) -> list[Path]:
    """SVG files beside the page. Receipts of different devices or OS builds share no axis."""
    systems: dict[tuple, list[Receipt]] = {}
    for r in found:
        if shown(r):
            key = (r["backend"], str(r["device"]["name"]), str(r["device"]["os_build"]))
            systems.setdefault(key, []).append(r)
    return [ratios(own, folder) for _, own in sorted(systems.items())]


def shown(r: Receipt) -> list[dict[str, Any]]:
    """Its comparisons; of many, those with the first arm that is compared or with `packed`, without
    those of plain calls on a GPU."""
    if len(r["comparisons"]) <= FEW:
        return r["comparisons"]
    bases = {r["comparisons"][0]["b"], CONTROL}
    return [c for c in r["comparisons"] if c["b"] in bases and "eager" not in c["a"]]


def ratios(own: Sequence[Receipt], folder: Path) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "receipts"  # the same file from the same receipts
    from matplotlib import pyplot

    claims.same_system(*own)
    rows = [
        (f"{r['command']} {r['results'].get('part', '')}: {c['a']} / {c['b']}", c["ratio"])
        for r in own
        for c in shown(r)
    ]
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.28 * len(rows)))
    for i, (_, x) in enumerate(rows):
        error = [[x["mean"] - x["low"]], [x["high"] - x["mean"]]]
        axes.errorbar(x["mean"], i, xerr=[[max(0.0, e[0])] for e in error], fmt="o", color="black")
    axes.axvline(1, color="grey", linewidth=1)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("time ratio, 95 % interval (below 1: the first is faster)")
    axes.set_title(f"{own[0]['label']}: {own[0]['device']['name']}", fontsize=8)
    figure.tight_layout()
    device = own[0]["device"]
    words = f"ratios-{own[0]['backend']}-{device['name']}-{device['os_build']}"
    path = folder / (re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-") + ".svg")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path
