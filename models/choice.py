"""Which variant a module runs, and which weights that one reads."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mps_fusion import device as devices
from torch_mps_fusion import packing
from torch_mps_fusion.models.packed_module import ROWS

PERSISTENT = ("hybrid", "mega")
SHADER_VARIANTS = ("packed", "core", *PERSISTENT)
_MAY_PACK: dict[str, bool] = {}  # the table does not change in a process


def variant_for(
    variant: str, hidden: Tensor, head_k_dim: int, head_v_dim: int, conv_width: int
) -> str:
    """What a module runs on (B, T, H) activations.

    What ``auto`` is gets decided here, not by the op, where it may be a variant that reads packed
    weights: by what it is for one row, so that the weights stay in one format.
    """
    device_type = hidden.device.type
    if variant == "auto" and _may_pack(device_type):
        variant = _chosen(
            device_type, hidden.dtype, head_k_dim, head_v_dim, conv_width, hidden.shape[2]
        )
    return for_rows(variant, hidden.shape[0] * hidden.shape[1], device_type)


def for_rows(variant: str, rows: int, device_type: str) -> str:
    """The variant, or ``core`` in place of a persistent one that does not take so many rows."""
    too_many = variant in PERSISTENT and rows > _row_threshold(device_type)
    return "core" if too_many else variant


def format_for(variant: str, device: torch.device) -> str:
    """The weight_format that a variant reads on a device; an unknown variant reads rows."""
    if variant not in SHADER_VARIANTS:
        return ROWS
    return packing.format_name("nvidia" if device.type == "cuda" else "apple")


@torch.compiler.assume_constant_result
def _row_threshold(device_type: str) -> int:
    return devices.current(device_type).row_threshold


@torch.compiler.assume_constant_result
def _may_pack(device_type: str) -> bool:
    """Whether a row of the table for that type has a variant that reads packed weights."""
    if device_type not in _MAY_PACK:
        others = {"cpu", "cuda"} - {device_type}
        rows = (line.split("\t") for line in torch.ops.mps_fusion._choices().splitlines())
        found = any(v in SHADER_VARIANTS and device not in others for device, _, v, *_ in rows)
        _MAY_PACK[device_type] = found
    return _MAY_PACK[device_type]


@torch.compiler.assume_constant_result
def _chosen(
    device_type: str, dtype: torch.dtype, k: int, v: int, conv_width: int, hidden: int
) -> str:
    """Not cached: a launch that failed changes it (a compiled graph keeps what it was)."""
    return torch.ops.mps_fusion._choice(
        device_type,
        devices.current(device_type).name,
        dtype,
        head_k_dim=k,
        head_v_dim=v,
        conv_width=conv_width,
        rows=1,
        hidden_size=hidden,
    )[0]
