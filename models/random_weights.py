"""Seeded random weights of a GDN layer, for demonstrations, benchmarks and tests."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_mps_fusion.models.config import GDNConfig
from torch_mps_fusion.models.names import (
    DECAY_PARAMETERS,
    INPUT_NORM_PARAMETER,
    parameter_shapes,
)


def random_weights(
    config: GDNConfig,
    *,
    dtype: torch.dtype,
    seed: int,
    with_input_norm: bool = False,
    decay_dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Random weights by parameter name, on the CPU; one seed gives the same weights in any dtype.

    Scales are such that every stage matters: projections keep the variance of a normalised input,
    norm weights differ from one, and decays reach from forgetting within a few tokens to keeping
    thousands.
    """
    generator = torch.Generator().manual_seed(seed)
    shapes = parameter_shapes(config)

    def uniform(name: str, low: float, high: float) -> Tensor:
        return torch.empty(shapes[name]).uniform_(low, high, generator=generator)

    def normal(shape: tuple[int, ...], mean: float, std: float) -> Tensor:
        return torch.empty(shape).normal_(mean, std, generator=generator)

    weights = {
        name: normal(shape, 0.0, shape[-1] ** -0.5)
        for name, shape in shapes.items()
        if "proj" in name
    }
    weights["conv1d.weight"] = uniform("conv1d.weight", -0.5, 0.5)
    weights["A_log"] = uniform("A_log", 0.01, 16.0).log()
    step = uniform("dt_bias", -3.0, -1.0).mul(torch.tensor(10.0).log()).exp()
    weights["dt_bias"] = step + torch.log(-torch.expm1(-step))  # softplus(dt_bias) = step
    weights["norm.weight"] = normal(shapes["norm.weight"], 1.0, 0.1)
    if with_input_norm:
        weights[INPUT_NORM_PARAMETER] = normal((config.hidden_size,), 0.0, 0.1)
    return {
        name: tensor.to(decay_dtype if name in DECAY_PARAMETERS else dtype)
        for name, tensor in weights.items()
    }
