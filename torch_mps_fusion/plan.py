"""What the planner makes, as Python sees it: programs as dataclasses, and back to text.

Nothing here runs a kernel. `plan_layer` and `plan_linear` need only shapes: tensors may be on the
meta device.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import _C  # noqa: F401  (its import registers the ops)

ROLES = ("weight", "state", "activation", "scratch", "control", "unused")
TASK_STAGES = ("in_proj", "head", "conv_state", "out_proj", "gated_norm")


@dataclass
class Buffer:
    """Memory of a program. Buffers with one `storage` share it; `given`: holds something before."""

    name: str
    storage: int
    bytes: int
    role: str
    given: bool


@dataclass
class View:
    """A buffer as a dispatch binds it. `read`, `written`: bytes, each once (weights once a pass);
    `access`: none, read, write or read_write; the dispatch stays in [offset, offset + extent)."""

    index: int
    buffer: int
    access: str
    offset: int
    extent: int
    read: int
    written: int


@dataclass
class Task:
    """A record of a persistent dispatch, shaders/include/tasks.h: `stage` is one of TASK_STAGES;
    waits and signals are pairs (counter, count)."""

    stage: str
    tile: int
    part: int
    first_wait: int
    n_waits: int
    first_signal: int
    n_signals: int


@dataclass
class Touch:
    """Bytes of a buffer that a task reads or writes: `rows` runs of `bytes`, `pitch` apart, behind
    one of its waits (or all: -1)."""

    task: int
    buffer: int
    access: str
    wait: int
    offset: int
    rows: int
    pitch: int
    bytes: int


@dataclass
class Tasks:
    """The program of a persistent dispatch, in ticket order. `times_us`: of each task, by estimate
    (csrc/plan/task_times.h)."""

    counters: int
    workers: int
    records: list[Task] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    touches: list[Touch] = field(default_factory=list)
    times_us: list[float] = field(default_factory=list)

    def waits(self, task: Task) -> list[tuple[int, int]]:
        """(counter, count) of each wait; a count of 0 is none."""
        return self.edges[task.first_wait : task.first_wait + task.n_waits]

    def signals(self, task: Task) -> list[tuple[int, int]]:
        """(counter, what is added to it) of each signal."""
        return self.edges[task.first_signal : task.first_signal + task.n_signals]

    def table(self) -> bytes:
        """What the kernel reads: TaskRecord and TaskEdge of shaders/include/tasks.h."""
        words = [
            word
            for r in self.records
            for word in (
                TASK_STAGES.index(r.stage), r.tile, r.part, r.first_wait, r.n_waits,
                r.first_signal, r.n_signals, 0,
            )
        ]  # fmt: skip
        words += [word for edge in self.edges for word in edge]
        return struct.pack(f"={len(words)}I", *words)

    def lines(self) -> list[str]:
        """Their lines of a listing."""
        return (
            [f"tasks {self.counters} {self.workers}"]
            + [
                f"task {TASK_STAGES.index(r.stage)} {r.tile} {r.part} {r.first_wait} {r.n_waits} "
                f"{r.first_signal} {r.n_signals}"
                for r in self.records
            ]
            + [f"edge {counter} {count}" for counter, count in self.edges]
            + [
                f"touch {t.task} {t.buffer} {t.access} {t.wait} {t.offset} {t.rows} {t.pitch} "
                f"{t.bytes}"
                for t in self.touches
            ]
            + [f"time {us:g}" for us in self.times_us]
        )


@dataclass
class Dispatch:
    """A kernel launch, or a matrix product of aten (`product`)."""

    stage: str
    family: str
    kernel: str
    grid: tuple[int, int, int]
    threads: int
    threadgroup_bytes: int
    barrier: bool
    product: bool
    estimate_us: float
    constants: dict[int, int] = field(default_factory=dict)
    arguments: list[View | tuple[int, bytes]] = field(default_factory=list)
    tasks: Tasks | None = None

    @property
    def views(self) -> list[View]:
        return [a for a in self.arguments if isinstance(a, View)]

    @property
    def bytes(self) -> int:
        """Read and written, each byte once (weights once a pass of eight rows)."""
        return sum(v.read + v.written for v in self.views)


@dataclass
class Program:
    """A list of dispatches over buffers; `minimum_bytes` is what any implementation moves;
    `overlap`: a dispatch may start before those in front of it are done, and waits itself."""

    buffers: list[Buffer]
    dispatches: list[Dispatch]
    calls: str = ""
    minimum_bytes: int = 0
    overlap: bool = False

    @property
    def tables(self) -> dict[str, bytes]:
        """The contents of buffers that the op fills itself, by name."""
        found = [d.tasks.table() for d in self.dispatches if d.tasks]
        return {"tasks": found[0]} if found else {}

    @property
    def kernels(self) -> list[Dispatch]:
        return [d for d in self.dispatches if not d.product]

    @property
    def bytes(self) -> int:
        return sum(d.bytes for d in self.dispatches)

    def bytes_by_role(self, dispatch: Dispatch) -> dict[str, int]:
        """Bytes of one dispatch by the role of the buffer."""
        found = dict.fromkeys(ROLES, 0)
        for v in dispatch.views:
            found[self.buffers[v.buffer].role] += v.read + v.written
        return found

    def listing(self) -> str:
        """The text that `parse` reads."""
        lines = ["overlap"] if self.overlap else []
        lines += [
            f"buffer {b.name} {b.storage} {b.bytes} {b.role} {int(b.given)}" for b in self.buffers
        ]
        for d in self.dispatches:
            x, y, z = d.grid
            lines.append(
                f"dispatch {d.stage} {d.family} {d.kernel} {x} {y} {z} {d.threads} "
                f"{d.threadgroup_bytes} {int(d.barrier)} {int(d.product)} {d.estimate_us}"
            )
            lines += [f"constant {i} {v}" for i, v in d.constants.items()]
            for a in d.arguments:
                if isinstance(a, View):
                    lines.append(
                        f"view {a.index} {a.buffer} {a.access} {a.offset} {a.extent} {a.read} "
                        f"{a.written}"
                    )
                else:
                    lines.append(f"bytes {a[0]} {a[1].hex()}")
            if d.tasks is not None:
                lines += d.tasks.lines()
        return "\n".join(lines) + "\n"

    def faults(self) -> list[str]:
        """What the checker finds: missing barriers, reads of what nobody wrote, bounds."""
        return torch.ops.mps_fusion._check_program(self.listing()).splitlines()


def parse(listing: str) -> Program:
    """The program of a listing (csrc/plan/listing.h says what its lines are)."""
    program = Program([], [])
    for line in listing.splitlines():
        kind, *words = line.split()
        if kind == "overlap":
            program.overlap = True
        elif kind == "buffer":
            name, storage, size, role, given = words
            program.buffers.append(Buffer(name, int(storage), int(size), role, given == "1"))
        elif kind == "dispatch":
            stage, family, kernel, x, y, z, threads, memory, barrier, product, estimate = words
            program.dispatches.append(
                Dispatch(
                    stage,
                    family,
                    kernel,
                    (int(x), int(y), int(z)),
                    int(threads),
                    int(memory),
                    barrier == "1",
                    product == "1",
                    float(estimate),
                )
            )
        elif kind == "constant":
            program.dispatches[-1].constants[int(words[0])] = int(words[1])
        elif kind == "view":
            index, buffer, access, *rest = words
            offset, extent, read, written = map(int, rest)
            program.dispatches[-1].arguments.append(
                View(int(index), int(buffer), access, offset, extent, read, written)
            )
        elif kind == "bytes":
            program.dispatches[-1].arguments.append((int(words[0]), bytes.fromhex(words[1])))
        elif kind == "tasks":
            tasks = Tasks(int(words[0]), int(words[1]))
            program.dispatches[-1].tasks = tasks
        elif kind == "task":
            tasks.records.append(Task(TASK_STAGES[int(words[0])], *map(int, words[1:])))
        elif kind == "edge":
            tasks.edges.append((int(words[0]), int(words[1])))
        elif kind == "touch":
            task, buffer, access, *rest = words
            tasks.touches.append(Touch(int(task), int(buffer), access, *map(int, rest)))
        elif kind == "time":
            tasks.times_us.append(float(words[0]))
        else:
            raise ValueError(f"listing: {line!r} is no line of a program")
    return program


def chunks(batch: int, tokens: int, device: str) -> list[tuple[int, int]]:
    """Batch and tokens of each chunk that a call runs as: one, up to the device's `chunk_rows`."""
    lines = torch.ops.mps_fusion._chunks(batch, tokens, device=device).splitlines()
    return [(int(b), int(t)) for b, t in map(str.split, lines)]


