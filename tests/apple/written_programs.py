"""Programs of the shader tests, written down for fake_mps::encode and moved to "mps"."""

from __future__ import annotations

from dataclasses import dataclass, field

import abi
import torch
from program import Dispatch, Program
from torch import Tensor

from torch_mps_fusion import shaders
from torch_mps_fusion.metal_host import source

# Indices of the argument structs, by kernel (shaders/README.md): inline bytes.
INLINE = {
    "rms_norm": (3,),
    "projection": (5, 10),
    "conv": (5,),
    "qk_gates": (9,),
    "rule": (9,),
    "gated_norm": (5,),
    "core": (10,),
}


def constant_ids(family: str) -> dict[str, int]:
    text = shaders.flat_text(abi.SHADERS / f"{family}.metal")
    return {c.name: c.index for c in source.function_constants(text)}


@dataclass
class Written:
    """Lines of a program and the tensors that it names by number, each a view of an mps storage.

    `storages` has the device's copy and the host's bytes of each storage, so that results come
    back to where the host's program has them.
    """

    lines: list[str] = field(default_factory=list)
    buffers: list[Tensor] = field(default_factory=list)
    storages: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def buffer(self, host: Tensor) -> int:
        """The number of a tensor of bytes."""
        storage = host.untyped_storage()
        key = storage.data_ptr()
        if key not in self.storages:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            self.storages[key] = (whole.to("mps"), whole)
        begin = host.storage_offset()
        self.buffers.append(self.storages[key][0][begin : begin + host.numel()])
        return len(self.buffers) - 1

    def add(self, d: Dispatch, barrier: bool = True) -> None:
        ids = constant_ids(d.family)
        constants = " ".join(f"{ids[name]}={value}" for name, value in d.constants.items())
        self.lines += ["barrier"] if barrier else []
        self.lines.append(f"kernel {d.family} {d.kernel} {constants}")
        for index, host in enumerate(d.buffers):
            if index in INLINE[d.family]:
                self.lines.append(f"bytes {index} {bytes(host.numpy()).hex()}")
            else:
                self.lines.append(f"buffer {index} {self.buffer(host)}")
        grid = (*d.grid, 1, 1)[:3]
        self.lines.append(f"dispatch {grid[0]} {grid[1]} {grid[2]} {d.threads}")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def encode(self) -> None:
        torch.ops.fake_mps.encode(self.text, self.buffers)

    def fetch(self) -> None:
        """Brings every storage back to the host's."""
        for device, host in self.storages.values():
            host.copy_(device)


def write(program: Program) -> Written:
    """All dispatches of a program, a barrier before each but the first."""
    written = Written()
    for i, dispatch in enumerate(program.dispatches):
        written.add(dispatch, barrier=i > 0)
    return written
