"""How persistent launches end when something is wrong: one error that says what, the committed
states whole, and a next call that works."""

import contextlib

import pytest
import torch
from compare import assert_equal
from settings import BLOCK, Setting
from test_persistent_variants import PERSISTENT, Call, geometry, planned

from torch_mps_fusion import host_kernels

# Words of shaders/include/tasks.h; test_task_words compares them.
EPOCH, TICKET, ARRIVED, BROKEN, FIRST, STRIDE = 0, 1, 2, 3, 8, 8
STATUS, TASK, COUNTER, EXPECTED, SEEN, SLOT, CANCEL = range(7)
WORDS = 16


def blocks():
    """(control, counters) of the newest program."""
    return torch.ops.mps_fusion._task_blocks("cpu")[-2:]


@pytest.fixture(params=PERSISTENT)
def fresh(request):
    """A call in place whose program is the newest, and what it gives when nothing is wrong."""
    call = Call(Setting(BLOCK, masked=True), torch.bfloat16, 1, 3)
    variant = request.param
    # every worker count is a program of its own
    fresh.workers = getattr(fresh, "workers", 16) + 1
    with geometry(f";workers={fresh.workers};spins=2000"):
        expected = tuple(s.clone() for s in call.states)
        output = call.in_place(variant, expected)
        yield call, variant, (output, *expected)


def fails(call, variant, message):
    states = tuple(s.clone() for s in call.states)
    with pytest.raises(RuntimeError, match=message) as raised:
        call.in_place(variant, states)
    for now, before in zip(states, call.states, strict=True):
        assert torch.equal(now, before), "a failed call changed a state"
    assert f"mps_fusion::gdn_layer_: variant '{variant}' failed" in str(raised.value)
    return str(raised.value)


def works(call, variant, expected):
    states = tuple(s.clone() for s in call.states)
    assert_equal((call.in_place(variant, states), *states), expected)