def plan_layer(*arguments: Any, **keywords: Any) -> Program:
    """The program of a `gdn_layer` call as one chunk: its arguments, and besides

    device: a name of `device.names()`, changes behind it: "M1 Max;cores=24;row_threshold=8".
    geometry: launch geometry by hand: ";tile=nt1u4;groups=3;rule=r2s4;core=r4;block=8".
    in_place: plan `gdn_layer_`. own_norm: the input norm is a dispatch of its own.
    """
    listing, calls, minimum = torch.ops.mps_fusion._plan_layer(*arguments, **keywords)
    program = parse(listing)
    program.calls, program.minimum_bytes = calls, minimum
    return program


def plan_linear(
    rows: int,
    in_features: int,
    out_features: int,
    dtype: torch.dtype,
    *,
    device: str,
    geometry: str = "",
) -> Program:
    """The program that `packed_linear` would run."""
    listing, calls = torch.ops.mps_fusion._plan_linear(
        rows, in_features, out_features, dtype, device=device, geometry=geometry
    )
    program = parse(listing)
    program.calls = calls
    return program


def meta_layer(
    *,
    batch: int,
    tokens: int,
    hidden_size: int,
    num_k_heads: int,
    num_v_heads: int,
    head_k_dim: int,
    head_v_dim: int,
    conv_width: int,
    dtype: torch.dtype,
    weight_format: str,
    input_norm: bool = True,
    states: bool = True,
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Arguments of `plan_layer` for a shape, on the meta device: no memory is needed."""
    from .packing import packed_numel

    key_dim, value_dim = num_k_heads * head_k_dim, num_v_heads * head_v_dim
    conv_dim = 2 * key_dim + value_dim
    rows = conv_dim + value_dim + 2 * num_v_heads

    def empty(*size: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device="meta")

    heads = (batch, num_v_heads, head_v_dim, head_k_dim)
    recurrent = empty(*heads, dtype=torch.float32).transpose(-1, -2)
    arguments = (
        empty(batch, tokens, hidden_size),
        [empty(packed_numel(rows, hidden_size))],
        empty(conv_dim, conv_width),
        empty(num_v_heads),
        empty(num_v_heads),
        empty(head_v_dim),
        [empty(packed_numel(hidden_size, value_dim))],
        empty(hidden_size) if input_norm else None,
        empty(batch, conv_dim, conv_width) if states else None,
        recurrent if states else None,
        None,
    )
    keywords = {
        "num_k_heads": num_k_heads,
        "num_v_heads": num_v_heads,
        "head_k_dim": head_k_dim,
        "head_v_dim": head_v_dim,
        "head_map": "block",
        "weight_format": weight_format,
    }
    return arguments, keywords
