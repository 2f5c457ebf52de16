"""Weights in the order in which a device's matrix unit takes them: logical <-> packed.

A weight [N, K] becomes tiles of 16 outputs x 16 k. A tile holds, for each of 32 lanes, eight
values in words of 16 bytes; the same words of all lanes are adjacent, so that a tile is one
contiguous load of a SIMD group (two for float32). Which values a lane holds is the lane map, a
property of the device and part of the format's name.

Inside a block of 32 k (two tiles) the order of k is permuted, so that a lane's activations for
both tiles are eight adjacent values of the plain row: fragment j of four, position c of eight, is
k = 8 * (c // 2) + 2 * j + c % 2.

N is padded with zero rows to a multiple of 16. K must be a multiple of 32: hidden sizes and value
widths of GDN layers are, and padding K would make the kernels read activations that do not exist.

The index functions are plain integer arithmetic and take ints, numpy arrays or integer tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

TILE = 16
BLOCK_K = 32
LANE_MAPS = ("apple", "nvidia")
FORMATS = {f"tiles16-{lanes}": lanes for lanes in LANE_MAPS}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# A temporary of pack() and unpack() holds at most this many elements, or one row of tiles.
CHUNK = 1 << 18


def format_name(lanes: str) -> str:
    """The weight_format for a lane map: "tiles16-apple" or "tiles16-nvidia"."""
    if lanes not in LANE_MAPS:
        raise ValueError(f"lanes: {lanes!r} is not a lane map; accepted: {', '.join(LANE_MAPS)}")
    return f"tiles16-{lanes}"


def lane_map(weight_format: str) -> str:
    """The lane map of a packed weight_format; ValueError for any other name."""
    if weight_format not in FORMATS:
        raise ValueError(
            f"weight_format: {weight_format!r} is not a packed format; accepted: "
            + ", ".join(FORMATS)
        )
    return FORMATS[weight_format]


def padded_rows(n: int) -> int:
    """N rounded up to whole tiles."""
    return -(-n // TILE) * TILE


def packed_numel(n: int, k: int) -> int:
    """Elements of the packed form of a weight [n, k], padding included."""
    return padded_rows(n) * k


def lane_value(n: Any, k: Any, lanes: str) -> tuple[Any, Any, Any]:
    """(tile 0..1, lane 0..31, value 0..7) of output n in 0..15, k in 0..31 of a block."""
    position = 2 * (k // 8) + k % 2
    fragment = (k % 8) // 2
    quarter = 2 * (fragment % 2) + n // 8
    if lanes == "nvidia":  # left operand of m16n8k16: a row, and two adjacent k
        lane, e = 4 * (n % 8) + position // 2, position % 2
    else:  # right operand of an 8x8 product: one k, and two adjacent outputs
        pair = n % 8 // 2
        lane = 16 * (position // 4) + 8 * (pair // 2) + 2 * (position % 4) + pair % 2
        e = n % 2
    return fragment // 2, lane, 2 * quarter + e


def lane_place(tile: Any, lane: Any, value: Any, lanes: str) -> tuple[Any, Any]:
    """(n 0..15, k 0..31) in a block: the inverse of `lane_value`."""
    quarter, e = value // 2, value % 2
    if lanes == "nvidia":
        n, position = lane // 4, 2 * (lane % 4) + e
    else:
        n = 4 * (lane // 8 % 2) + 2 * (lane % 2) + e
        position = 4 * (lane // 16) + lane // 2 % 4
    fragment = 2 * tile + quarter // 2
    return n + 8 * (quarter % 2), 8 * (position // 2) + 2 * fragment + position % 2


def packed_index(n: Any, k: Any, in_features: int, itemsize: int, lanes: str) -> Any:
    """Where element (n, k) of a weight [N, in_features] lies in its packed form."""
    tile, lane, value = lane_value(n % TILE, k % BLOCK_K, lanes)
    word = 16 // itemsize
    tile = n // TILE * (in_features // TILE) + k // BLOCK_K * 2 + tile
    return tile * 256 + value // word * (32 * word) + lane * word + value % word


def logical_index(i: Any, in_features: int, itemsize: int, lanes: str) -> tuple[Any, Any]:
    """(n, k) of packed element i: the inverse of `packed_index`; n may be a padded row."""
    word, tiles = 16 // itemsize, in_features // TILE
    tile, at = i // 256, i % 256
    value = at // (32 * word) * word + at % word
    n, k = lane_place(tile % 2, at % (32 * word) // word, value, lanes)
    return tile // tiles * TILE + n, tile % tiles // 2 * BLOCK_K + k


def _block_order(itemsize: int, lanes: str, device: torch.device) -> Tensor:
    """[512]: the element of a row-major 16 x 32 block that lies at each packed place."""
    n, k = logical_index(torch.arange(512, device=device), BLOCK_K, itemsize, lanes)
    return n * BLOCK_K + k


def _check(name: str, dtype: torch.dtype, k: int) -> None:
    if dtype not in DTYPES:
        raise ValueError(
            f"{name}: dtype {dtype} cannot be packed; accepted: float32, float16, bfloat16"
        )
    if k <= 0 or k % BLOCK_K:
        raise ValueError(
            f"{name}: {k} input features; packed formats need a positive multiple of {BLOCK_K}"
        )


def _rows(weights: Sequence[Tensor], start: int, stop: int) -> Tensor:
    """Rows [start, stop) of the weights one below the other, zero rows behind the last."""
    first = weights[0]
    out = first.new_zeros((stop - start, first.shape[1]))
    base = 0
    for weight in weights:
        low, high = max(start, base), min(stop, base + weight.shape[0])
        if low < high:
            out[low - start : high - start] = weight[low - base : high - base]
        base += weight.shape[0]
    return out


def _chunks(rows: int, k: int) -> range:
    return range(0, rows, max(TILE, CHUNK // k // TILE * TILE))


def check(weights: Sequence[Tensor], weight_format: str) -> None:
    """ValueError unless these weights can be packed one below the other in this format."""
    lane_map(weight_format)
    if not weights:
        raise ValueError("weights: an empty sequence; at least one weight is needed")
    first = weights[0]
    for i, weight in enumerate(weights):
        if weight.dim() != 2:
            raise ValueError(f"weights[{i}]: {weight.dim()} dimensions; accepted: [N, K]")
        _check(f"weights[{i}]", weight.dtype, weight.shape[1])
        for what in ("dtype", "device"):
            given, wanted = getattr(weight, what), getattr(first, what)
            if given != wanted:
                raise ValueError(f"weights[{i}]: {what} {given}; weights[0] has {wanted}")
        if weight.shape[1] != first.shape[1]:
            raise ValueError(
                f"weights[{i}]: {weight.shape[1]} input features; weights[0] has {first.shape[1]}"
            )


@torch.no_grad()
def pack(
    weights: Tensor | Sequence[Tensor], weight_format: str, *, out: Tensor | None = None
) -> Tensor:
    """Packs one weight [N, K], or several with the same K one below the other, as one operand.

    Returns a flat tensor of `packed_numel(N, K)` elements, same dtype and device. `out`, a
    contiguous tensor of that size, receives it; it may be the storage of the only weight, if
    N % 16 == 0 (rows of tiles are permuted in place). Beyond the result, memory for `CHUNK`
    elements or one row of tiles is used. ValueError for anything that is not accepted.
    """
    weights = [weights] if isinstance(weights, Tensor) else list(weights)
    check(weights, weight_format)
    lanes, first = lane_map(weight_format), weights[0]
    k = first.shape[1]
    rows = padded_rows(sum(weight.shape[0] for weight in weights))
    if out is None:
        out = first.new_empty(rows * k)
    if out.numel() != rows * k or out.dtype != first.dtype or not out.is_contiguous():
        raise ValueError(
            f"out: {out.numel()} elements of {out.dtype}; needed: {rows * k} contiguous of "
            f"{first.dtype}"
        )
    order = _block_order(first.element_size(), lanes, first.device)
    packed = out.view(rows // TILE, k // BLOCK_K, 512)
    chunks = _chunks(rows, k)
    for start in chunks:
        stop = min(start + chunks.step, rows)
        blocks = _rows(weights, start, stop).view(-1, TILE, k // BLOCK_K, BLOCK_K)
        blocks = blocks.transpose(1, 2).reshape(-1, k // BLOCK_K, 512)
        packed[start // TILE : stop // TILE] = blocks[..., order]
    return out


@torch.no_grad()
def unpack(
    packed: Tensor,
    weight_format: str,
    out_features: int,
    in_features: int,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """The weight [out_features, in_features] whose packed form this is: the inverse of `pack`.

    `out`, if given, receives it; it may be `packed` itself as [out_features, in_features], if
    out_features % 16 == 0 (rows of tiles are permuted in place).
    """
    lanes = lane_map(weight_format)
    _check("packed", packed.dtype, in_features)
    wanted = packed_numel(out_features, in_features)
    if packed.numel() != wanted or not packed.is_contiguous():
        raise ValueError(
            f"packed: {packed.numel()} elements; [{out_features}, {in_features}] packs to "
            f"{wanted} contiguous ones"
        )
    if out is None:
        out = packed.new_empty((out_features, in_features))
    if out.shape != (out_features, in_features) or out.dtype != packed.dtype:
        raise ValueError(
            f"out: {tuple(out.shape)} of {out.dtype}; needed: {(out_features, in_features)} of "
            f"{packed.dtype}"
        )
    order = torch.argsort(_block_order(packed.element_size(), lanes, packed.device))
    rows, steps = padded_rows(out_features), in_features // BLOCK_K
    blocks = packed.view(rows // TILE, steps, 512)
    chunks = _chunks(rows, in_features)
    for start in chunks:
        stop = min(start + chunks.step, rows)
        part = blocks[start // TILE : stop // TILE][..., order].view(-1, steps, TILE, BLOCK_K)
        part = part.transpose(1, 2).reshape(stop - start, in_features)
        kept = min(stop, out_features) - start
        out[start : start + kept] = part[:kept]
    return out
