"""When a fused layer runs transformers' own forward instead of the op, and the one warning.

``why_original`` looks at everything that the op would have to honour. What it does not know is a
reason, never ignored.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torch_mps_fusion.integrations.gdn_operands import ROWS, copies_needed, projection_names
from torch_mps_fusion.ops import supports

try:
    from transformers.cache_utils import Cache, LinearAttentionLayer
except ImportError as error:
    raise ImportError(f"this integration needs transformers >= 5.17: {error}") from error

# Keywords that reach the layer but are meant for others: transformers' own forward ignores them.
HARMLESS = frozenset(
    {
        "use_cache",
        # The loss's:
        "num_items_in_batch",
        "ignore_index",
        "shift_labels",
        # The model's:
        "output_hidden_states",
        "output_attentions",
        "output_router_logits",
        "return_dict",
        "position_ids",
        "position_embeddings",
        "is_causal",
        "logits_to_keep",
        # Lengths without the offsets that would make them packing:
        "max_length_q",
        "max_length_k",
    }
)


class FallbackWarning(UserWarning):
    """A fused layer runs transformers' own forward; the text says why. Once a reason and model."""


def why_original(
    module: Any,
    variant: str,
    weight_format: str,
    hidden: Tensor,
    cache: Any,
    mask: Tensor | None,
    keywords: Mapping[str, object],
) -> str | None:
    """Why this call cannot be the op's, or None if it can."""
    return (
        _why_not_keywords(keywords)
        or _why_not_autocast(hidden)
        or why_not_module(module)
        or _why_not_tensors(module, variant, weight_format, hidden, mask)
        or (None if cache is None else _why_not_cache(module, hidden, cache))
    )


def needs_gradient(module: Any, hidden: Tensor) -> bool:
    """Whether a gradient may flow through this call into the input or a parameter."""
    if not torch.is_grad_enabled():
        return False
    for parameter in module.parameters():
        if parameter.requires_grad:
            return True
    return hidden.requires_grad


def why_not_module(module: Any) -> str | None:
    """Why the op would not compute what this module does, or None."""
    children = module._modules  # nn.Module's own attribute lookup is slow
    for name in (*projection_names(module), "out_proj", "conv1d"):
        kind = nn.Conv1d if name == "conv1d" else nn.Linear
        child = children[name]
        if not is_plain(child, kind):
            return f"{name} is {_description(child)}, not a plain nn.{kind.__name__}"
        if child._parameters["bias"] is not None:
            return f"{name} has a bias"
    norm = children["norm"]
    kind = type(norm)
    own = kind.__name__.endswith("RMSNormGated") and kind.__module__.startswith("transformers.")
    if not own or not is_plain(norm, kind):
        return f"norm is {_description(norm)}, not transformers' gated norm alone"
    if module.activation != "silu" or norm.__dict__.get("activation", "silu") != "silu":
        return "an activation other than silu"
    return None


@torch.compiler.assume_constant_result
def why_not_supported(variant: str, device: str, dtype: torch.dtype, *geometry: Any) -> str:
    """``supports`` once for each combination; a compiled graph has the answer as a constant."""
    key = (variant, device, dtype, geometry)
    if key not in _SUPPORT:
        heads, hidden, weight_format = geometry[:4], *geometry[5:]
        names = ("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")
        _SUPPORT[key] = supports(
            variant,
            device=device,
            dtype=dtype,
            **dict(zip(names, heads, strict=True)),
            conv_width=geometry[4],
            hidden_size=hidden,
            weight_format=weight_format,
        ).reason
    return _SUPPORT[key]


_SUPPORT: dict[tuple, str] = {}


def geometry(module: Any, weight_format: str) -> tuple:
    """What ``why_not_supported`` asks about."""
    return (
        module.num_k_heads,
        module.num_v_heads,
        module.head_k_dim,
        module.head_v_dim,
        module.conv_kernel_size,
        module.hidden_size,
        weight_format,
    )


@torch.compiler.assume_constant_result
def warn_once(model: int, layer: int, reason: str) -> None:
    """One warning for each reason and fused model; at the time of tracing in a compiled graph."""
    if (model, reason) in _WARNED:
        return
    _WARNED.add((model, reason))
    warnings.warn(
        f"layer {layer} runs transformers' own forward instead of torch_mps_fusion: {reason}. "
        "Other layers and calls may do so for the same reason without a further warning.",
        FallbackWarning,
        stacklevel=2,
    )


_WARNED: set[tuple[int, str]] = set()


def is_plain(child: nn.Module, kind: type) -> bool:
    """Whether calling the child is nothing but its class's forward on its own parameters."""
    return (
        type(child) is kind
        and type(child._parameters["weight"]) in (nn.Parameter, Tensor)
        and not child._forward_hooks
        and not child._forward_pre_hooks
        and has_own_forward(child)
    )


