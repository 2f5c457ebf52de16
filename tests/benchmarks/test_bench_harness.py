"""Pairing, warm-up, gates, deadlines and what a comparison claims, on a clock of our own."""

from __future__ import annotations

import itertools
import random
import threading

import pytest
import torch

from benchmarks import harness, layers, timers
from benchmarks.errors import BenchmarkError, DeadlineExceeded, GateFailed, TimerMissing
from benchmarks.stats import AGAIN, compare, drift, ratio, repeated


class FakeClock:
    """A call takes what it returns."""

    name, gpu = "fake clock", True

    def seconds(self, work, calls):
        return sum(work() for _ in range(calls)) / calls


def noisy(mean: float, seed: int = 0):
    drawn = random.Random(seed)
    return lambda: mean * drawn.uniform(0.99, 1.01)


def arms(**means: float) -> list[harness.Arm]:
    return [harness.Arm(n, noisy(m, i)) for i, (n, m) in enumerate(means.items())]


def measure(*given, rounds=20, **keywords):
    return harness.measure(*given, FakeClock(), rounds=rounds, **keywords)


def test_rounds_are_shuffled_by_the_seed_and_hold_a_duplicate():
    found = measure(arms(a=1.0, b=2.0), seed=3, warm_up_s=0)
    assert found.control == "a" + AGAIN
    assert {tuple(sorted(o)) for o in found.orders} == {("a", "a" + AGAIN, "b")}
    assert len({tuple(o) for o in found.orders}) > 2
    again = measure(arms(a=1.0, b=2.0), seed=3, warm_up_s=0)
    assert again.orders == found.orders
    assert measure(arms(a=1.0, b=2.0), seed=4, warm_up_s=0).orders != found.orders


def test_abba():
    found = measure(arms(a=1.0, b=2.0), rounds=4, order="abba", control=False, warm_up_s=0)
    assert found.orders == [["a", "b"], ["b", "a"]] * 2


def test_warm_up_is_accumulated_and_left_out():
    calls = itertools.count()
    arm = harness.Arm("a", lambda: next(calls) and 0.25 or 0.25)
    found = measure([arm], rounds=2, warm_up_s=3.0, control=False)
    assert found.warm_up_s["a"] == 3.0
    assert len(found.samples["a"]) == 2
    assert next(calls) == 1 + 12 + 2  # the first call, the warm-up, the samples


def test_samples_are_of_one_unit():
    arm = harness.Arm("a", lambda: 6.0, calls=2, units=3)
    assert measure([arm], rounds=2, warm_up_s=0).samples["a"] == [2.0, 2.0]


def test_other_bits_after_timing_are_an_error():
    digests = iter(["one", "two"])
    arm = harness.Arm("a", lambda: 1.0, check=lambda: next(digests))
    with pytest.raises(GateFailed, match="other bits"):
        measure([arm], warm_up_s=0)
    arm = harness.Arm("a", lambda: 1.0, check=lambda: "one")
    assert measure([arm], warm_up_s=0).digests == {"a": "one"}


def test_a_hung_arm_ends_the_run_with_its_name():
    hang = threading.Event()
    try:
        with pytest.raises(DeadlineExceeded, match="'stuck'"):
            measure([harness.Arm("stuck", lambda: hang.wait() and 1.0)], deadline=0.2)
    finally:
        hang.set()


def test_an_exception_of_an_arm_comes_out():
    def broken():
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        measure([harness.Arm("a", broken)])


@pytest.mark.parametrize(
    ("keywords", "message"),
    [({"rounds": 1}, "rounds"), ({"order": "abc"}, "order"), ({"given": []}, "arms")],
)
def test_bad_arguments_are_named(keywords, message):
    given = keywords.pop("given", arms(a=1.0))
    with pytest.raises(ValueError, match=message):
        measure(given, **keywords)


