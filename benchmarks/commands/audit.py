"""Bytes of every weight matrix that a decode pass of a model reads, each once.

Derived from shapes, a weight format and a padding rule. Not traffic: caches, repeated reads and
discarded drafts change what a run moves.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from torch_mps_fusion.explain import aligned

from .. import models, receipts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=models.MODELS, default="qwen3.8-27b")
    parser.add_argument("--format", choices=models.FORMATS, default="q4-affine-g64")
    parser.add_argument(
        "--pad-rows", type=int, default=256, help="multiple that the GDN input rows are padded to"
    )


def totals(model: models.Model, form: models.Format, pad_rows: int) -> dict[str, int]:
    """Bytes: the target, its FFN, the draft with its context projection, all."""
    target, draft = models.target(model, pad_rows), models.draft(model)
    size = models.payload([*target, *draft], form)
    whole = sum(size[m.name] for m in target)
    rest = sum(size[m.name] for m in draft)
    ffn = sum(size[m.name] for m in target if m.group == "ffn")
    return {"target": whole, "target_ffn": ffn, "draft_and_context": rest, "all": whole + rest}


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    if options.pad_rows < 1:
        raise ValueError(f"pad_rows: got {options.pad_rows}; accepted: 1 or more")
    model, form = models.MODELS[options.model], models.FORMATS[options.format]
    matrices = [*models.target(model, options.pad_rows), *models.draft(model)]
    size = models.payload(matrices, form)
    lines = [("matrix", "part", "count", "rows", "padded", "columns", "bytes")]
    for m in matrices:
        shown = f"in {m.owner}" if m.owner else f"{size[m.name]:,}"
        pad = str(m.padded_rows or m.rows)
        lines.append((m.name, m.part, str(m.count), str(m.rows), pad, str(m.columns), shown))
    print("\n".join(aligned(lines)))
    found = totals(model, form, options.pad_rows)
    print(
        f"\n{options.model}, {options.format} ({float(form.bytes_per_weight)} B a weight), GDN "
        f"input rows padded to a multiple of {options.pad_rows}"
    )
    print(f"target                  {found['target']:>15,} B")
    print(f"  of it FFN             {found['target_ffn']:>15,} B")
    print(f"draft and context       {found['draft_and_context']:>15,} B")
    print(f"all                     {found['all']:>15,} B")
    yield receipts.new(
        options,
        "arithmetic",
        results={"totals": found, "matrices": size},
        caveats=[
            "logical payload, each tensor once; not the traffic of a run",
            "the draft's dimensions are an inference that fits its published total",
        ],
    )
