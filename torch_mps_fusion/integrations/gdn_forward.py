"""The forward of transformers' GDN modules, as one op on the cache's own tensors."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn

from torch_mps_fusion.integrations.fallback import needs_gradient, warn_once, why_original
from torch_mps_fusion.integrations.gdn_operands import operands
from torch_mps_fusion.models.choice import format_for, variant_for

_MODELS = itertools.count()


def layer_class(variant: str) -> type[nn.Module]:
    """A class whose ``forward`` takes the place of a GDN module's; it has no state of its own.

    The forward runs ``gdn_layer_`` on the module's parameters (``gdn_layer`` without a cache, or
    where a gradient may be needed), or the module's own class's forward where
    ``fallback.why_original`` has a reason. Each class made here warns once a reason.
    """
    model = next(_MODELS)

    class FusedGatedDeltaNet(nn.Module):
        can_torch_compile = True
        has_backward = True

        def forward(
            self,
            hidden_states: Tensor,
            cache: Any = None,
            attention_mask: Tensor | None = None,
            **kwargs: Any,
        ) -> Tensor:
            if "cache_params" in kwargs:  # the keyword's name before transformers 5.23
                if cache is not None:
                    raise TypeError("forward: got both cache and cache_params; accepted: one")
                cache = kwargs.pop("cache_params")
            return run(self, variant, model, hidden_states, cache, attention_mask, kwargs)

    return FusedGatedDeltaNet


def run(
    module: Any,
    variant: str,
    model: int,
    hidden: Tensor,
    cache: Any,
    mask: Tensor | None,
    keywords: dict[str, Any],
) -> Tensor:
    """One call of a fused layer: the op's, or the original's with a warning."""
    if hidden.dim() == 3:  # else it is not ours
        dims = module.head_k_dim, module.head_v_dim, module.conv_kernel_size
        variant = variant_for(variant, hidden, *dims)
    weight_format = format_for(variant, hidden.device)
    reason = why_original(module, variant, weight_format, hidden, cache, mask, keywords)
    if reason is not None:
        warn_once(model, module.layer_idx, reason)
        return type(module).forward(module, hidden, cache, mask, **keywords)
    if mask is not None:
        # As transformers does: a pad still decays the state, which a mask of the op would not do.
        hidden = (hidden * mask[:, :, None]).to(hidden.dtype)
    in_proj, out_proj = operands(module, weight_format)
    children, own = module._modules, module._parameters
    weights = (
        in_proj,
        children["conv1d"]._parameters["weight"].squeeze(1),
        own["A_log"],
        own["dt_bias"],
        children["norm"]._parameters["weight"],
        out_proj,
    )
    geometry = {
        "num_k_heads": module.num_k_heads,
        "num_v_heads": module.num_v_heads,
        "head_k_dim": module.head_k_dim,
        "head_v_dim": module.head_v_dim,
        "head_map": "block",
        "weight_format": weight_format,
        "eps": children["norm"].variance_epsilon,
        "variant": variant,
    }
    if cache is None:
        return torch.ops.mps_fusion.gdn_layer(hidden, *weights, **geometry)[0]
    layer = cache.layers[module.layer_idx]
    conv, recurrent = _states(module, layer, hidden)
    if needs_gradient(module, hidden):
        # The op in place has no gradient. The cache has no past here (``why_original``); as in
        # transformers, its tensors become part of the graph.
        output, *after = torch.ops.mps_fusion.gdn_layer(hidden, *weights, **geometry)
        conv.copy_(after[0])
        recurrent.copy_(after[1])
    else:
        output = torch.ops.mps_fusion.gdn_layer_(hidden, conv, recurrent, *weights, **geometry)
    layer.has_previous_state[0] = True
    return output


def _states(module: Any, layer: Any, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """The cache layer's two tensors: made by its own method if need be, zero without a past."""
    batch = hidden.shape[0]
    if layer.conv_states[0] is None:
        like = hidden.new_empty((batch, module.conv_dim, module.conv_kernel_size))
        layer.lazy_initialization(conv_states=like, conv_kernel_size=module.conv_kernel_size)
        heads = (batch, module.num_v_heads, module.head_v_dim, module.head_k_dim)
        # The cache keeps the strides: Dk contiguous, the order of the states that we make.
        columns = hidden.new_empty(heads, dtype=torch.float32).transpose(2, 3)
        layer.lazy_initialization(recurrent_states=columns)
    elif not layer.has_previous_state[0]:
        layer.conv_states[0].zero_()
        layer.recurrent_states[0].zero_()
    return layer.conv_states[0], layer.recurrent_states[0]
