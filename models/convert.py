"""Layout conversions between checkpoint styles. Pure index operations, both ways."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mps_fusion.models.config import GDNConfig


def _group_rows(config: GDNConfig) -> list[int]:
    """Rows of q, k, v and z in the group of one key head."""
    values = config.num_v_heads // config.num_k_heads * config.head_v_dim
    return [config.head_k_dim, config.head_k_dim, values, values]


def split_grouped(config: GDNConfig, qkvz: Tensor, ba: Tensor) -> dict[str, Tensor]:
    """Qwen3-Next's grouped projections as Qwen3.5's four.

    Args:
        qkvz: (2 Hk Dk + 2 Hv Dv, H), for each key head the rows of q, k, v, z.
        ba: (2 Hv, H), for each key head the rows of b, a.

    Returns:
        in_proj_qkv, in_proj_z, in_proj_b and in_proj_a, new tensors of the same dtype.
    """
    hidden, groups = qkvz.shape[-1], config.num_k_heads
    parts = qkvz.view(groups, -1, hidden).split(_group_rows(config), dim=1)
    q, k, v, z = (part.reshape(-1, hidden) for part in parts)
    b, a = (part.reshape(-1, hidden) for part in ba.view(groups, 2, -1, hidden).unbind(1))
    return {
        "in_proj_qkv.weight": torch.cat((q, k, v)),
        "in_proj_z.weight": z.clone(),
        "in_proj_b.weight": b.clone(),
        "in_proj_a.weight": a.clone(),
    }


def join_grouped(config: GDNConfig, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of ``split_grouped``: in_proj_qkvz and in_proj_ba from the four projections."""
    hidden, groups = config.hidden_size, config.num_k_heads
    q, k, v = weights["in_proj_qkv.weight"].split(
        [config.key_dim, config.key_dim, config.value_dim]
    )
    z, b, a = (weights[f"in_proj_{name}.weight"] for name in "zba")
    qkvz = torch.cat([t.reshape(groups, -1, hidden) for t in (q, k, v, z)], dim=1)
    ba = torch.cat([t.reshape(groups, -1, hidden) for t in (b, a)], dim=1)
    return {
        "in_proj_qkvz.weight": qkvz.reshape(-1, hidden),
        "in_proj_ba.weight": ba.reshape(-1, hidden),
    }


def conv_from_mlx(weight: Tensor) -> Tensor:
    """MLX's convolution weight (conv_dim, K, 1) as (conv_dim, 1, K)."""
    return weight.transpose(1, 2).contiguous()


def norm_from_mlx(weight: Tensor) -> Tensor:
    """w from MLX's stored 1 + w, in the same dtype.

    Exact in bfloat16 where the stored value is from 0.5 to 256, that is for w in [-0.5, 255];
    elsewhere rounded once.
    """
    return (weight.float() - 1).to(weight.dtype)


def norm_to_mlx(weight: Tensor) -> Tensor:
    """1 + w as MLX stores it, rounded to the dtype of ``weight``."""
    return (weight.float() + 1).to(weight.dtype)
