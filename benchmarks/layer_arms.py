"""What `benchmarks layer` compares: one mixer layer, input norm and residual included."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from torch_mps_fusion import packing

Results = tuple[Tensor, Tensor, Tensor]  # output, conv state, recurrent state
EPS = 1e-6


@dataclass(frozen=True)
class Shape:
    """A model's layer: heads of 128, convolution of 4 taps."""

    hidden: int
    v_heads: int
    k_heads: int = 16
    head: int = 128
    taps: int = 4

    @property
    def key_dim(self) -> int:
        return self.k_heads * self.head

    @property
    def value_dim(self) -> int:
        return self.v_heads * self.head

    @property
    def conv_dim(self) -> int:
        return 2 * self.key_dim + self.value_dim

    @property
    def in_rows(self) -> int:
        return self.conv_dim + self.value_dim + 2 * self.v_heads

    @property
    def weight_bytes(self) -> int:
        """Of both projections, two bytes an element."""
        return 2 * self.hidden * (self.in_rows + self.value_dim)

    @property
    def payload(self) -> int:
        """Bytes that a call must move at least: projections once, the state in and out."""
        return self.weight_bytes + 2 * 4 * self.v_heads * self.head * self.head

    @property
    def keywords(self) -> dict[str, int | str]:
        return {
            "num_k_heads": self.k_heads,
            "num_v_heads": self.v_heads,
            "head_k_dim": self.head,
            "head_v_dim": self.head,
            "head_map": "block",
        }


SHAPES = {"0.8b": Shape(1024, 16), "9b": Shape(4096, 32), "27b": Shape(5120, 48)}


class Layer:
    """One layer's weights and states on a device."""

    def __init__(self, shape: Shape, device: str, lanes: str, seed: int) -> None:
        self.shape, self.lanes = shape, lanes
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*size: int, std: float = 1.0) -> Tensor:
            values = torch.randn(*size, generator=generator, device=device)
            return (values * std).to(torch.bfloat16)

        hidden, heads = shape.hidden, shape.v_heads
        self.in_proj = normal(shape.in_rows, hidden, std=hidden**-0.5)
        self.out_proj = normal(hidden, shape.value_dim, std=shape.value_dim**-0.5)
        self.conv_weight = normal(shape.conv_dim, shape.taps, std=shape.taps**-0.5)
        rates = torch.rand(heads, generator=generator, device=device) * 4 + 0.01
        self.A_log = rates.log().to(torch.bfloat16)
        self.dt_bias = normal(heads) - 2
        self.norm_weight = 1 + normal(shape.head, std=0.1)
        self.input_norm_weight = normal(hidden, std=0.1)
        self.packed = [packing.pack(w, f"tiles16-{lanes}") for w in (self.in_proj, self.out_proj)]
        # as flash-linear-attention takes them
        self.float_norm = 1 + self.input_norm_weight.float()
        self.float_gates = self.A_log.float(), self.dt_bias.float()
        self.conv_state = normal(1, shape.conv_dim, shape.taps)
        state = torch.randn(1, heads, shape.head, shape.head, generator=generator, device=device)
        self.state = (0.3 * state).transpose(-1, -2)

    def small(self) -> tuple[Tensor, ...]:
        return self.conv_weight, self.A_log, self.dt_bias, self.norm_weight


class Arm(Protocol):
    """A way to compute the layer."""

    name: str

    def __call__(self, layer: Layer, hidden: Tensor, states: tuple[Tensor, Tensor]) -> Results:
        """One call; `states` may be written, the new ones are in the result."""


class Ours:
    """The op in place, by variant, with the device's launch geometry or changes of it."""

    def __init__(self, variant: str, geometry: str = "") -> None:
        self.name, self.variant, self.geometry = variant + geometry, variant, geometry

    def __call__(self, layer: Layer, hidden: Tensor, states: tuple[Tensor, Tensor]) -> Results:
        torch.ops.mps_fusion._override_geometry(self.geometry)
        rows = self.variant == "stock"
        projections = [layer.in_proj, layer.out_proj] if rows else layer.packed
        output = torch.ops.mps_fusion.gdn_layer_(
            hidden,
            *states,
            [projections[0]],
            *layer.small(),
            [projections[1]],
            layer.input_norm_weight,
            **layer.shape.keywords,
            weight_format="rows" if rows else f"tiles16-{layer.lanes}",
            eps=EPS,
            variant=self.variant,
        )
        torch.ops.mps_fusion._override_geometry("")
        return output, *states


class Linears:
    """cuBLAS on the two projections and nothing else: no layer, a yardstick."""

    name = "linears"

    def __call__(self, layer: Layer, hidden: Tensor, states: tuple[Tensor, Tensor]) -> Results:
        y = linear(hidden, layer.in_proj)[..., : layer.shape.value_dim]
        return linear(y, layer.out_proj), *states


class Fla:
    """flash-linear-attention: its norms, convolution and fused recurrent rule, cuBLAS between.

    New states are new tensors, as in its own layers: nothing is copied for them.
    """

    name = "fla"

    def __init__(self) -> None:
        from fla.modules.causal_conv1d import causal_conv1d
        from fla.modules.norm.fused_norm_gate import rms_norm_gated
        from fla.modules.norm.layernorm import rms_norm
        from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule

        self.conv, self.rms_norm, self.gated = causal_conv1d, rms_norm, rms_norm_gated
        self.rule = fused_recurrent_gated_delta_rule

    def __call__(self, layer: Layer, hidden: Tensor, states: tuple[Tensor, Tensor]) -> Results:
        s = layer.shape
        y = linear(self.rms_norm(hidden, layer.float_norm, None, eps=EPS), layer.in_proj)
        qkv, z, b, a = y.split([s.conv_dim, s.value_dim, s.v_heads, s.v_heads], -1)
        qkv, conv = self.conv(
            qkv,
            layer.conv_weight,
            initial_state=states[0],
            output_final_state=True,
            activation="silu",
        )
        q, k, v = (
            x.unflatten(-1, (-1, s.head))
            for x in qkv.split([s.key_dim, s.key_dim, s.value_dim], -1)
        )
        o, state = self.rule(
            q,
            k,
            v,
            g=a,
            beta=b,
            initial_state=states[1],
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
            use_gate_in_kernel=True,
            A_log=layer.float_gates[0],
            dt_bias=layer.float_gates[1],
            use_beta_sigmoid_in_kernel=True,
        )
        z = z.unflatten(-1, (-1, s.head))
        o = self.gated(o, z, layer.norm_weight, None, activation="swish", eps=EPS)
        return linear(o.flatten(-2), layer.out_proj) + hidden, conv, state


def fla_is_here() -> bool:
    return importlib.util.find_spec("fla") is not None
