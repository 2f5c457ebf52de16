"""`hybrid` and `mega` on the fake device: bits, slots, checked points, streams."""

from __future__ import annotations

from collections.abc import Iterator

import fake_device
import pytest
import torch
from cases import Shape, make_hidden, make_layer, make_states, pack_layer
from compare import assert_equal, run_layer, run_layer_in_place
from test_persistent_failures import BEGIN
from test_shader_devices import cpu, moved, on

from torch_mps_fusion import instrumented, ops, plan

SHAPE, BF16 = Shape(), torch.bfloat16
PERSISTENT = ("hybrid", "mega")
CONTROL_WORDS, SLOT, CANCEL = 16, 5, 6


@pytest.fixture
def fresh(mps: fake_device.Device) -> Iterator[fake_device.Device]:
    fake_device.load_extension()
    yield mps
    mps.set_stream(0)
    ops.check_launches("mps")


class Call:
    """A decode call: on the host by `packed`, on the fake device by a persistent variant."""

    def __init__(self, tokens: int = 2) -> None:
        self.layer = make_layer(SHAPE, BF16, input_norm=True)
        self.there = moved(self.layer, "mps")
        self.hidden = make_hidden(SHAPE, 1, tokens, BF16)
        self.states = make_states(SHAPE, 1, BF16)

    def expected(self, states: tuple | None = None) -> tuple:
        given = states or self.states
        return run_layer(pack_layer(self.layer), self.hidden, given, variant="packed")

    def slots(self) -> tuple:
        """Both states in two slots, the committed one first, and a control block."""
        conv, recurrent = self.states[0], self.states[1].transpose(-1, -2)
        slots = [torch.stack([t, torch.full_like(t, float("nan"))]) for t in (conv, recurrent)]
        control = torch.zeros(CONTROL_WORDS, dtype=torch.int32)
        return slots[0].to("mps"), slots[1].to("mps").transpose(-1, -2), control.to("mps")

    def on_slots(self, variant: str, slots: tuple) -> torch.Tensor:
        return torch.ops.mps_fusion.gdn_layer_slots_(
            self.hidden.to("mps"), *slots, *self.there.weights, self.there.input_norm_weight,
            None, **self.there.keywords, variant=variant,
        )  # fmt: skip

    def committed(self, slots: tuple) -> tuple:
        slot = int(slots[2].cpu()[SLOT])
        return slots[0].cpu()[slot], slots[1].transpose(-1, -2).cpu()[slot].transpose(-1, -2)


@pytest.mark.parametrize("variant", PERSISTENT)
def test_the_bits_of_packed_on_the_host(fresh, variant) -> None:
    call = Call()
    given = on("mps", call.states)
    got = run_layer(call.there, call.hidden.to("mps"), given, variant=variant)
    assert_equal(cpu(got), call.expected())
    output = run_layer_in_place(call.there, call.hidden.to("mps"), given, variant=variant)
    assert_equal(cpu((output, *given)), call.expected())
    ops.check_launches("mps")


@pytest.mark.parametrize("variant", PERSISTENT)
def test_slots_take_turns(fresh, variant) -> None:
    call = Call()
    slots, states = call.slots(), call.states
    for step in range(3):
        assert int(slots[2].cpu()[SLOT]) == step % 2
        output = call.on_slots(variant, slots)
        expected = call.expected(states)
        assert_equal((output.cpu(), *call.committed(slots)), expected)
        states = expected[1:]
    ops.check_launches("mps")


def test_the_instrumented_build(fresh) -> None:
    call = Call()
    keywords = call.there.keywords
    program = plan.plan_layer(
        call.hidden.to("meta"), *(w.to("meta") if isinstance(w, torch.Tensor) else
        [t.to("meta") for t in w] for w in call.there.weights),
        call.there.input_norm_weight.to("meta"), *(s.to("meta") for s in call.states), None,
        **keywords, variant="mega", device="M1 Max",
    )  # fmt: skip
    (dispatch,) = program.dispatches
    with instrumented.build():
        got = run_layer(call.there, call.hidden.to("mps"), on("mps", call.states), variant="mega")
    assert_equal(cpu(got), call.expected())
    found = instrumented.read(dispatch.tasks, "mps")
    assert all(t.drawn <= t.ready <= t.over for t in found.timed)
    assert {t.worker for t in found.timed} <= set(range(dispatch.tasks.workers))


def test_a_failed_launch_is_said_at_the_checked_point(fresh) -> None:
    """The caller's control block says why; the next call goes on from what is committed."""
    call = Call()
    slots = call.slots()
    slots[2][CANCEL] = 1
    call.on_slots("mega", slots)
    call.on_slots("mega", slots)  # encoded before anybody looked
    with pytest.raises(RuntimeError, match=r"launch failed: cancelled at task \d+ \("):
        ops.check_launches("mps")
    assert int(slots[2].cpu()[SLOT]) == 0
    output = call.on_slots("mega", slots)
    ops.check_launches("mps")
    assert_equal((output.cpu(), *call.committed(slots)), call.expected())


@pytest.mark.parametrize("slots", [False, True])
def test_a_launch_of_which_no_worker_runs_is_said(fresh, slots) -> None:
    call = Call()
    given = call.slots() if slots else on("mps", call.states)

    def run() -> None:
        if slots:
            call.on_slots("mega", given)
        else:
            run_layer_in_place(call.there, call.hidden.to("mps"), given, variant="mega")

    def check(expected: tuple) -> None:
        now = call.committed(given) if slots else cpu(given)
        assert all(torch.equal(a, b) for a, b in zip(now, expected, strict=True))

    run()
    ops.check_launches("mps")
    states = call.committed(given) if slots else cpu(given)
    text = fake_device.cross.generated().read_text()
    assert text.count(BEGIN) == 1
    fake_device.load_extension(shaders=text.replace(BEGIN, f"if (groups) return; {BEGIN}"))
    for count, message in ((1, "no worker of it ran"), (3, "no worker of 3 launches ran")):
        for _ in range(count):
            run()
        with pytest.raises(RuntimeError, match=f"launch failed: {message} to the end"):
            ops.check_launches("mps")
        ops.check_launches("mps")
    check(states)
    fake_device.load_extension()
    run()
    ops.check_launches("mps")
    check(call.expected(states)[1:])


def test_a_control_block_belongs_to_one_stream_at_a_time(fresh) -> None:
    call = Call()
    slots, others = call.slots(), call.slots()
    call.on_slots("mega", slots)
    before = torch.ops.mps_fusion._task_blocks("mps")
    fresh.set_stream(7)
    with pytest.raises(ValueError, match=r"control: got a block whose launches are on another str"):
        call.on_slots("mega", slots)
    call.on_slots("mega", others)  # counters of the program: each stream has its own
    after = torch.ops.mps_fusion._task_blocks("mps")
    assert len(after) == len(before) + 2 and int(after[-1].cpu()[0]) == 1
    ops.check_launches("mps")
    output = call.on_slots("mega", slots)
    states = call.expected()[1:]
    assert_equal((output.cpu(), *call.committed(slots)), call.expected(states))
