"""The schema: what a receipt must have and what it cannot hold."""

from __future__ import annotations

import copy
import json

import pytest
from bench_receipts import receipt, steady

from benchmarks import receipts
from benchmarks.errors import BenchmarkError

GOOD = receipt(core={"samples_s": steady(1e-6)}, packed={"samples_s": steady(2e-6)})


def broken(**changes):
    return {**copy.deepcopy(GOOD), **changes}


def test_a_round_trip(tmp_path):
    path = receipts.write(GOOD, tmp_path / "new")
    assert path.name == "layer-cuda.json"
    assert receipts.load(path) == json.loads(json.dumps(GOOD))
    assert receipts.load_all(tmp_path) == [receipts.load(path)]


@pytest.mark.parametrize("field", receipts.schema()["required"])
def test_every_field_is_needed(field):
    missing = copy.deepcopy(GOOD)
    del missing[field]
    with pytest.raises(BenchmarkError, match=f"'{field}' is a required property"):
        receipts.validate(missing)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"scope": "universe"}, "scope"),
        ({"tier": 5}, "tier"),
        ({"backend": "guess"}, "backend"),
        ({"cache": {"mode": "cold"}}, "cache"),
        ({"heat": {"drift": {}}}, "heat"),
        ({"unknown": 1}, "unknown"),
        ({"schema": 2}, "schema"),
    ],
)
def test_a_wrong_field_is_named(changes, where):
    with pytest.raises(BenchmarkError, match=where):
        receipts.validate(broken(**changes))


@pytest.mark.parametrize("backend", ["cpu-emulation", "arithmetic"])
def test_no_time_goes_into_a_receipt_of_an_emulation(backend):
    timeless = {"timer": None, "warm_up_gpu_s": None, "order": None, "comparisons": []}
    with pytest.raises(BenchmarkError, match="samples_s"):
        receipts.validate(broken(backend=backend, **timeless))
    with pytest.raises(BenchmarkError):
        receipts.validate(broken(backend=backend, **{**timeless, "timer": "a clock"}))


def test_an_emulated_arm_has_no_samples_in_any_receipt():
    mixed = copy.deepcopy(GOOD)
    mixed["arms"][0]["emulated"] = True
    with pytest.raises(BenchmarkError, match="samples_s"):
        receipts.validate(mixed)


def test_a_file_that_is_no_receipt_is_named(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("{")
    with pytest.raises(BenchmarkError, match=r"x\.json"):
        receipts.load(path)


def test_committed_receipts_are_valid():
    for path in receipts.RESULTS.rglob("*.json"):
        receipts.load(path)
