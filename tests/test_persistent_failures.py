"""How persistent launches end when something is wrong: one error that says what, the committed
states whole, and a next call that works."""

import re
from dataclasses import dataclass

import abi
import pytest
import torch
from compare import assert_equal
from settings import BLOCK, Setting
from test_persistent_variants import PERSISTENT, Call, geometry, planned

from torch_mps_fusion import host_kernels, ops, state

# Words of shaders/include/tasks.h; test_task_words compares them.
EPOCH, BROKEN, FIRST, STRIDE = 0, 3, 8, 8
STATUS, TASK, COUNTER, EXPECTED, SEEN, SLOT, CANCEL = range(7)
WORDS = 16
BEGIN = "const uint workers = kTimes ? groups - 1 : groups;"  # of the kernel's body


def epochs():
    return [int(block[EPOCH]) for block in torch.ops.mps_fusion._task_blocks("cpu")[1::2]]


@dataclass
class Fresh:
    """A call in place, the blocks of its program, and what it gives when nothing is wrong."""

    call: Call
    variant: str
    expected: tuple[torch.Tensor, ...]
    control: torch.Tensor
    counters: torch.Tensor

    def fails(self, message):
        """The call raises this and leaves the states alone."""
        states = tuple(s.clone() for s in self.call.states)
        with pytest.raises(RuntimeError, match=message) as raised:
            self.call.in_place(self.variant, states)
        assert f"gdn_layer_: variant '{self.variant}' failed" in str(raised.value)
        self.unchanged(states)
        return str(raised.value)

    def unchanged(self, states):
        for now, before in zip(states, self.call.states, strict=True):
            assert torch.equal(now, before), "a failed call changed a state"

    def works(self):
        states = tuple(s.clone() for s in self.call.states)
        assert_equal((self.call.in_place(self.variant, states), *states), self.expected)

    def ends(self, message):
        """The call works, or raises this and leaves the states alone; whether it worked."""
        states = tuple(s.clone() for s in self.call.states)
        try:
            output = self.call.in_place(self.variant, states)
        except RuntimeError as error:
            assert re.search(message, str(error))
            self.unchanged(states)
            return False
        assert_equal((output, *states), self.expected)
        return True


@pytest.fixture(params=PERSISTENT)
def fresh(request):
    call = Call(Setting(BLOCK, masked=True), torch.bfloat16, 1, 3)
    with geometry(";spins=2000"):
        states = tuple(s.clone() for s in call.states)
        call.in_place(request.param, states)
        before, expected = epochs(), tuple(s.clone() for s in call.states)
        output = call.in_place(request.param, expected)
        after = epochs()
        (which,) = (i for i, e in enumerate(after) if e != before[i])
        blocks = torch.ops.mps_fusion._task_blocks("cpu")[2 * which : 2 * which + 2]
        blocks[1].zero_()  # as new
        yield Fresh(call, request.param, (output, *expected), *blocks)


EXPIRED = "waited too long for counter"


def test_a_signal_that_is_missing(fresh):
    """Injected: a counter that lags by one. Its consumer says which it was."""
    fresh.works()
    tasks = next(d.tasks for d in planned(fresh.call, fresh.variant).dispatches if d.tasks)
    counter = tasks.waits(tasks.records[-1])[-1][0]  # an output tile's: nobody waits for that
    fresh.counters[FIRST + STRIDE * counter] -= 1
    text = fresh.fails(rf"{EXPIRED} {counter}: expected \d+, seen \d+")
    expected, seen = map(int, re.search(r"expected (\d+), seen (\d+)", text).groups())
    assert seen == expected - 1
    fresh.works()


def test_cancelled(fresh):
    fresh.control[CANCEL] = 1
    fresh.fails(r"cancelled at task \d+ \(")
    fresh.works()


def test_a_block_that_was_not_cleared(fresh):
    fresh.counters[BROKEN] = 1
    fresh.fails("an earlier launch failed and was not cleared")
    fresh.works()


