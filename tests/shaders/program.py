"""A layer call as a list of dispatches, for the tests: the order that shaders/README.md gives.

Deliberately the plainest planner there is. It owns the stage buffers, each behind guard words and
poisoned with NaN, so that what nobody wrote is seen and what nobody may write is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

import abi
import torch
from cases import Layer
from torch import Tensor

from torch_mps_fusion import packing

IO = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
GUARD = 64


@dataclass
class Dispatch:
    """One kernel launch: grid in threadgroups, threads in each, memory by buffer index."""

    kernel: str
    constants: dict[str, int]
    grid: tuple[int, ...]
    threads: int
    buffers: list[Tensor]

    @property
    def family(self) -> str:
        from torch_mps_fusion.shaders import parse_name

        return parse_name(self.kernel).op


@dataclass
class Geometry:
    """Launch geometry of a program: free, never seen in the bits."""

    tile: str = ""  # of the projections; "" is the first of the dtype
    groups: int = 0  # threadgroups of a projection; 0: one a tile
    rule: str = "r1s4"
    core: str = "r2"
    joined_norm: bool = False  # the input norm as a dispatch of its own
    block: int = 0  # tokens a dispatch of the middle stages; 0: all


def memory(t: Tensor | None) -> Tensor:
    """The bytes from the first to the last element of a strided tensor, as the kernel sees them."""
    if t is None:
        return torch.zeros(16, dtype=torch.uint8)
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return t.as_strided((span,), (1,)).view(torch.uint8)


@dataclass
class Arena:
    """Fresh tensors, NaN inside, guard words on both sides."""

    made: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def new(self, *shape: int, dtype: torch.dtype) -> Tensor:
        size = torch.Size(shape).numel()
        buffer = torch.full((size + 2 * GUARD,), float("nan"), dtype=dtype)
        buffer[:GUARD] = buffer[GUARD + size :] = 77.0
        view = buffer[GUARD : GUARD + size].view(shape)
        self.made.append((view, buffer))
        return view

    def guards_intact(self) -> bool:
        return all(
            bool((b[:GUARD] == 77).all() and (b[GUARD + v.numel() :] == 77).all())
            for v, b in self.made
        )


class Program:
    """Dispatches of one call of a layer in `variant` ("packed" or "core").

    hidden (B, T, H); states both or neither; mask (B, T) bool. In place: the results are the states
    that were given. After the run: `results`, and the stage buffers under the kernels' names.
    """

    def __init__(
        self,
        variant: str,
        layer: Layer,
        hidden: Tensor,
        states: tuple[Tensor, Tensor] | None = None,
        mask: Tensor | None = None,
        *,
        lanes: str = "apple",
        geometry: Geometry | None = None,
        in_place: bool = False,
        keys_adjacent_out: bool = True,
        weights: tuple[Tensor, Tensor] | None = None,
        eps: float = 1e-6,
    ) -> None:
        self.eps = eps
        self.layer, self.shape, self.geometry = layer, layer.shape, geometry or Geometry()
        self.batch, self.tokens, _ = hidden.shape
        self.rows = self.batch * self.tokens
        self.dtype = layer.conv_weight.dtype
        self.io = IO[self.dtype]
        self.hidden, self.states, self.mask = hidden, states, mask
        self.arena, self.dispatches = Arena(), []
        s = self.shape
        self.n_in = s.conv_dim + s.value_dim + 2 * s.num_v_heads
        fmt = packing.format_name(lanes)
        self.w_in, self.w_out = weights or (
            packing.pack(layer.in_proj, fmt),
            packing.pack(layer.out_proj, fmt),
        )
        new = self.arena.new
        width = states[0].shape[2] if states else s.conv_width
        if in_place:
            self.conv_out, self.state_out = states
        else:
            self.conv_out = new(self.batch, s.conv_dim, width, dtype=self.dtype)
            order = (
                (s.head_v_dim, s.head_k_dim) if keys_adjacent_out else (s.head_k_dim, s.head_v_dim)
            )
            state = new(self.batch, s.num_v_heads, *order, dtype=torch.float32)
            self.state_out = state.transpose(-1, -2) if keys_adjacent_out else state
        self.y_stride = packing.padded_rows(self.n_in)
        self.Y = new(self.rows, self.y_stride, dtype=self.dtype)
        self.G = new(self.rows, s.value_dim, dtype=self.dtype)
        self.output = new(self.batch, self.tokens, s.hidden, dtype=self.dtype)
        self.constants = {
            "kMask": mask is not None,
            "kConvGiven": states is not None,
            "kTiledHeads": s.head_map == "tiled",
            "kKeysAdjacentOut": self.state_out.stride(2) == 1,
            "kFloatA": layer.A_log.dtype == torch.float32,
            "kFloatDt": layer.dt_bias.dtype == torch.float32,
        }
        self._input()
        {"packed": self._packed, "core": self._core}[variant]()
        self._output()

    @property
    def results(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.output, self.conv_out, self.state_out

    # ---- pieces

    def _add(self, kernel: str, constants: dict, grid: tuple, threads: int, buffers: list) -> None:
        uses = {k: int(v) for k, v in constants.items()}
        self.dispatches.append(Dispatch(kernel, uses, grid, threads, [memory(b) for b in buffers]))

    def _args(self, first: int, count: int) -> Tensor:
        s, none = self.shape, (0, 0, 0)
        conv_in = self.states[0].stride() if self.states else none
        chained = self._chained(1 if first else 0)
        state_in = none if chained is None else chained.stride()
        conv_out, state_out = self.conv_out.stride(), self.state_out.stride()
        mask = self.mask.stride() if self.mask is not None else none
        data = abi.write(
            "GdnArgs",
            batch=self.batch,
            tokens=self.tokens,
            first=first,
            count=count,
            k_heads=s.num_k_heads,
            v_heads=s.num_v_heads,
            conv_channels=s.conv_dim,
            conv_taps=s.conv_width,
            conv_width=self.conv_out.shape[2],
            y_stride=self.y_stride,
            mask_batch=mask[0],
            mask_token=mask[1],
            conv_in_batch=conv_in[0],
            conv_in_channel=conv_in[1],
            conv_in_time=conv_in[2],
            conv_out_batch=conv_out[0],
            conv_out_channel=conv_out[1],
            conv_out_time=conv_out[2],
            state_in_batch=state_in[0],
            state_in_head=state_in[1],
            state_out_batch=state_out[0],
            state_out_head=state_out[1],
            eps=self.eps,
            q_scale=s.head_k_dim**-0.5,
        )
        return torch.frombuffer(data, dtype=torch.uint8)

    def _projection(
        self,
        w: Tensor,
        x: Tensor,
        y: Tensor,
        n: int,
        norm: Tensor | None = None,
        residual: Tensor | None = None,
        conv_state: bool = False,
    ) -> None:
        tile = self.geometry.tile or ("nt1u2p")
        nt, k = int(tile[2]), x.shape[-1]
        tiles = packing.padded_rows(n) // packing.TILE
        assert tiles % nt == 0, f"{tiles} tiles do not go by {nt}"
        groups = self.geometry.groups or tiles // nt
        args = abi.write(
            "ProjectionArgs",
            k=k,
            n=n,
            tiles=tiles,
            rows=self.rows,
            x_stride=x.stride(0),
            y_stride=y.stride(0),
            r_stride=residual.stride(0) if residual is not None else 0,
            groups=groups,
            eps=self.eps,
        )
        extra = ceil(self.batch * self.shape.conv_dim / 256) if conv_state else 0
        self._add(
            f"tmf_projection_{self.io}_f32_{tile}__group",
            {
                "kNorm": norm is not None,
                "kResidual": residual is not None,
                "kWritesConvState": conv_state,
                "kMask": conv_state and self.constants["kMask"],
                "kConvGiven": conv_state and self.constants["kConvGiven"],
            },
            (groups + extra, ceil(self.rows / 8)),
            256,
            [
                w, x, norm, residual, y, torch.frombuffer(args, dtype=torch.uint8),
                self.Y, self._conv_in(), self.conv_out, self.mask, self._args(0, self.tokens),
            ],
        )  # fmt: skip

    def _conv_in(self) -> Tensor | None:
        return self.states[0] if self.states else None

    def _state_in(self) -> Tensor | None:
        return self.states[1] if self.states else None

    def _input(self) -> None:
        x, norm = self.hidden.reshape(self.rows, -1), self.layer.input_norm_weight
        if norm is not None and self.geometry.joined_norm:
            self.normed = normed = self.arena.new(*x.shape, dtype=self.dtype)
            args = abi.write(
                "ProjectionArgs",
                **dict.fromkeys(("n", "tiles", "r_stride", "groups"), 0),
                k=x.shape[1],
                rows=self.rows,
                x_stride=x.stride(0),
                y_stride=x.shape[1],
                eps=self.eps,
            )
            args = torch.frombuffer(args, dtype=torch.uint8)
            name = f"tmf_rms_norm_{self.io}_f32_n256__group"
            self._add(name, {}, (self.rows,), 256, [x, norm, normed, args])
            x, norm = normed, None
        self._projection(self.w_in, x, self.Y, self.n_in, norm=norm)

    def _output(self) -> None:
        out = self.output.view(self.rows, -1)
        norm = self.layer.input_norm_weight
        residual = None if norm is None else self.hidden.reshape(self.rows, -1)
        self._projection(self.w_out, self.G, out, out.shape[1], residual=residual, conv_state=True)

    def _blocks(self) -> list[tuple[int, int]]:
        step = self.geometry.block or self.tokens
        return [(t, min(step, self.tokens - t)) for t in range(0, self.tokens, step)]

    def _use(self, *names: str) -> dict:
        return {n: self.constants[n] for n in names}

    def _packed(self) -> None:
        s, b, io, rows = self.shape, self.batch, self.io, self.rows
        dims = f"dk{s.head_k_dim}dv{s.head_v_dim}"
        f32 = torch.float32
        self.C = C = self.arena.new(rows, s.conv_dim, dtype=self.dtype)
        self.Q = Q = self.arena.new(rows, s.key_dim, dtype=f32)
        self.K = K = self.arena.new(rows, s.key_dim, dtype=f32)
        self.KQ = KQ = self.arena.new(rows, s.num_k_heads, dtype=f32)
        self.gates = gates = self.arena.new(rows, s.num_v_heads, 2, dtype=f32)
        self.O = O = self.arena.new(rows, s.value_dim, dtype=self.dtype)  # noqa: E741
        la = self.layer
        for i, (first, count) in enumerate(self._blocks()):
            args = self._args(first, count)
            self._add(
                f"tmf_conv_{io}_f32_n256__thread",
                self._use("kMask", "kConvGiven"),
                (ceil(count / 8), ceil(s.conv_dim / 256), b),
                256,
                [self.Y, la.conv_weight, self._conv_in(), self.mask, C, args],
            )
            self._add(
                f"tmf_qk_gates_{io}_f32_{dims}__simd",
                self._use("kMask", "kFloatA", "kFloatDt"),
                (ceil(count * s.num_k_heads / 8), b),
                256,
                [C, self.Y, la.A_log, la.dt_bias, self.mask, Q, K, KQ, gates, args],
            )
            rpl, sg = int(self.geometry.rule[1]), int(self.geometry.rule[3])
            self._add(
                f"tmf_rule_{io}_f32_{dims}{self.geometry.rule}__group",
                self._state_constants(i),
                (s.head_v_dim // (4 * rpl * sg), s.num_v_heads, b),
                32 * sg,
                [Q, K, KQ, gates, C, self._chained(i), self.state_out, self.mask, O, args],
            )
            self._add(
                f"tmf_gated_norm_{io}_f32_{dims}__simd",
                self._use("kMask"),
                (ceil(count * s.num_v_heads / 8), b),
                256,
                [O, self.Y, la.norm_weight, self.mask, self.G, args],
            )

    def _core(self) -> None:
        s, la = self.shape, self.layer
        for i, (first, count) in enumerate(self._blocks()):
            constants = self._state_constants(i)
            constants |= self._use("kConvGiven", "kFloatA", "kFloatDt")
            self._add(
                f"tmf_core_{self.io}_f32_dk{s.head_k_dim}dv{s.head_v_dim}"
                f"{self.geometry.core}__group",
                constants,
                (s.num_v_heads, self.batch),
                8 * s.head_v_dim // int(self.geometry.core[1]),
                [
                    self.Y, la.conv_weight, self._conv_in(), la.A_log, la.dt_bias, la.norm_weight,
                    self._chained(i), self.state_out, self.mask, self.G, self._args(first, count),
                ],
            )  # fmt: skip

    def _chained(self, i: int) -> Tensor | None:
        """The state that block i of tokens starts from: the caller's, then what was written."""
        return self._state_in() if i == 0 else self.state_out

    def _state_constants(self, i: int) -> dict:
        state = self._chained(i)
        return self._use("kMask", "kTiledHeads", "kKeysAdjacentOut") | {
            "kStateGiven": state is not None,
            "kKeysAdjacent": state is not None and state.stride(2) == 1,
        }
