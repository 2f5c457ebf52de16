"""Every fence, barrier, flag and `coherent` of the persistent kernel is needed.

python -m pytest -m long tests/test_persistent_mutants.py
"""

import struct

import pytest
import torch
from compare import assert_equal
from settings import BLOCK, Setting
from test_persistent_variants import Call, planned

from torch_mps_fusion import host_kernels, plan, shaders
from torch_mps_fusion.metal_host import CompileError, FaultError, Library, source
from torch_mps_fusion.metal_host.mutate import hunt, mutants

WAYS = (
    {"seed": 1, "schedule": "random"},
    {"seed": 2, "schedule": "random", "residency": 2, "preempt": 20},
    {"seed": 3, "schedule": "reverse"},
)

# What stays although no run can tell that it was taken away, and why.
EXPLAINED: dict[str, str] = {}


def tables(tasks):
    """Records and edges as the kernel reads them."""
    words = []
    for r in tasks.records:
        words += [plan.TASK_STAGES.index(r.stage), r.tile, r.part]
        words += [r.first_wait, r.n_waits, r.first_signal, r.n_signals, 0]
    return struct.pack(f"<{len(words)}I", *words) + b"".join(
        struct.pack("<2I", *edge) for edge in tasks.edges
    )


def memory(call, program):
    """Tensors of the program's buffers by name: bytes, fresh ones zero."""
    case, layer = call.case, call.layer
    given = {
        "hidden": case.hidden,
        "in_proj": layer.in_proj[0],
        "out_proj": layer.out_proj[0],
        "conv_weight": layer.conv_weight,
        "A_log": layer.A_log,
        "dt_bias": layer.dt_bias,
        "norm_weight": layer.norm_weight,
        "input_norm_weight": layer.input_norm_weight,
        "mask": case.mask,
        "conv_in": call.states[0],
        "state_in": call.states[1].transpose(-1, -2),
    }
    found = {}
    for b in program.buffers:
        found[b.name] = torch.zeros(b.bytes, dtype=torch.uint8)
        if given.get(b.name) is not None:
            found[b.name].copy_(given[b.name].contiguous().flatten().view(torch.uint8))
    (tasks,) = [d.tasks for d in program.dispatches if d.tasks]
    found["tasks"] = torch.frombuffer(bytearray(tables(tasks)), dtype=torch.uint8)
    return found


def launch(call, program, library, **way):
    """`mega` in this library; output, conv state and recurrent state."""
    (d,) = program.dispatches
    held = memory(call, program)
    buffers = [
        memoryview(held[program.buffers[a.buffer].name].numpy())[a.offset :]
        if isinstance(a, plan.View)
        else a[1]
        for a in d.arguments
    ]
    library.kernel(d.kernel)(d.grid[0], d.threads, buffers, **way)
    conv, recurrent = call.states
    return (
        held["output"].view(call.case.hidden.dtype).view(call.case.hidden.shape),
        held["conv_out"].view(conv.dtype).view(conv.shape),
        held["state_out"].view(torch.float32).view(recurrent.mT.shape).mT,
    )


@pytest.mark.long
def test_every_mutant_is_caught(tmp_path):
    path = tmp_path / "persistent.metal"
    path.write_text(host_kernels.text("persistent"))
    call = Call(Setting(BLOCK, masked=True), torch.bfloat16, 1, 9)
    packed, program = call("packed"), planned(call, "mega", ";spins=30000")
    (d,) = program.dispatches
    values = {
        c.index: d.constants.get(c.index, 0) for c in source.function_constants(path.read_text())
    }

    def judge(mutant):
        text = (
            path
            if mutant is None
            else mutant.write(tmp_path / mutant.id.replace("/", "_").replace("#", "_"), path)
        )
        try:
            library = Library(text, values, True, defines=shaders.defines(d.kernel))
            for way in WAYS:
                assert_equal(launch(call, program, library, **way), packed)
        except (FaultError, CompileError, AssertionError) as fault:
            return f"{type(fault).__name__}: {fault}"
        return None

    assert judge(None) is None
    report = hunt(mutants(path), judge, EXPLAINED)
    assert report.caught and not report.survivors and not report.stale, report
