"""What csrc/plan/touches.cpp says that a task touches is what the kernel does: one task at a time
in metal_host, byte by byte."""

import struct

import numpy as np
import pytest
import torch

from torch_mps_fusion import host_kernels, plan

CROSSING = ("Y", "O", "G")  # what tasks hand to each other
MADE = ("Y", "conv_out", "state_out", "G", "output")
# batch, tokens, hidden, Hk, Hv, Dk, Dv: tokens of a pass in two sequences; a ragged last tile and
# block of channels, two passes
SHAPES = {"short": (2, 2, 64, 1, 2, 32, 32), "ragged": (3, 3, 96, 2, 6, 32, 32)}
QUIET_NAN = 0x7FC0  # bfloat16


def program_of(shape: tuple[int, ...]) -> plan.Program:
    batch, tokens, hidden, k_heads, v_heads, k_dim, v_dim = shape
    arguments, keywords = plan.meta_layer(
        batch=batch, tokens=tokens, hidden_size=hidden, num_k_heads=k_heads, num_v_heads=v_heads,
        head_k_dim=k_dim, head_v_dim=v_dim, conv_width=4, dtype=torch.bfloat16,
        weight_format="tiles16-apple",
    )  # fmt: skip
    return plan.plan_layer(
        *arguments, **keywords, variant="mega", device="host", geometry=";workers=1"
    )


def numbers(buffer: plan.Buffer) -> np.ndarray:
    """Bytes of small random values: float32 for recurrent states, bfloat16 for all else."""
    generator = torch.Generator().manual_seed(hash_of(buffer.name))
    dtype = torch.float32 if buffer.name.startswith("state") else torch.bfloat16
    size = -(-buffer.bytes // dtype.itemsize)
    values = 0.5 * torch.randn(size, generator=generator).to(dtype)
    return values.view(torch.uint8).numpy()[: buffer.bytes].copy()


def hash_of(name: str) -> int:
    return sum(name.encode())


def bytes_of(touches: list[plan.Touch], size: int) -> np.ndarray:
    """Which bytes of a buffer are touched."""
    mask = np.zeros(size, bool)
    for t in touches:
        rows = t.offset + t.pitch * np.arange(t.rows)[:, None]
        mask[rows + np.arange(t.bytes)] = True
    return mask


class Alone:
    """A launch of one task of a program, whose waits are all met."""

    def __init__(self, program: plan.Program, ticket: int):
        (d,) = program.dispatches
        r = d.tasks.records[ticket]
        stage = plan.TASK_STAGES.index(r.stage)
        record = struct.pack("<8I", stage, r.tile, r.part, 0, r.n_waits, 0, 0, 0)
        edges = bytes(8 * max(r.n_waits, 1))
        self.memory = {b.name: numbers(b) for b in program.buffers}
        for name in ("counters", "control"):
            self.memory[name][:] = 0
        self.touched = {
            (name, access): bytes_of(
                [
                    t
                    for t in d.tasks.touches
                    if t.task == ticket
                    and t.access == access
                    and program.buffers[t.buffer].name == name
                ],
                program.buffers[number].bytes,
            )
            for number, name in enumerate(b.name for b in program.buffers)
            for access in ("read", "write")
        }
        # What the task does not read, nobody can have read without a trace.
        for name in CROSSING:
            hidden = ~self.touched[name, "read"]
            self.memory[name].view(np.uint16)[hidden[::2]] = QUIET_NAN
        self.before = {name: data.copy() for name, data in self.memory.items()}
        arguments = []
        for a in d.arguments:
            if not isinstance(a, plan.View):
                index, data = a
                one = struct.pack("<I", 1) + data[4:]
                arguments.append(one if index == d.arguments[-1][0] else data)
            elif program.buffers[a.buffer].name == "tasks":
                arguments.append(record if a.offset == 0 else edges)
            else:
                data = self.memory[program.buffers[a.buffer].name]
                arguments.append(memoryview(data[a.offset :]))
        # What an instrumented build would write.
        arguments += [memoryview(bytearray(16)) for _ in ("times", "waits")]
        constants = ",".join(f"{i}={v}" for i, v in d.constants.items())
        kernel = host_kernels.kernel(d.family, d.kernel, constants, checked=True)
        self.counted = kernel(1, d.threads, arguments).buffers

    def changed(self, name: str) -> np.ndarray:
        return self.memory[name] != self.before[name]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_task_touches_what_is_said_of_it(shape):
    program = program_of(SHAPES[shape])
    (d,) = program.dispatches
    seen, stages = set(), set()
    for ticket, r in enumerate(d.tasks.records):
        first_or_last = (r.stage, r.tile in (0, last_tile(d.tasks, r.stage)), r.part)
        if first_or_last in seen:
            continue  # tasks in the middle are like each other
        seen.add(first_or_last)
        stages.add(r.stage)
        run = Alone(program, ticket)
        for name in MADE:
            counted, what = run.counted[name], (name, r)
            read, written = run.touched[name, "read"], run.touched[name, "write"]
            assert counted.read_distinct == read.sum(), what
            assert counted.written == counted.written_distinct == written.sum(), what
            assert not (run.changed(name) & ~written).any(), what
            made = run.memory[name][written].view(np.float32 if name == "state_out" else np.uint16)
            finite = np.isfinite(made) if name == "state_out" else (made & 0x7F80) != 0x7F80
            assert finite.all(), what
    assert stages == set(plan.TASK_STAGES)


def last_tile(tasks: plan.Tasks, stage: str) -> int:
    return max(r.tile for r in tasks.records if r.stage == stage)