def test_a_lost_worker(fresh):
    """A worker that stops for good anywhere, with a task or without one."""
    lost = 0
    for seed in range(8):
        with host_kernels.running(lost=1, seed=seed, schedule="random") as launches:
            worked = fresh.ends(f"{EXPIRED}|a worker did not finish")
        missing = any(launch.result.lost for launch in launches if launch.family == "persistent")
        assert worked == (not missing)
        lost += missing
        fresh.works()
    assert lost > 2


def test_no_worker_starts(fresh):
    """Nothing is written then: the count of launches tells."""
    fresh.works()
    flat = host_kernels.text("persistent")
    assert flat.count(BEGIN) == 1
    with host_kernels.replaced("persistent", flat.replace(BEGIN, f"if (groups) return; {BEGIN}")):
        fresh.fails("no worker of it ran to the end")
    fresh.works()


def test_starved_workers(fresh):
    """What has started does not run while others can: waits end, the grid drains."""
    worked = 0
    for seed in range(8):
        with host_kernels.running(schedule="unfair", seed=seed, spin_limit=10**7):
            worked += fresh.ends(EXPIRED)
        fresh.works()
    assert worked < 8


@pytest.mark.parametrize("epoch", [2**31 - 2, 2**32 - 2])
def test_epochs_wrap_around(fresh, epoch):
    fresh.works()
    once = fresh.counters.to(torch.int64) & 0xFFFFFFFF  # what one launch leaves
    assert once[EPOCH] == 1
    wrapped = (once * epoch) & 0xFFFFFFFF
    fresh.counters.copy_(torch.where(wrapped >= 2**31, wrapped - 2**32, wrapped))
    for _ in range(4):
        fresh.works()
    assert int(fresh.counters[EPOCH]) & 0xFFFFFFFF == (epoch + 4) % 2**32


def test_the_checked_point_of_devices(fresh):
    fresh.works()
    ops.check_launches("cpu")
    fresh.control[STATUS], fresh.control[TASK], fresh.counters[BROKEN] = 1, 0, 1
    fresh.control[COUNTER], fresh.control[EXPECTED], fresh.control[SEEN] = 5, 8, 7
    with pytest.raises(RuntimeError, match=r"task 0 \(.*counter 5: expected 8, seen 7"):
        ops.check_launches("cpu")
    ops.check_launches("cpu")
    fresh.works()
    fresh.counters[BROKEN] = 1  # as a launch with a control block of the caller's leaves it
    with pytest.raises(RuntimeError, match="one with slots; its control block says why"):
        ops.check_launches("cpu")
    ops.check_launches("cpu")
    fresh.works()


def test_task_words():
    """The words above are those of the shaders."""
    words = {n: int(v) for n, v in re.findall(r"k(C\w+) = (\d+)", abi.headers())}
    for name in ("EPOCH", "BROKEN", "FIRST", "STRIDE"):
        assert words["Counter" + name.capitalize()] == globals()[name]
    for name in ("STATUS", "TASK", "COUNTER", "EXPECTED", "SEEN", "SLOT", "CANCEL", "WORDS"):
        assert words["Control" + name.capitalize()] == globals()[name]
    assert (state.CONTROL_WORDS, state.SLOT_WORD) == (WORDS, SLOT)


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


FAULTS = {
    "cancelled": {},
    "lost": {"lost": 1, "seed": 1, "schedule": "random"},
    "starved": {"schedule": "unfair", "seed": 1, "spin_limit": 10**7},
}


@pytest.mark.parametrize("variant", PERSISTENT)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_call_leaves_the_committed_slot(variant, fault):
    call = Call(Setting(BLOCK, masked=True), torch.bfloat16, 1, 3)
    slots, states = Slots(call), tuple(s.clone() for s in call.states)
    slots(variant)
    call.in_place("packed", states)
    before = tuple(s.clone() for s in slots.committed)
    slots.control[CANCEL] = fault == "cancelled"
    with (
        geometry(";spins=2000"),
        host_kernels.running(**FAULTS[fault]),
        pytest.raises(RuntimeError, match="failed, "),
    ):
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
