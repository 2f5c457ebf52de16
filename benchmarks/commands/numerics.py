"""Which numerical requirement each optimisation keeps: bytes, tolerance, distribution or task.

Every optimisation declares the strongest class that it keeps; both sides run here, and what is
found must be at least that. "task" needs a task and a checkpoint: it is never concluded.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_mps_fusion.explain import aligned

from .. import gates, receipts
from ..layers import SHAPES, Layer, Ours, Results, ours
from ..numeric_classes import CLASSES, bf16_ulps, cosine, errors, keeps, kl, strongest

ROWS = 8
TILE, WALK, RULE = GEOMETRIES = (";tile=nt1u4", ";groups=3", ";rule=r2s4")


@dataclass(frozen=True)
class Optimisation:
    """`after` does what `before` does; `declared` is the strongest class it keeps against it."""

    name: str
    declared: str
    before: Callable[[Layer, Tensor], Results]
    after: Callable[[Layer, Tensor], Results]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", nargs=1, choices=SHAPES, default=["small"])
    parser.add_argument("--class", dest="kind", choices=CLASSES, help="only what declares this one")


def call(variant: str, geometry: str = "") -> Callable[[Layer, Tensor], Results]:
    return lambda layer, hidden: Ours(variant, geometry)(layer, hidden, layer.states())


def split(variant: str, at: int) -> Callable[[Layer, Tensor], Results]:
    """The same tokens in two calls."""

    def run(layer: Layer, hidden: Tensor) -> Results:
        states, arm = layer.states(), Ours(variant)
        parts = [arm(layer, part, states)[0] for part in (hidden[:, :at], hidden[:, at:])]
        return torch.cat(parts, 1), *states

    return run


def optimisations(shape: str, device: str) -> list[Optimisation]:
    """One row for each change, and one for each variant that runs here."""
    here = [a.variant for a in ours(SHAPES[shape], device, ROWS, torch.bfloat16)]
    shaders = [v for v in here if v not in ("stock", "native")]
    found = [
        Optimisation(f"{v} for stock", "tolerance", call("stock"), call(v))
        for v in here
        if v != "stock"
    ]
    if not shaders:
        return found
    first = shaders[0]
    found += [
        Optimisation(f"{v} for {first}: other cuts", "bytes", call(first), call(v))
        for v in shaders[1:]
    ]
    for v in shaders:
        found += [
            Optimisation(f"{v}: tile nt1u4", "bytes", call(v), call(v, TILE)),
            Optimisation(f"{v}: a group walks several tiles", "bytes", call(v), call(v, WALK)),
            Optimisation(f"{v}: tokens in two calls", "bytes", call(v), split(v, 3)),
        ]
    found.append(Optimisation(f"{first}: rule r2s4", "bytes", call(first), call(first, RULE)))
    return found


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    shape = options.shape[0]
    layer = Layer(SHAPES[shape], options.device, options.seed)
    hidden = layer.hidden(ROWS)
    generator = torch.Generator().manual_seed(options.seed + 2)
    head = torch.randn(layer.shape.hidden, 64, generator=generator) * layer.shape.hidden**-0.5
    rows: dict[str, dict] = {}
    failed = []
    lines = [("optimisation", "declared", "found", "max ulp", "cosine", "KL")]
    with torch.no_grad(), gates.poisoned():
        for o in optimisations(shape, options.device):
            if options.kind and o.declared != options.kind:
                continue
            row = compare(o, layer, hidden, head)
            rows[o.name] = row
            lines.append(
                (
                    o.name,
                    o.declared,
                    str(row["found"]),
                    str(row["max_ulp"]),
                    f"{row['cosine']:.6f}",
                    f"{row['kl']:.1e}",
                )
            )
            if not row["kept"]:
                failed.append(f"{o.name}: declares {o.declared}, keeps {row['found']}")
    print("\n".join(aligned(lines)))
    print("K split: `ksplit` (tolerance). Above the row threshold aten's products: tolerance.")
    yield receipts.new(
        options,
        receipts.of_shaders(options.device),
        scope="layer",
        tier=1,
        rows=ROWS,
        dtype="bfloat16",
        numerics={"optimisations": rows},
        results={"failed": failed},
    )


def compare(o: Optimisation, layer: Layer, hidden: Tensor, head: Tensor) -> dict:
    before, after = o.before(layer, hidden), o.after(layer, hidden)
    over = errors(after, before, layer.dtype)
    logits = [r[0][0].cpu().float() @ head for r in (after, before)]
    divergence = kl(*logits)
    found = strongest(all(map(torch.equal, after, before)), over, divergence)
    return {
        "declared": o.declared,
        "found": found,
        "kept": keeps(found, o.declared),
        "errors": over,
        "max_ulp": int(bf16_ulps(after[0].cpu(), before[0].cpu()).max()),
        "cosine": cosine(after[0].cpu(), before[0].cpu()),
        "kl": divergence,
    }
