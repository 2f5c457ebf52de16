"""What is compared: one mixer layer, input norm and residual included, on any device."""

from __future__ import annotations

import copy
import importlib.util
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from torch_mps_fusion import device as devices
from torch_mps_fusion import packing, plan
from torch_mps_fusion.ops import VARIANTS, supports

from . import facts

Results = tuple[Tensor, Tensor, Tensor]  # output, conv state, recurrent state
EPS = 1e-6
ROW_VARIANTS = ("stock", "native")  # take the checkpoint's rows; all others are our shaders


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


SHAPES = {
    "small": Shape(96, 4, 2, 32),
    "host": Shape(32, 1, 1, 32),  # where arithmetic is negligible
    "0.8b": Shape(1024, 16),
    "9b": Shape(4096, 32),
    "27b": Shape(5120, 48),
}


class Layer:
    """One layer's weights and states on a device, seeded on the CPU: the same on every device.
    `packed` is in the lane map of the device."""

    def __init__(self, shape: Shape, device: str, seed: int, dtype=torch.bfloat16) -> None:
        self.shape, self.device, self.dtype = shape, device, dtype
        self.weight_format = devices.current(device).weight_format
        generator = torch.Generator().manual_seed(seed)

        def normal(*size: int, std: float = 1.0) -> Tensor:
            values = torch.randn(*size, generator=generator)
            return (values * std).to(dtype).to(device)

        hidden, heads = shape.hidden, shape.v_heads
        self.in_proj = normal(shape.in_rows, hidden, std=hidden**-0.5)
        self.out_proj = normal(hidden, shape.value_dim, std=shape.value_dim**-0.5)
        self.conv_weight = normal(shape.conv_dim, shape.taps, std=shape.taps**-0.5)
        rates = torch.rand(heads, generator=generator) * 4 + 0.01
        self.A_log = rates.log().to(dtype).to(device)
        self.dt_bias = normal(heads) - 2
        self.norm_weight = 1 + normal(shape.head, std=0.1)
        self.input_norm_weight = normal(hidden, std=0.1)
        self.packed = [packing.pack(w, self.weight_format) for w in (self.in_proj, self.out_proj)]
        self.conv_state = normal(1, shape.conv_dim, shape.taps)
        state = 0.3 * torch.randn(1, heads, shape.head, shape.head, generator=generator)
        self.state = state.to(device).transpose(-1, -2)

    def copy(self) -> Layer:
        """The same contents in other memory."""

        def cloned(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.clone()
            return [cloned(v) for v in value] if isinstance(value, list) else value

        made = copy.copy(self)
        vars(made).update({name: cloned(value) for name, value in vars(self).items()})
        return made

    @cached_property
    def packed_sha256(self) -> str:
        return facts.tensor_sha256(self.packed)

    @cached_property
    def rows_sha256(self) -> str:
        return facts.tensor_sha256([self.in_proj, self.out_proj])

    @cached_property
    def float_norm(self) -> Tensor:
        """As flash-linear-attention takes it."""
        return 1 + self.input_norm_weight.float()

    @cached_property
    def float_gates(self) -> tuple[Tensor, Tensor]:
        return self.A_log.float(), self.dt_bias.float()

    def small(self) -> tuple[Tensor, ...]:
        return self.conv_weight, self.A_log, self.dt_bias, self.norm_weight

    def hidden(self, rows: int, seed: int = 1) -> Tensor:
        """(1, rows, hidden), seeded."""
        generator = torch.Generator().manual_seed(seed)
        values = torch.randn(1, rows, self.shape.hidden, generator=generator)
        return values.to(self.dtype).to(self.device)

    def states(self, arm: Arm | None = None) -> tuple[Tensor, Tensor]:
        """Copies of the two states, in the storage order that suits the arm."""
        state = self.state.contiguous() if isinstance(arm, Fla) else self.state.clone()
        return self.conv_state.clone(), state


class Arm(Protocol):
    """A way to compute the layer."""

    name: str

    def __call__(self, layer: Layer, hidden: Tensor, states: tuple[Tensor, Tensor]) -> Results:
        """One call; `states` may be written, the new ones are in the result."""


class Ours:
    """The op in place, by variant, with the device's launch geometry or changes of it."""

    def __init__(self, variant: str, geometry: str = "") -> None:
        self.name, self.variant, self.geometry = variant + geometry, variant, geometry
        self.shader = variant not in ROW_VARIANTS

    def __call__(self, layer: Layer, hidden: Tensor, states: tuple[Tensor, Tensor]) -> Results:
        projections = layer.packed if self.shader else [layer.in_proj, layer.out_proj]
        if self.geometry:
            torch.ops.mps_fusion._override_geometry(self.geometry)
        try:
            output = torch.ops.mps_fusion.gdn_layer_(
                hidden,
                *states,
                [projections[0]],
                *layer.small(),
                [projections[1]],
                layer.input_norm_weight,
                **self.keywords(layer),
            )
        finally:
            if self.geometry:
                torch.ops.mps_fusion._override_geometry("")
        return output, *states

    def to_new_states(self, layer: Layer, hidden: Tensor) -> Results:
        """The op that returns new states: no two of its buffers share memory, so that a count of
        bytes by buffer counts nothing twice."""
        projections = layer.packed if self.shader else [layer.in_proj, layer.out_proj]
        return torch.ops.mps_fusion.gdn_layer(
            hidden,
            [projections[0]],
            *layer.small(),
            [projections[1]],
            layer.input_norm_weight,
            layer.conv_state,
            layer.state,
            **self.keywords(layer),
        )

    def keywords(self, layer: Layer) -> dict:
        form = layer.weight_format if self.shader else "rows"
        return {**layer.shape.keywords, "weight_format": form, "eps": EPS, "variant": self.variant}

    def for_rows(self, layer: Layer, rows: int) -> Ours:
        """The arm for calls of so many rows: `packed` where this one takes fewer."""
        return self if self.supports(layer.shape, layer.device, rows, layer.dtype) else PACKED

    def supports(self, shape: Shape, device: str, rows: int, dtype: torch.dtype) -> bool:
        answer = supports(
            self.variant,
            device=device,
            dtype=dtype,
            weight_format=devices.current(device).weight_format if self.shader else "rows",
            rows=rows,
            hidden_size=shape.hidden,
            conv_width=shape.taps,
            **shape.keywords,
        )
        return bool(answer)

    def emulated(self, device: str) -> bool:
        """Whether metal_host would run it, so that its time means nothing."""
        return self.shader and device == "cpu"

    def plan(
        self,
        shape: Shape,
        device: str,
        rows: int,
        dtype: torch.dtype,
        *,
        in_place: bool = True,
    ) -> plan.Program:
        """The program of a call of this arm; ValueError for a variant without one."""
        if not self.shader:
            raise ValueError(f"variant: {self.variant!r} has no program")
        arguments, keywords = plan.meta_layer(
            batch=1,
            tokens=rows,
            hidden_size=shape.hidden,
            num_k_heads=shape.k_heads,
            num_v_heads=shape.v_heads,
            head_k_dim=shape.head,
            head_v_dim=shape.head,
            conv_width=shape.taps,
            dtype=dtype,
            weight_format=devices.current(device).weight_format,
        )
        return plan.plan_layer(
            *arguments,
            **keywords,
            variant=self.variant,
            device=devices.current(device).name,
            geometry=self.geometry,
            in_place=in_place,
        )

    def numeric_geometry(self, layer: Layer) -> str | None:
        """Hash of what fixes the bits: dimensions, dtype, tile order and the shader texts. None
        for aten and native arms, which have another."""
        if not self.shader:
            return None
        fixed = [str(layer.shape), str(layer.dtype), layer.weight_format, packing.TILE]
        return facts.sha256_of([*fixed, facts.source()["texts"]])

    def pack(self, layer: Layer) -> str:
        """Hash of the projections as the arm takes them."""
        return layer.packed_sha256 if self.shader else layer.rows_sha256


PACKED = Ours("packed")


def ours(
    shape: Shape, device: str, rows: int, dtype: torch.dtype, geometries: list[str] | None = None
) -> list[Ours]:
    """An arm for every variant that runs there, whatever its name, in the order of `VARIANTS`, and
    further shader arms for each launch geometry."""
    found = []
    for arm in map(Ours, VARIANTS[1:]):
        if arm.supports(shape, device, rows, dtype):
            others = geometries or [] if arm.shader else []
            found += [arm, *(Ours(arm.variant, g) for g in others)]
    return found


class Linears:
    """cuBLAS on the two projections and nothing else: no layer, a yardstick."""

    name = "linears"

    def __call__(self, layer: Layer, hidden: Tensor, states: tuple[Tensor, Tensor]) -> Results:
        y = linear(hidden, layer.in_proj)[..., : layer.shape.value_dim]
        return linear(y, layer.out_proj), *states


class Fla:
    """flash-linear-attention 0.6: its norms, convolution and fused recurrent rule, cuBLAS between.

    As in its own layers a single token is convolved in place, by a kernel of its own, and other new
    states are new tensors. ImportError where it, einops or triton is not installed.
    """

    name = "fla"

    def __init__(self) -> None:
        from fla.modules.causal_conv1d import causal_conv1d, causal_conv1d_update
        from fla.modules.norm.fused_norm_gate import rms_norm_gated
        from fla.modules.norm.layernorm import rms_norm
        from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule

        self.conv, self.step = causal_conv1d, causal_conv1d_update
        self.rms_norm, self.gated = rms_norm, rms_norm_gated
        self.rule = fused_recurrent_gated_delta_rule

    def __call__(self, layer: Layer, hidden: Tensor, states: tuple[Tensor, Tensor]) -> Results:
        s = layer.shape
        y = linear(self.rms_norm(hidden, layer.float_norm, None, eps=EPS), layer.in_proj)
        qkv, z, b, a = y.split([s.conv_dim, s.value_dim, s.v_heads, s.v_heads], -1)
        taps: dict[str, Any] = {"weight": layer.conv_weight, "activation": "silu"}
        if qkv.shape[1] == 1:
            qkv, conv = self.step(qkv, states[0], **taps)
        else:
            qkv, conv = self.conv(qkv, initial_state=states[0], output_final_state=True, **taps)
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


def fla(layer: Layer, hidden: Tensor) -> Fla | None:
    """The arm, where the package is installed, can be imported and runs here."""
    if importlib.util.find_spec("fla") is None:
        return None
    try:
        arm = Fla()
        arm(layer, hidden, layer.states(arm))
    except Exception as error:  # whatever goes wrong in there costs no other arm
        print(f"no arm fla: {type(error).__name__}: {error}")
        return None
    return arm
