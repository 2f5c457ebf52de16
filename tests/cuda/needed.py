"""Layers of the tests in this folder, and what they need."""

from __future__ import annotations

from dataclasses import replace

import torch
from cases import REAL, SMALL, Layer, Shape, make_hidden, make_layer, make_states, pack_layer
from compare import run_layer
from torch import Tensor

from torch_mps_fusion import cuda_kernels

VARIANTS = cuda_kernels.VARIANTS
PERSISTENT = cuda_kernels.PERSISTENT
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def sizes(shape: Shape) -> dict[str, int]:
    return {
        "hidden_size": shape.hidden,
        "num_k_heads": shape.num_k_heads,
        "num_v_heads": shape.num_v_heads,
        "head_k_dim": shape.head_k_dim,
        "head_v_dim": shape.head_v_dim,
        "conv_width": shape.conv_width,
    }


# variants, shape, dtype, tokens of a call, masks
NEEDED = (
    (VARIANTS, sizes(REAL["27b"]), BF16, (1, 8), False),
    (VARIANTS, sizes(REAL["27b"]), F16, (8,), False),
    (VARIANTS, sizes(REAL["0.8b"]), F32, (8, 40), False),
    (VARIANTS, sizes(SMALL), BF16, (1, 3, 9, 40), True),
    (PERSISTENT, sizes(REAL["27b"]), BF16, (1, 8), False),
    (PERSISTENT, sizes(SMALL), BF16, (1, 9), True),
)
# The same for the instrumented build.
TIMED = (PERSISTENT, sizes(SMALL), BF16, (9,), False)

# shape, dtype, tokens: results of metal_host are compared with those of the GPU
COMPARED = {
    "0.8b bfloat16": (REAL["0.8b"], BF16, 8),
    "small bfloat16": (SMALL, BF16, 9),
    "0.8b float32": (REAL["0.8b"], F32, 8),
}


def inputs(shape: Shape, dtype: torch.dtype, tokens: int) -> tuple[Layer, Tensor, tuple]:
    layer = make_layer(shape, dtype, input_norm=True)
    return layer, make_hidden(shape, 1, tokens, dtype), make_states(shape, 1, dtype)


def host_results() -> dict[str, tuple[Tensor, ...]]:
    """`core` of every COMPARED call on CPU tensors."""
    found = {}
    for name, call in COMPARED.items():
        layer, hidden, states = inputs(*call)
        found[name] = run_layer(pack_layer(layer), hidden, states, variant="core")
    return found


def moved(layer: Layer) -> Layer:
    """The layer packed for, and on, the GPU."""
    packed = pack_layer(layer, "nvidia")
    tensors = {n: t.cuda() for n, t in vars(packed).items() if isinstance(t, Tensor)}
    lists = {n: [t.cuda() for t in getattr(packed, n)] for n in ("in_proj", "out_proj")}
    return replace(packed, **tensors, **lists)


def cuda(tensors: tuple) -> tuple:
    """Copies on the GPU; strides are kept."""
    return tuple(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda").copy_(t)
                 for t in tensors)  # fmt: skip


def slots_of(states: tuple) -> list[Tensor]:
    """Both states in two slots, the second one unwritten; the recurrent one with Dk contiguous."""
    conv, recurrent = states[0], states[1].mT
    slots = [torch.stack([s, torch.full_like(s, float("nan"))]) for s in (conv, recurrent)]
    return [slots[0], slots[1].mT]


def in_slots(layer: Layer, x: Tensor, slots: list[Tensor], control: Tensor, variant: str) -> Tensor:
    """One call on states in two slots."""
    return torch.ops.mps_fusion.gdn_layer_slots_(
        x, *slots, control, *layer.weights, layer.input_norm_weight, variant=variant,
        **layer.keywords,
    )  # fmt: skip
