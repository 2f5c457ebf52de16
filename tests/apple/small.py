"""The smallest programs that show something: one or two kernels of a few threads."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

NORM = "tmf_rms_norm_f32_f32_n256__group"
K = 256


def norm_args(rows: int = 1) -> bytes:
    """ProjectionArgs of the row norm."""
    return struct.pack("<8If3I", K, 0, 0, rows, K, K, 0, 0, 1e-6, 0, 0, 0)


def norm_line(args: bytes | None = None) -> str:
    return f"bytes 3 {(norm_args() if args is None else args).hex()}"


def norm_lines(x: int = 0, weight: int = 1, y: int = 2, threads: int = 256) -> list[str]:
    """The row norm over buffers by number."""
    return [
        f"kernel rms_norm {NORM}",
        f"buffer 0 {x}",
        f"buffer 1 {weight}",
        f"buffer 2 {y}",
        norm_line(),
        f"dispatch 1 1 1 {threads}",
    ]


def twice() -> list[str]:
    """The row norm of its own result: the second reads what the first writes."""
    return [*norm_lines(), "barrier", *norm_lines(2, 1, 3)]


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """What the row norm gives."""
    return x * torch.rsqrt(x.square().mean() + 1e-6) * (1 + weight)


def tensors(count: int = 4, offset: int = 0) -> list[Tensor]:
    """Rows on "mps", each `offset` elements into its storage."""
    made = []
    for i in range(count):
        whole = torch.empty(K + offset, device="mps")
        whole.copy_(torch.arange(K + offset) / 100 + i)
        made.append(whole[offset:])
    return made


def encode(lines: list[str], buffers: list[Tensor]) -> None:
    torch.ops.fake_mps.encode("\n".join(lines), buffers)
