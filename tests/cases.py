"""Layers and inputs that the op tests share: seeded, any shape, dtype and layout."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torch_mps_fusion import packing

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HEAD_MAPS = ("block", "tiled")
CPU_VARIANTS = ("stock", "native")  # on weights in rows


@dataclass(frozen=True)
class Shape:
    """Dimensions of one layer."""

    hidden: int = 96
    num_k_heads: int = 2
    num_v_heads: int = 4
    head_k_dim: int = 32
    head_v_dim: int = 32
    conv_width: int = 4
    head_map: str = "block"

    @property
    def key_dim(self) -> int:
        return self.num_k_heads * self.head_k_dim

    @property
    def value_dim(self) -> int:
        return self.num_v_heads * self.head_v_dim

    @property
    def conv_dim(self) -> int:
        return 2 * self.key_dim + self.value_dim

    @property
    def keywords(self) -> dict[str, int | str]:
        return {
            "num_k_heads": self.num_k_heads,
            "num_v_heads": self.num_v_heads,
            "head_k_dim": self.head_k_dim,
            "head_v_dim": self.head_v_dim,
            "head_map": self.head_map,
        }


SMALL = Shape()
REAL = {
    "0.8b": Shape(1024, 16, 16, 128, 128),
    "9b": Shape(4096, 16, 32, 128, 128),
    "27b": Shape(5120, 16, 48, 128, 128),
}


@dataclass
class Layer:
    """Arguments of gdn_layer that stay the same from call to call."""

    shape: Shape
    in_proj: list[Tensor]
    conv_weight: Tensor
    A_log: Tensor
    dt_bias: Tensor
    norm_weight: Tensor
    out_proj: list[Tensor]
    input_norm_weight: Tensor | None = None
    keywords: dict = field(default_factory=dict)

    @property
    def weights(self) -> tuple:
        return (
            self.in_proj,
            self.conv_weight,
            self.A_log,
            self.dt_bias,
            self.norm_weight,
            self.out_proj,
        )


def make_layer(
    shape: Shape,
    dtype: torch.dtype,
    *,
    seed: int = 0,
    input_norm: bool = False,
    joined: bool = False,
    gate_dtype: torch.dtype | None = None,
) -> Layer:
    """Weights of a size that keeps every stage away from saturation, decays slow and fast."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int, std: float = 1.0) -> Tensor:
        return (torch.randn(*size, generator=generator) * std).to(dtype)

    hidden, heads = shape.hidden, shape.num_v_heads
    rows = [shape.conv_dim, shape.value_dim, heads, heads]
    in_proj = [normal(n, hidden, std=hidden**-0.5) for n in rows]
    gate_dtype = gate_dtype or dtype
    return Layer(
        shape=shape,
        in_proj=[torch.cat(in_proj)] if joined else in_proj,
        conv_weight=normal(shape.conv_dim, shape.conv_width, std=shape.conv_width**-0.5),
        A_log=torch.empty(heads).uniform_(0.01, 4, generator=generator).log().to(gate_dtype),
        dt_bias=(torch.randn(heads, generator=generator) - 2).to(gate_dtype),
        norm_weight=(1 + 0.1 * torch.randn(shape.head_v_dim, generator=generator)).to(dtype),
        out_proj=[normal(hidden, shape.value_dim, std=shape.value_dim**-0.5)],
        input_norm_weight=normal(hidden, std=0.1) if input_norm else None,
        keywords=dict(shape.keywords),
    )


def pack_layer(layer: Layer, lanes: str = "apple") -> Layer:
    """The same layer with packed projections."""
    name = packing.format_name(lanes)
    return replace(
        layer,
        in_proj=[packing.pack(layer.in_proj, name)],
        out_proj=[packing.pack(layer.out_proj, name)],
        keywords={**layer.keywords, "weight_format": name},
    )


def make_hidden(
    shape: Shape, batch: int, tokens: int, dtype: torch.dtype, *, seed: int = 1
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, tokens, shape.hidden, generator=generator).to(dtype)


def make_states(
    shape: Shape,
    batch: int,
    dtype: torch.dtype,
    *,
    seed: int = 2,
    width: int | None = None,
    dk_contiguous: bool = True,
) -> tuple[Tensor, Tensor]:
    """Non-zero states; the recurrent one in either storage order."""
    generator = torch.Generator().manual_seed(seed)
    width = shape.conv_width if width is None else width
    conv = torch.randn(batch, shape.conv_dim, width, generator=generator).to(dtype)
    size = (batch, shape.num_v_heads, shape.head_v_dim, shape.head_k_dim)
    recurrent = 0.3 * torch.randn(size, generator=generator)
    recurrent = recurrent.transpose(-1, -2)
    return conv, recurrent if dk_contiguous else recurrent.contiguous()


def with_map(shape: Shape, head_map: str) -> Shape:
    return replace(shape, head_map=head_map)


# ------------------------------------------------------------------------------------ layouts


def offset_view(t: Tensor) -> Tensor:
    """The same values behind a storage offset, with foreign values around them."""
    buffer = torch.full((t.numel() + 14,), 7.0).to(t.dtype)
    view = buffer[7 : 7 + t.numel()].view(t.shape)
    view.copy_(t)
    return view


def strided_view(t: Tensor) -> Tensor:
    """The same values as a slice of a wider tensor in every dim, foreign values between."""
    buffer = torch.full([2 * n + 1 for n in t.shape], 7.0).to(t.dtype)
    view = buffer[tuple(slice(1, 2 * n + 1, 2) for n in t.shape)]
    view.copy_(t)
    return view


def guarded(t: Tensor, guard: float = 12345.0) -> tuple[Tensor, Tensor]:
    """A copy of ``t``, same strides, inside a buffer of guard words; returns (view, buffer)."""
    span = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1
    buffer = torch.full((span + 64,), guard).to(t.dtype)
    view = buffer.as_strided(t.shape, t.stride(), 32)
    view.copy_(t)
    return view, buffer


def guards_intact(view: Tensor, buffer: Tensor, guard: float = 12345.0) -> bool:
    """Whether no word of the buffer outside the view was written."""
    probe = buffer.clone()
    probe.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(guard)
    return bool((probe == torch.full_like(probe, guard)).all())
