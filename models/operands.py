"""The projections of a layer as packed operands, in place: one copy of the weights at any time.

The rows of an operand's projections lie one below the other in one buffer that is padded to whole
tiles, so that packing only permutes rows of tiles where they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_mps_fusion import packing
from torch_mps_fusion.models.names import OUT_PROJECTION, SPLIT_PROJECTIONS

# Parameter name of the packed operand -> the projections whose rows it holds, in order.
OPERANDS = {"in_proj_packed": SPLIT_PROJECTIONS, "out_proj_packed": (OUT_PROJECTION,)}


def new_buffer(
    rows: Sequence[int], columns: int, dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Views [n, columns] for each n of ``rows``, adjacent in one buffer with zero rows behind."""
    total = sum(rows)
    buffer = torch.empty(packing.padded_rows(total), columns, dtype=dtype, device=device)
    buffer[total:].zero_()
    return list(buffer[:total].split(list(rows)))


def join(weights: Sequence[Tensor]) -> list[Tensor]:
    """The weights [n, K] as adjacent views of one buffer; a copy unless they are that already."""
    if shared_buffer(weights) is not None:
        return list(weights)
    first = weights[0]
    views = new_buffer([len(w) for w in weights], first.shape[1], first.dtype, first.device)
    for view, weight in zip(views, weights, strict=True):
        view.copy_(weight)
    return views


def shared_buffer(weights: Sequence[Tensor]) -> Tensor | None:
    """The padded buffer [padded rows, K] whose adjacent views the weights are, or None."""
    first = weights[0]
    columns, offset = first.shape[1], first.storage_offset()
    for weight in weights:
        adjacent = (
            weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
            and weight.storage_offset() == offset
            and weight.is_contiguous()
        )
        if not adjacent:
            return None
        offset += weight.numel()
    padded = packing.padded_rows(sum(len(w) for w in weights))
    available = first.untyped_storage().nbytes() // first.element_size() - first.storage_offset()
    if padded * columns > available:
        return None
    return first.as_strided((padded, columns), (columns, 1), first.storage_offset())


def pack_in_place(weights: Sequence[Tensor], weight_format: str) -> Tensor:
    """The packed operand of weights from ``join``, in their own memory: they are rows no more."""
    buffer = shared_buffer(weights)
    if buffer is None:
        raise ValueError("weights: not adjacent views of one padded buffer; see join")
    return packing.pack(buffer, weight_format, out=buffer.view(-1))


def unpack_in_place(packed: Tensor, weight_format: str, shapes: Sequence[tuple]) -> list[Tensor]:
    """The weights of ``shapes`` back out of their packed operand, in its memory."""
    rows, columns = [shape[0] for shape in shapes], shapes[0][1]
    buffer = packed.view(-1, columns)
    packing.unpack(packed, weight_format, len(buffer), columns, out=buffer)
    return list(buffer[: sum(rows)].split(rows))
