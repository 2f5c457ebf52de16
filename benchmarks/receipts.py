"""Receipts: what a command found, as JSON that is checked against `receipt.schema.json`.

A receipt of an emulation, or of arithmetic, cannot hold a time: the schema refuses it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from . import facts
from .errors import BenchmarkError
from .harness import Measured

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SCHEMA_VERSION = 1
LABELS = {
    "arithmetic": "arithmetic on shapes and plans; no time",
    "cpu-emulation": "Metal kernels emulated on a CPU: counts and checks, no time",
    "cpu-native": "CPU times of native code; not an Apple GPU result",
    "cuda": "NVIDIA, not an Apple result",
    "mps": "Apple GPU",
}
Receipt = dict[str, Any]


@cache
def schema() -> dict[str, Any]:
    return json.loads((HERE / "receipt.schema.json").read_text())


def arm(
    name: str,
    *,
    variant: Any = None,
    pack: str | None = None,
    geometry: str | None = None,
    launch: str = "",
    replay: str = "plain calls",
    dispatches: int | None = None,
    joins: int | None = None,
    emulated: bool = False,
    instrumented: bool = False,
    selection: str = "fixed",
    payload_bytes: int | None = None,
    samples_s: Sequence[float] = (),
    counts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One arm. `variant` is whatever tells it from others; `pack` and `geometry` are the hashes of
    packed operands and of the numeric geometry, None where an arm has none of ours."""
    return {
        "name": name,
        "variant_hash": facts.sha256_of([name, variant]),
        "pack_sha256": pack,
        "geometry_sha256": geometry,
        "launch": launch,
        "replay": replay,
        "dispatches": dispatches,
        "joins": joins,
        "emulated": emulated,
        "instrumented": instrumented,
        "selection": selection,
        "payload_bytes": payload_bytes,
        "samples_s": list(samples_s),
        "counts": dict(counts or {}),
    }


def of_shaders(device: str) -> str:
    """The backend of a receipt whose Metal kernels ran for tensors of that device."""
    return "cpu-emulation" if device == "cpu" else device


def new(
    options: argparse.Namespace,
    backend: str,
    *,
    scope: str = "none",
    tier: int = 0,
    rows: int | None = None,
    sequences: int | None = None,
    dtype: str | None = None,
    cache_mode: str = "none",
    working_set_bytes: int | None = None,
    measured: Measured | None = None,
    arms: Sequence[dict[str, Any]] = (),
    comparisons: Sequence[dict[str, Any]] = (),
    results: Mapping[str, Any] | None = None,
    numerics: Mapping[str, Any] | None = None,
    claim: str = "",
    caveats: Sequence[str] = (),
    needs: Sequence[str] = (),
) -> Receipt:
    """A receipt of this process, checked. `measured` gives timer, order, warm-up, drift and the
    samples of the arms of the same names."""
    kind = backend if backend in ("cuda", "mps") else "cpu"
    own = [dict(a) for a in arms]
    if measured is not None:
        known = {a["name"]: a for a in own}
        for name, samples in measured.samples.items():
            if name not in known:  # the unchanged duplicate
                original = known[name.removesuffix(" (again)")]
                known[name] = {**original, "name": name}
                own.append(known[name])
            known[name]["samples_s"] = samples
    receipt = {
        "schema": SCHEMA_VERSION,
        "command": options.command,
        "arguments": {k: _plain(v) for k, v in sorted(vars(options).items()) if k not in _LOCAL},
        "smoke": bool(options.smoke),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "backend": backend,
        "label": LABELS[backend],
        "source": facts.source(),
        "device": facts.device(kind),
        "timer": measured.timer if measured else None,
        "scope": scope,
        "tier": tier,
        "rows": rows,
        "sequences": sequences,
        "dtype": dtype,
        "warm_up_gpu_s": _warm_up(measured),
        "plateau": None,
        "heat": {
            "seconds_since_last_run": measured.idle_s if measured else None,
            "drift": {n: measured.drift(n) for n in measured.samples} if measured else {},
        },
        "cache": {"mode": cache_mode, "working_set_bytes": working_set_bytes},
        "order": _order(measured),
        "arms": own,
        "comparisons": list(comparisons),
        "results": dict(results or {}),
        "numerics": dict(numerics or {}),
        "variant_hash": facts.sha256_of([a["variant_hash"] for a in own]),
        "claim": claim,
        "caveats": list(caveats),
        "needs": list(needs),
    }
    validate(receipt)
    return receipt


_LOCAL = ("command", "out", "smoke", "runner", "candidate_file", "receipts")


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, list, type(None))) else str(value)


def _warm_up(measured: Measured | None) -> float | None:
    """The arm that had least; only a device's own clock counts."""
    return min(measured.warm_up_s.values()) if measured and measured.gpu else None


def _order(measured: Measured | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    return {"kind": measured.order, "seed": measured.seed, "rounds": measured.orders}


def validate(receipt: Receipt, name: str = "receipt") -> None:
    """Raises BenchmarkError that names the field."""
    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(schema()).iter_errors(receipt)
    )
    if error is not None:
        where = "/".join(map(str, error.absolute_path)) or "the receipt itself"
        raise BenchmarkError(f"{name}: {where}: {error.message}")


def write(receipt: Receipt, folder: Path) -> Path:
    """To `<folder>/<command>[-part]-<backend>.json`; an older one of that name is replaced."""
    validate(receipt)
    folder.mkdir(parents=True, exist_ok=True)
    part = receipt["results"].get("part", "")
    words = [receipt["command"], *([part] if part else []), receipt["backend"]]
    path = folder / ("-".join(words) + ".json")
    path.write_text(json.dumps(receipt, indent=1) + "\n")
    return path


def load(path: Path) -> Receipt:
    """One receipt, checked. BenchmarkError says what is wrong with the file."""
    try:
        receipt = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BenchmarkError(f"{path.name}: {error}") from None
    validate(receipt, path.name)
    return receipt


def load_all(folder: Path) -> list[Receipt]:
    return [load(path) for path in sorted(folder.rglob("*.json"))]
