"""Cases that the shader tests share: small layers that differ in everything at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from cases import Layer, Shape, make_hidden, make_layer, make_states
from torch import Tensor


@dataclass(frozen=True)
class Setting:
    """What a case has beside dtype, batch and tokens. width 0: no states."""

    shape: Shape = field(default_factory=Shape)
    masked: bool = False
    width: int = 4
    keys_adjacent: bool = True
    input_norm: bool = True
    float_gates: bool = False


BLOCK = Shape()
TILED = Shape(head_map="tiled")
# Dk and Dv differ, three value heads a key head, padded rows in the input projection
RAGGED = Shape(64, 2, 6, 64, 128, conv_width=3, head_map="tiled")
WIDE = Shape(256, 1, 3, 128, 64, conv_width=2)
# Rotated over dtypes, batches and tokens: every pair of values meets somewhere.
SETTINGS = (
    Setting(BLOCK),
    Setting(TILED, masked=True, keys_adjacent=False, input_norm=False, float_gates=True),
    Setting(BLOCK, masked=True, width=0, float_gates=True),
    Setting(TILED, width=0, input_norm=False),
    Setting(RAGGED, width=2, keys_adjacent=False, float_gates=True),
    Setting(WIDE, masked=True, width=5),
    Setting(TILED, masked=True, width=3),
)


@dataclass
class Case:
    layer: Layer
    hidden: Tensor
    states: tuple[Tensor, Tensor] | None
    mask: Tensor | None


def make_mask(batch: int, tokens: int, seed: int = 3) -> Tensor:
    """Pads on the left, in the middle and on the right; one row all masked if there are three."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(batch, tokens, generator=generator) > 0.4
    mask[0, 0] = False
    if batch > 2:
        mask[1] = False
    return mask


def make_case(setting: Setting, dtype: torch.dtype, batch: int, tokens: int, seed: int = 0) -> Case:
    shape = setting.shape
    layer = make_layer(
        shape,
        dtype,
        seed=seed,
        input_norm=setting.input_norm,
        gate_dtype=torch.float32 if setting.float_gates else None,
    )
    states = None
    if setting.width:
        states = make_states(
            shape, batch, dtype, width=setting.width, dk_contiguous=setting.keys_adjacent
        )
    mask = make_mask(batch, tokens) if setting.masked else None
    return Case(layer, make_hidden(shape, batch, tokens, dtype), states, mask)