def test_a_signal_that_is_missing(fresh):
    """Injected: a counter that lags by one. Its consumer says which it was."""
    call, variant, expected = fresh
    _, counters = blocks()
    used = counters[FIRST::STRIDE].nonzero().flatten()
    counter = int(used[len(used) // 2])
    counters[FIRST + STRIDE * counter] -= 1
    text = fails(call, variant, rf"waited too long for counter {counter}: expected \d+, seen \d+")
    expects, seen = (int(word) for word in text.replace(";", ",").split("expected ")[1].split(
        ", the states")[0].split(", seen "))  # fmt: skip
    assert seen == expects - 1
    works(call, variant, expected)


def test_cancelled(fresh):
    call, variant, expected = fresh
    control, _ = blocks()
    control[CANCEL] = 1
    fails(call, variant, r"cancelled at task \d+ \(")
    works(call, variant, expected)


def test_a_block_that_was_not_cleared(fresh):
    call, variant, expected = fresh
    _, counters = blocks()
    counters[BROKEN] = 1
    fails(call, variant, "an earlier launch failed and was not cleared")
    works(call, variant, expected)


@pytest.mark.parametrize("seed", range(3))
def test_a_lost_worker(fresh, seed):
    call, variant, expected = fresh
    with host_kernels.running(lost=1, seed=seed, schedule="random") as launches:
        fails(call, variant, "waited too long for counter|a worker did not finish")
    assert any(launch.result.lost for launch in launches)
    works(call, variant, expected)


def test_starved_workers(fresh):
    """What has started does not run while others can: waits end, the grid drains."""
    call, variant, expected = fresh
    with host_kernels.running(schedule="unfair", spin_limit=10**7):
        fails(call, variant, "waited too long for counter")
    works(call, variant, expected)


@pytest.mark.parametrize("epoch", [2**31 - 2, 2**32 - 2])
def test_epochs_wrap_around(fresh, epoch):
    call, variant, expected = fresh
    _, counters = blocks()
    once = counters.to(torch.int64) & 0xFFFFFFFF  # what one launch leaves
    assert once[EPOCH] == 1
    wrapped = (once * epoch) & 0xFFFFFFFF
    counters.copy_(torch.where(wrapped >= 2**31, wrapped - 2**32, wrapped).to(torch.int32))
    for _ in range(4):
        works(call, variant, expected)
    assert int(counters[EPOCH]) & 0xFFFFFFFF == (epoch + 4) % 2**32


def test_the_checked_point_of_devices(fresh):
    call, variant, expected = fresh
    control, counters = blocks()
    torch.ops.mps_fusion._check_launches("cpu")
    control[STATUS], control[TASK], counters[BROKEN] = 1, 0, 1
    control[COUNTER], control[EXPECTED], control[SEEN] = 5, 8, 7
    with pytest.raises(RuntimeError, match=r"task 0 \(.*counter 5: expected 8, seen 7"):
        torch.ops.mps_fusion._check_launches("cpu")
    torch.ops.mps_fusion._check_launches("cpu")
    works(call, variant, expected)


def test_task_words():
    """The words above are those of the shaders."""
    import re

    import abi

    text = abi.headers()
    words = {n: int(v) for n, v in re.findall(r"k(C\w+) = (\d+)", text)}
    mine = {k: v for k, v in globals().items() if k.isupper() and isinstance(v, int)}
    for name, value in mine.items():
        kind = "Counter" if name in ("EPOCH", "TICKET", "ARRIVED", "BROKEN", "FIRST", "STRIDE") else "Control"
        assert words[kind + name.capitalize()] == value


# --------------------------------------------------------------------------------------- slots


class Slots:
    """Both states in two slots, the committed one first; the other holds NaN."""

    def __init__(self, call):
        conv, recurrent = call.states
        recurrent = recurrent.transpose(-1, -2)
        self.conv = torch.stack([conv, torch.full_like(conv, float("nan"))])
        stored = torch.stack([recurrent, torch.full_like(recurrent, float("nan"))])
        self.recurrent = stored.transpose(-1, -2)
        self.control = torch.zeros(WORDS, dtype=torch.int32)
        self.call = call

    @property
    def committed(self):
        slot = int(self.control[SLOT])
        return self.conv[slot], self.recurrent[slot]

    def __call__(self, variant, **changes):
        layer = self.call.layer
        given = {
            "hidden": self.call.case.hidden,
            "conv_slots": self.conv,
            "recurrent_slots": self.recurrent,
            "control": self.control,
        } | changes
        return torch.ops.mps_fusion.gdn_layer_slots_(
            *given.values(),
            *layer.weights,
            layer.input_norm_weight,
            self.call.case.mask,
            **layer.keywords,
            variant=variant,
        )


@pytest.mark.parametrize("variant", PERSISTENT)
def test_slots_take_turns(variant):
    call = Call(Setting(BLOCK, masked=True), torch.bfloat16, 3, 3)
    slots, states = Slots(call), tuple(s.clone() for s in call.states)
    for step in range(4):
        assert int(slots.control[SLOT]) == step % 2
        before = tuple(s.clone() for s in slots.committed)
        output = slots(variant)
        expected = call.in_place("packed", states)
        assert_equal((output, *slots.committed), (expected, *states))
        # the slot that was read is whole
        other = slots.conv[step % 2], slots.recurrent[step % 2]
        assert all(torch.equal(a, b) for a, b in zip(other, before, strict=True))


@pytest.mark.parametrize("variant", PERSISTENT)
@pytest.mark.parametrize("fault", ["cancelled", "lost", "unfair"])
def test_a_failed_call_leaves_the_committed_slot(variant, fault):
    call = Call(Setting(BLOCK, masked=True), torch.bfloat16, 1, 3)
    slots, states = Slots(call), tuple(s.clone() for s in call.states)
    slots(variant)
    call.in_place("packed", states)
    before = tuple(s.clone() for s in slots.committed)
    ways = {
        "cancelled": contextlib.nullcontext(),
        "lost": host_kernels.running(lost=1, seed=1, schedule="random"),
        "unfair": host_kernels.running(schedule="unfair", spin_limit=10**7),
    }
    slots.control[CANCEL] = fault == "cancelled"
    with geometry(";spins=2000"), ways[fault], pytest.raises(RuntimeError, match="failed, "):
        slots(variant)
    assert int(slots.control[SLOT]) == 1
    assert all(torch.equal(a, b) for a, b in zip(slots.committed, before, strict=True))
    output = slots(variant)
    assert_equal((output, *slots.committed), (call.in_place("packed", states), *states))


BAD_SLOTS = [
    ({"control": torch.zeros(8, dtype=torch.int32)}, r"control: got shape \[8\]; accepted: a cont"),
    ({"control": torch.zeros(16)}, "control: got dtype float32; accepted: dtype int32"),
    ({"conv_slots": torch.zeros(3, 1, 256, 4)}, r"conv_slots: got shape \[3, .*two slots: 4 dims"),
    ({"recurrent_slots": torch.zeros(2, 1, 4, 32)}, r"recurrent_slots: got shape .*: 5 dims"),
    (
        {"recurrent_slots": torch.zeros(1, 1, 4, 32, 32).expand(2, 1, 4, 32, 32)},
        "recurrent_slots: got memory shared with the other slot",
    ),
]


@pytest.mark.parametrize(("changes", "message"), BAD_SLOTS)
def test_bad_slots_are_named(changes, message):
    call = Call(Setting(BLOCK), torch.float32, 1, 1)
    with pytest.raises(ValueError, match=message):
        Slots(call)("mega", **changes)


def test_slots_need_a_persistent_variant():
    call = Call(Setting(BLOCK), torch.float32, 1, 1)
    with pytest.raises(ValueError, match="variant: got 'packed'; accepted: 'hybrid' or 'mega'"):
        Slots(call)("packed")


@pytest.mark.parametrize("variant", PERSISTENT)
def test_too_many_rows_are_refused_by_name(variant):
    call = Call(Setting(BLOCK), torch.float32, 1, 33)
    with pytest.raises(NotImplementedError, match=f"variant '{variant}' takes up to 32 rows .* 33"):
        call(variant)


def test_plans_of_failed_and_whole_calls_are_the_same():
    """The program that the op runs is the one that is explained."""
    call = Call(Setting(BLOCK, masked=True), torch.bfloat16, 1, 3)
    with host_kernels.running() as launches:
        call("mega")
    assert [launch.kernel for launch in launches] == [
        d.kernel for d in planned(call, "mega").dispatches
    ]