def has_own_forward(module: nn.Module) -> bool:
    """Whether ``module.forward`` is its class's; ``kernels`` also sets that on the instance."""
    forward = module.__dict__.get("forward")
    return forward is None or getattr(forward, "__func__", None) is type(module).forward


def _description(child: nn.Module) -> str:
    weight = type(child.weight).__name__ if hasattr(child, "weight") else "nothing"
    hooked = child._forward_hooks or child._forward_pre_hooks or not has_own_forward(child)
    return f"a {type(child).__name__} of {weight}" + (" with hooks" if hooked else "")


def _why_not_keywords(keywords: Mapping[str, object]) -> str | None:
    for name, value in keywords.items():
        if value is not None and name not in HARMLESS:
            return f"the keyword {name} is not supported"
    return None


def _why_not_autocast(hidden: Tensor) -> str | None:
    device = hidden.device.type
    if device in ("cpu", "cuda", "mps") and torch.is_autocast_enabled(device):
        return "autocast is on"
    return None


def _why_not_tensors(
    module: Any, variant: str, weight_format: str, hidden: Tensor, mask: Tensor | None
) -> str | None:
    if hidden.dim() != 3 or hidden.shape[0] == 0 or hidden.shape[1] == 0:
        return "the input is not (batch, tokens, hidden) with at least one token"
    device, dtype = hidden.device, hidden.dtype
    packed = weight_format != ROWS
    weights = []
    for name in (*projection_names(module), "out_proj", "conv1d", "norm"):
        weight = module._modules[name]._parameters["weight"]
        if weight.device != device:
            return f"{name} is on {weight.device} and the input on {device}"
        if weight.dtype != dtype:
            return f"{name} is {weight.dtype} and the input {dtype}"
        if packed and "proj" in name and weight.requires_grad and torch.is_grad_enabled():
            return f"{name} may need a gradient, which packed weights do not have"
        weights.append(weight)
    for name in ("A_log", "dt_bias"):
        gate = module._parameters[name]
        if gate.device != device or gate.dtype not in (dtype, torch.float32):
            return f"{name} is {gate.dtype} on {gate.device}"
    if copies_needed(module, weight_format) and not torch.compiler.is_compiling():
        for weight in weights:
            if weight.is_inference():
                return "the parameters are inference tensors, whose changes cannot be seen"
    # A mask of another shape is transformers' to broadcast or to refuse.
    if mask is not None and (mask.dim() != 2 or mask.shape != hidden.shape[:2]):
        return "the mask is not (batch, tokens)"
    reason = why_not_supported(variant, device.type, dtype, *geometry(module, weight_format))
    return reason or None


def _why_not_cache(module: Any, hidden: Tensor, cache: Any) -> str | None:
    if not isinstance(cache, Cache) or not _inherits(
        cache, Cache, ("update_conv_state", "update_recurrent_state")
    ):
        return f"the cache is a {type(cache).__name__} with its own way of updating"
    layer = cache.layers[module.layer_idx]
    if not isinstance(layer, LinearAttentionLayer) or not _inherits(
        layer, LinearAttentionLayer, ("update_conv_state", "update_recurrent_state")
    ):
        return f"the cache holds the layer's states in a {type(layer).__name__}"
    if layer.record_past:
        return "the cache records the past (activate_past_recording, assisted decoding)"
    conv, recurrent = layer.conv_states[0], layer.recurrent_states[0]
    if conv is None and recurrent is None:
        return None
    if conv is None or recurrent is None:
        return "the cache has one of the two states only"
    if torch.is_grad_enabled():
        past = layer.has_previous_state[0] and needs_gradient(module, hidden)
        if past or conv.requires_grad or recurrent.requires_grad:
            return "a gradient may be needed through the cache's states"
    return _why_not_states(module, hidden, conv, recurrent)


def _why_not_states(module: Any, hidden: Tensor, conv: Tensor, recurrent: Tensor) -> str | None:
    batch = hidden.shape[0]
    if conv.shape != (batch, module.conv_dim, module.conv_kernel_size):
        return "the cache's conv state has another shape than this call and layer need"
    heads = (batch, module.num_v_heads, module.head_k_dim, module.head_v_dim)
    if recurrent.shape != heads:
        return "the cache's recurrent state has another shape than this call and layer need"
    if conv.dtype != hidden.dtype or recurrent.dtype != torch.float32:
        return f"the cache's states are {conv.dtype} and {recurrent.dtype}"
    if conv.device != hidden.device or recurrent.device != hidden.device:
        return f"the cache's states are on {conv.device} and {recurrent.device}"
    if recurrent.stride(-1) != 1 and recurrent.stride(-2) != 1:
        return "neither of the last two dims of the cache's recurrent state is contiguous"
    return None


def _inherits(value: object, base: type, methods: tuple[str, ...]) -> bool:
    for method in methods:  # noqa: SIM110 (as above)
        if getattr(type(value), method) is not getattr(base, method):
            return False
    return True
