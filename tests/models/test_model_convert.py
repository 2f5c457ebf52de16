"""Layout conversions between checkpoint styles, against transformers and against plain loops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from torch_mps_fusion.models import convert
from torch_mps_fusion.models.names import SPLIT_PROJECTIONS
from torch_mps_fusion.models.random_weights import random_weights


def numbered(rows: int, columns: int) -> torch.Tensor:
    return torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)


@pytest.mark.parametrize(("num_k_heads", "num_v_heads"), [(1, 1), (1, 4), (2, 2), (2, 6), (4, 8)])
def test_C8_row_gather_equals_a_loop_over_heads(config, num_k_heads, num_v_heads):
    config = replace(config, num_k_heads=num_k_heads, num_v_heads=num_v_heads)
    ratio, dk, dv = num_v_heads // num_k_heads, config.head_k_dim, config.head_v_dim
    qkvz = numbered(config.conv_dim + config.value_dim, config.hidden_size)
    ba = numbered(2 * num_v_heads, config.hidden_size)
    q, k, v, z, b, a = [], [], [], [], [], []
    row = 0
    for _ in range(num_k_heads):
        for rows, count in ((q, dk), (k, dk), (v, ratio * dv), (z, ratio * dv)):
            rows.extend(range(row, row + count))
            row += count
    row = 0
    for _ in range(num_k_heads):
        for rows in (b, a):
            rows.extend(range(row, row + ratio))
            row += ratio
    split = convert.split_grouped(config, qkvz, ba)
    assert torch.equal(split["in_proj_qkv.weight"], qkvz[q + k + v])
    assert torch.equal(split["in_proj_z.weight"], qkvz[z])
    assert torch.equal(split["in_proj_b.weight"], ba[b])
    assert torch.equal(split["in_proj_a.weight"], ba[a])
    for tensor in split.values():
        assert tensor.is_contiguous()
        assert tensor.untyped_storage().data_ptr() not in (
            qkvz.untyped_storage().data_ptr(),
            ba.untyped_storage().data_ptr(),
        )


@pytest.mark.parametrize(("num_k_heads", "num_v_heads"), [(1, 1), (1, 4), (2, 6), (16, 32)])
def test_row_gather_equals_transformers_fix_query_key_value_ordering(
    next_config, num_k_heads, num_v_heads
):
    modeling = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    config = replace(next_config, num_k_heads=num_k_heads, num_v_heads=num_v_heads)
    qkvz = numbered(config.conv_dim + config.value_dim, 1)
    ba = numbered(2 * num_v_heads, 1)
    # The method reads the geometry from its module and permutes the last axis of activations.
    q, k, v, z, b, a = modeling.Qwen3NextGatedDeltaNet.fix_query_key_value_ordering(
        config, qkvz.view(1, 1, -1), ba.view(1, 1, -1)
    )
    split = convert.split_grouped(replace(config, hidden_size=1), qkvz, ba)
    expected = {
        "in_proj_qkv.weight": torch.cat([t.reshape(-1) for t in (q, k, v)]),
        "in_proj_z.weight": z.reshape(-1),
        "in_proj_b.weight": b.reshape(-1),
        "in_proj_a.weight": a.reshape(-1),
    }
    for name, rows in expected.items():
        assert torch.equal(split[name].view(-1), rows), name


def test_join_grouped_is_the_inverse(config):
    weights = random_weights(config, dtype=torch.bfloat16, seed=1)
    joined = convert.join_grouped(config, weights)
    again = convert.split_grouped(
        config, joined["in_proj_qkvz.weight"], joined["in_proj_ba.weight"]
    )
    for name in SPLIT_PROJECTIONS:
        assert torch.equal(again[name], weights[name]), name


def test_mlx_convolution_axes(config):
    weight = torch.randn(config.conv_dim, 1, config.conv_kernel_size)
    assert torch.equal(convert.conv_from_mlx(weight.transpose(1, 2).contiguous()), weight)


def test_mlx_norm_is_exact_from_one_half_to_256():
    stored = torch.arange(0, 2**15, dtype=torch.int16).view(torch.bfloat16)
    stored = stored[(stored >= 0.5) & (stored <= 256)]
    assert stored.numel() > 1000
    weight = convert.norm_from_mlx(stored)
    assert weight.dtype == torch.bfloat16
    assert torch.equal(weight.double() + 1, stored.double())
    assert torch.equal(convert.norm_to_mlx(weight), stored)


def test_mlx_norm_below_one_half_is_rounded_once():
    stored = torch.linspace(-0.5, 0.5, 257).bfloat16()
    error = convert.norm_from_mlx(stored).double() + 1 - stored.double()
    assert error.abs().max() <= 2**-8  # half a unit in the last place of a bfloat16 in [1, 2)
