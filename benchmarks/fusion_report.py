"""What the receipts say of fusion: times against the matched control, and counted work.

The matched control of a fused variant is `packed` with the same packed operands, numeric geometry
and replay mode; every statement passes `claims.fusion`. Whichever way it went, it is printed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from torch_mps_fusion.cuda_kernels import PERSISTENT

from . import claims
from .claims import arm_of
from .errors import ReportRefusal
from .receipts import LABELS, Receipt

CONTROL = "packed"
FUSED = ("core", *PERSISTENT)
GPUS = ("mps", "cuda")
RUN = re.compile(r"-run\d+$")
Rows = list[tuple[str, ...]]


def measured(found: Sequence[Receipt]) -> Iterator[tuple[Receipt, dict[str, Any]]]:
    """Comparisons of a fused arm, of whatever launch geometry, with the control on a GPU."""
    for r in found:
        if r["smoke"] or r["backend"] not in GPUS:
            continue
        for c in r["comparisons"]:
            if base(c["a"]) in FUSED and base(c["b"]) == CONTROL:
                yield r, c


def base(arm: str) -> str:
    return arm.partition(";")[0].removesuffix(" eager")


def effect(ratio: dict[str, float]) -> str:
    """ "3.2 % faster (1.1 to 5.3 %)": of the control's time; an interval over 0 has two signs."""
    mean, low, high = (100 * (1 - ratio[n]) for n in ("mean", "high", "low"))
    if mean >= 0:
        return f"{mean:.1f} % faster ({low:.1f} to {high:.1f} %)"
    return f"{-mean:.1f} % slower ({-high:.1f} to {-low:.1f} %)"


def cells(found: Sequence[Receipt]) -> Rows:
    """Device, receipt, arms, what was measured, wins, verdict of that run; refusals say why."""
    rows: Rows = []
    for r, c in measured(found):
        name = f"{r['command']} {r['results'].get('part', '')}"
        arms = f"{c['a']} / {c['b']}"
        try:
            claims.fusion(r, c["a"], c["b"])
        except ReportRefusal as refusal:
            rows.append((r["device"]["name"], name, arms, "", "", f"refused: {refusal}"))
            continue
        wins = f"{c['ratio']['wins']}/{c['ratio']['rounds']}"
        replay = arm_of(r, c["a"])["replay"]
        verdict = f"{c['verdict']}, {replay}, {r['cache']['mode']}"
        rows.append((r["device"]["name"], name, arms, effect(c["ratio"]), wins, verdict))
    return rows


def sums(found: Sequence[Receipt]) -> list[str]:
    """One line for a device, a fused arm and its control: in how many cells it was faster, slower
    or neither. A cell with several runs counts as faster or slower only if all say the same."""
    verdicts: dict[tuple[str, str, str, str], dict[str, set[str]]] = {}
    for r, c in measured(found):
        try:
            claims.fusion(r, c["a"], c["b"])
        except ReportRefusal:
            continue
        key = (LABELS[r["backend"]], str(r["device"]["name"]), c["a"], c["b"])
        cell = f"{r['command']} {RUN.sub('', str(r['results'].get('part', '')))}"
        verdicts.setdefault(key, {}).setdefault(cell, set()).add(c["verdict"])
    lines = []
    for (label, device, a, b), own in sorted(verdicts.items()):
        counts = Counter(v.pop() if len(v) == 1 else "not established" for v in own.values())
        lines.append(
            f"- {device} ({label}): {a} against {b}: faster in {counts['faster']}, slower in "
            f"{counts['slower']}, not established in {counts['not established']} of {len(own)} "
            "cells."
        )
    return lines or ["No GPU was measured: nothing is said of whether fusion pays."]


def counted(found: Sequence[Receipt]) -> Rows:
    """What `traffic` counted against the control, stage by stage: bytes, then what threads did."""
    rows: Rows = []
    for r in found:
        for variant, own in r["results"].get("fusion", {}).items():
            name = f"{r['command']} {r['results'].get('part', '')}"
            tasks = own["tasks_by_stage"]
            for stage in dict.fromkeys([*tasks, *own["bytes_by_stage"]]):
                moved = own["bytes_by_stage"].get(stage, {})
                work = tasks.get(stage, {})
                rows.append(
                    (
                        name,
                        variant,
                        stage,
                        *(f"{moved.get(n, 0):+,}" for n in ("requested", "distinct", "written")),
                        *(str(work.get(n, "")) for n in ("tasks", "waits", "signals")),
                    )
                )
            did = {n: own["counters"][n] for n in ("barriers", "atomics", "fences", "spins")}
            text = ", ".join(f"{n} {v:+,}" for n, v in did.items())
            rows.append((name, variant, f"all stages: {text}", *[""] * 6))
    return rows