def test_the_gate_names_what_is_wrong():
    harness.check({"output": 0.5}, "a")
    for bad in (1.5, float("nan"), float("inf")):
        with pytest.raises(GateFailed, match="a: unverified.*output"):
            harness.check({"output": bad}, "a")


def test_a_clear_effect_is_claimed_and_noise_is_not():
    found = measure(arms(a=1.0, b=1.2), warm_up_s=0)
    c = found.compare("a", "b")
    assert c.verdict == "faster" and c.ratio.wins == c.ratio.rounds == 20
    assert c.ratio.low < 1 / 1.2 < c.ratio.high
    assert found.compare("b", "a").verdict == "slower"
    same = measure(arms(a=1.0, b=1.0), warm_up_s=0).compare("a", "b")
    assert same.verdict == "not established"


def test_an_effect_within_the_declared_band_is_not_claimed():
    c = measure(arms(a=1.0, b=1.02), warm_up_s=0).compare("a", "b")
    assert c.ratio.high < 1
    assert c.verdict == "not established" and "noise band" in c.reasons[0]


def test_an_effect_smaller_than_the_drift_is_refused():
    rising = [1.0 + 0.02 * i for i in range(20)]
    samples = {"a": rising, "b": [1.1 * s for s in rising]}
    c = compare(samples, "a", "b", control=None)
    assert drift(rising) > 0.1
    assert c.verdict == "not established" and any("drift" in r for r in c.reasons)


def test_an_effect_smaller_than_the_bias_of_the_duplicate_is_refused():
    flat = [1.0, 1.001] * 10
    samples = {"a": flat, "b": [1.05 * s for s in flat], "a" + AGAIN: [1.08 * s for s in flat]}
    c = compare(samples, "a", "b", control="a" + AGAIN)
    assert c.verdict == "not established" and any("A/A" in r for r in c.reasons)


def test_the_interval_of_equal_ratios_is_a_point():
    found = ratio([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert found.low == pytest.approx(found.mean) == pytest.approx(found.high) == 0.5
    with pytest.raises(ValueError, match="samples"):
        ratio([1.0], [1.0])


def test_two_runs_must_agree():
    def one(a, b):
        return measure(arms(a=a, b=b), warm_up_s=0).compare("a", "b")

    assert repeated(one(1.0, 1.2), one(1.0, 1.3))[0] == "faster"
    verdict, reason = repeated(one(1.0, 1.2), one(1.2, 1.0))
    assert verdict == "not established" and "opposite" in reason


def test_cold_mode_takes_copies_in_turn():
    taken = []
    work = harness.rotating([lambda i=i: taken.append(i) for i in range(3)])
    for _ in range(4):
        work()
    assert taken == [0, 1, 2, 0]
    assert harness.copies(1 << 20, 1 << 20, 0) == 8
    assert harness.copies(1 << 20, 0, 100 << 20) == 100
    with pytest.raises(BenchmarkError):
        harness.rotating([])


def test_clocks():
    assert timers.for_torch("cpu").seconds(lambda: None, 3) >= 0
    if not torch.cuda.is_available():
        with pytest.raises(TimerMissing, match="CUDA"):
            timers.for_torch("cuda")


def test_every_variant_that_runs_is_an_arm(monkeypatch):
    """A variant joins by itself as soon as `supports` says that it runs."""
    shape = layers.SHAPES["small"]
    here = [a.variant for a in layers.ours(shape, "cpu", 2, torch.bfloat16)]
    assert {"stock", "native", "packed", "core"} <= set(here)
    monkeypatch.setattr(layers, "supports", lambda variant, **_: True)
    everything = [a.variant for a in layers.ours(shape, "cpu", 2, torch.bfloat16)]
    assert everything == list(layers.VARIANTS[1:])
    assert [a.shader for a in layers.ours(shape, "cpu", 2, torch.bfloat16)] == [
        v not in ("stock", "native") for v in everything
    ]
