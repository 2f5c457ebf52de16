"""Markdown page and figures from receipts; what they do not support is refused, not printed.

Columns are Apple, NVIDIA and CPU. Without a receipt a column is empty, and the page says so.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from .. import claims, fusion_report, receipts
from ..errors import BenchmarkError, ReportRefusal
from ..figures import draw
from ..receipts import Receipt
from ..stats import AGAIN

WORK = ("tasks", "waits", "signals")
COLUMNS = {"mps": "Apple", "cuda": "NVIDIA (not an Apple result)", "cpu-native": "CPU"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--receipts", type=Path, default=receipts.RESULTS, help="folder")
    parser.add_argument("--page", type=Path, help="default: report.md beside the receipts")


def run(options: argparse.Namespace) -> Iterator[Receipt]:
    if not options.receipts.is_dir():
        raise BenchmarkError(f"--receipts: got {options.receipts}; accepted: a folder of receipts")
    found = receipts.load_all(options.receipts)
    page = options.page or options.receipts / "report.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    figures = draw(found, page.parent)
    page.write_text("\n".join(text(found, figures)) + "\n")
    print(f"{len(found)} receipts, {len(figures)} figures: {page.name}")
    if not any(r["backend"] == "mps" for r in found):
        print("no Apple receipt: the Apple column is empty")
    return iter(())


def text(found: Sequence[Receipt], figures: Sequence[Path] = ()) -> list[str]:
    """The page, line by line."""
    lines = [
        "# Report",
        "",
        "Made by `python -m benchmarks report` from the receipts in this "
        "folder. How to read it: `benchmarks/README.md`.",
        "",
    ]
    if not any(r["backend"] == "mps" for r in found):
        lines += [
            "**There is no Apple receipt. The Apple column is empty: nothing here was run "
            "on Apple hardware.** `python -m benchmarks all` on a Mac fills it.",
            "",
        ]
    lines += ["## Systems", "", *systems(found), "", "## Times", "", *times(found), ""]
    lines += ["## Rates", "", *rates(found), ""]
    lines += ["## Whether fusion paid", "", *fusion_report.sums(found), ""]
    head = ("device", "receipt", "arms", "of the control's time", "wins", "verdict, replay, cache")
    lines += [*table(head, fusion_report.cells(found)), ""]
    lines += ["## Paired comparisons", "", *comparisons(found), ""]
    lines += ["## Counts of emulated kernels (no times)", "", *counts(found), ""]
    lines += [f"## What fusion saved and added, against {fusion_report.CONTROL} (counted)", ""]
    head = ("receipt", "variant", "stage", "bytes requested", "once", "written", *WORK)
    lines += [*table(head, fusion_report.counted(found)), ""]
    lines += ["## Checks and arithmetic", "", *checks(found), ""]
    if figures:
        lines += ["## Figures", "", *(f"![{f.stem}]({f.name})" for f in figures), ""]
    lines += ["## Not measured", "", *needs(found)]
    return lines


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return ["None."]
    return ["| " + " | ".join(r) + " |" for r in (head, ["---"] * len(head), *rows)]


def systems(found: Sequence[Receipt]) -> list[str]:
    rows = {
        (
            r["device"]["kind"],
            str(r["device"]["name"]),
            str(r["device"]["cores"]),
            str(r["device"]["os_build"]),
            r["device"]["torch"],
            str(r["source"]["commit"])[:10],
            {True: "yes", False: "no", None: "unknown"}[r["source"]["dirty"]],
        )
        for r in found
    }
    head = ("kind", "device", "CPU cores", "OS build", "torch", "commit", "dirty")
    return table(head, sorted(rows))


def times(found: Sequence[Receipt]) -> list[str]:
    """Median microseconds by column; arms whose time is refused are not in it."""
    rows = []
    for r in found:
        for arm in r["arms"]:
            if arm["name"].endswith(AGAIN) or arm["selection"] != "fixed":
                continue
            try:
                us = f"{claims.time_of(r, arm['name']) * 1e6:.2f}"
            except ReportRefusal:
                continue
            cells = [us if r["backend"] == b else "" for b in COLUMNS]
            samples = f"{len(arm['samples_s'])}, {r['cache']['mode']}"
            joins = "" if arm["dispatches"] is None else f"{arm['dispatches']} / {arm['joins']}"
            rows.append((us, (title(r), arm["name"], *cells, samples, joins, r["timer"])))
    rows.sort(key=lambda row: (row[1][0], float(row[0])))  # by time, never by dispatches
    head = (
        "receipt",
        "arm",
        *(f"{c}, us" for c in COLUMNS.values()),
        "samples, cache",
        "dispatches / joins",
        "clock",
    )
    return table(head, [row for _, row in rows])


def rates(found: Sequence[Receipt]) -> list[str]:
    """GB/s of payload on a GPU, of one kernel in one fixed configuration each."""
    rows = []
    for r in (r for r in found if r["backend"] in fusion_report.GPUS):
        for arm in r["arms"]:
            if arm["dispatches"] is not None:  # a program, which has stages of many rates
                continue
            try:
                gb_s, kind = claims.rate(r, arm["name"])
            except ReportRefusal:
                continue
            if not arm["name"].endswith(AGAIN):
                rows.append((title(r), r["label"], arm["name"], arm["launch"], f"{gb_s:.0f}", kind))
    return table(("receipt", "where", "arm", "pattern and geometry", "GB/s", "what it is"), rows)


def title(r: Receipt) -> str:
    smoke = " (smoke)" if r["smoke"] else ""
    return " ".join(w for w in (r["command"], str(r["results"].get("part", ""))) if w) + smoke


def comparisons(found: Sequence[Receipt]) -> list[str]:
    rows = []
    for r in found:
        for c in r["comparisons"]:
            x = c["ratio"]
            rows.append(
                (
                    title(r),
                    r["label"],
                    f"{c['a']} / {c['b']}",
                    f"{x['mean']:.3f}",
                    f"{x['low']:.3f} to {x['high']:.3f}",
                    f"{x['wins']}/{x['rounds']}",
                    c["verdict"],
                    fusion(r, c["a"], c["b"]),
                )
            )
    head = (
        "receipt",
        "where",
        "arms",
        "ratio",
        "95 % interval",
        "wins",
        "verdict",
        "as a fusion claim",
    )
    return table(head, rows)


def fusion(r: Receipt, a: str, b: str) -> str:
    try:
        claims.fusion(r, a, b)
    except ReportRefusal as refusal:
        return "refused: " + str(refusal).split(": ", 1)[1].split(",")[0]
    return "allowed"


def counts(found: Sequence[Receipt]) -> list[str]:
    rows = []
    for r in found:
        for arm in r["arms"]:
            c = arm["counts"]
            if arm["emulated"] and "least_bytes" in c:
                moved = c["read_bytes"] + c["written_bytes"]
                rows.append(
                    (
                        title(r),
                        arm["name"],
                        str(arm["dispatches"]),
                        str(arm["joins"]),
                        f"{moved:,}",
                        f"{moved / c['least_bytes']:.3f}",
                        str(c["barriers"]),
                        str(c["spins"]),
                    )
                )
    head = ("receipt", "arm", "dispatches", "joins", "bytes", "of the least", "barriers", "spins")
    return table(head, rows)


def checks(found: Sequence[Receipt]) -> list[str]:
    lines = []
    for r in found:
        x = r["results"]
        if "totals" in x:
            lines += [f"- audit, {k}: {v:,} B" for k, v in x["totals"].items()]
        if "estimate_ms" in x:
            lines.append(
                f"- price: {x['estimate_ms']:.4f} ms at {x['rate_gb_s']:g} GB/s "
                f"({x['rate_kind']}): {r['claim']}"
            )
        if "cases" in x:
            kept = [n for n, c in x["cases"].items() if c["kept"]]
            lines.append(f"- contract: {len(kept)} of {len(x['cases'])} cases kept")
        if "optimisations" in r["numerics"]:
            rows = r["numerics"]["optimisations"].values()
            lines.append(
                f"- numerics: {sum(o['kept'] for o in rows)} of {len(rows)} optimisations "
                "keep the class that they declare"
            )
        if "candidates" in x:
            lines += [
                f"- candidate {n}: {'accepted' if c['accepted'] else 'refused'}"
                for n, c in x["candidates"].items()
            ]
        lines += [f"- FAILED {title(r)}: {f}" for f in x.get("failed", ())]
    return lines or ["None."]


def needs(found: Sequence[Receipt]) -> list[str]:
    lines = sorted({f"- {title(r)}: {n}" for r in found for n in r["needs"]})
    return lines or ["Nothing is missing."]
