"""The formulas in operations that autograd differentiates: what the gradients are compared with.

As ``torch_mps_fusion.reference``, but nothing is written in place. Everything is in the dtype of
the arguments. ``rounding`` rounds where a checkpoint of that dtype does and passes gradients
through, so that autodiff gives the unrounded formulas' gradients at the rounded values.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from torch_mps_fusion.reference import key_heads


def rounded(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    return x if dtype is None else x + (x.to(dtype).to(x.dtype) - x).detach()


def l2_normalised(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def rule(q, k, v, g, beta, state=None, mask=None, *, head_map, scale=None, qk_l2norm=False):
    """The gated delta rule token by token: (B, T, Hv, Dv) and the state."""
    batch, tokens, num_k_heads, head_k_dim = q.shape
    num_v_heads, head_v_dim = v.shape[2:]
    if mask is not None:
        q, k, v = (t.masked_fill(~mask[:, :, None, None], 0) for t in (q, k, v))
        g, beta = (t.masked_fill(~mask[:, :, None], 0) for t in (g, beta))
    if qk_l2norm:
        q, k = l2_normalised(q), l2_normalised(k)
    heads = key_heads(num_k_heads, num_v_heads, head_map)
    q, k = q[:, :, heads] * (head_k_dim**-0.5 if scale is None else scale), k[:, :, heads]
    s = q.new_zeros(batch, num_v_heads, head_k_dim, head_v_dim) if state is None else state
    outputs = []
    for t in range(tokens):
        s = s * g[:, t, :, None, None].exp()
        d = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", s, k[:, t]))
        s = s + k[:, t, :, :, None] * d[:, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", s, q[:, t]))
    return torch.stack(outputs, 1), s


def conv(x, weight, state=None, *, activation="silu", rounding=None):
    """The causal convolution, without a mask: (B, C, T) and the state."""
    width = weight.shape[1]
    if state is None:
        state = x.new_zeros(*x.shape[:2], width)
    window = torch.cat([state, x], 2)
    seen = window[:, :, state.shape[2] - (width - 1) :]
    y = rounded(functional.conv1d(seen, weight[:, None], groups=x.shape[1]), rounding)
    if activation is not None:
        y = rounded(functional.silu(y), rounding)
    return y, window[:, :, x.shape[2] :]


def layer(
    hidden, in_proj, conv_weight, A_log, dt_bias, norm_weight, out_proj, input_norm_weight=None,
    conv_state=None, recurrent_state=None, *, num_k_heads, num_v_heads, head_k_dim, head_v_dim,
    head_map, eps=1e-6, rounding=None,
):  # fmt: skip
    """``gdn_layer`` on weights in rows, without a mask."""
    batch, tokens, _ = hidden.shape
    key_dim, value_dim = num_k_heads * head_k_dim, num_v_heads * head_v_dim
    x = hidden
    if input_norm_weight is not None:
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (1 + input_norm_weight)
        x = rounded(x, rounding)
    projected = rounded(x @ torch.cat(list(in_proj)).T, rounding)
    qkv, z, b, a = projected.split(
        [2 * key_dim + value_dim, value_dim, num_v_heads, num_v_heads], dim=-1
    )
    mixed, conv_state = conv(qkv.mT, conv_weight, conv_state, rounding=rounding)
    q, k, v = mixed.mT.split([key_dim, key_dim, value_dim], dim=-1)
    g = -A_log.exp() * functional.softplus(a + dt_bias)
    o, recurrent_state = rule(
        q.unflatten(-1, (num_k_heads, head_k_dim)),
        k.unflatten(-1, (num_k_heads, head_k_dim)),
        v.unflatten(-1, (num_v_heads, head_v_dim)),
        g, rounded(torch.sigmoid(b), rounding), recurrent_state, head_map=head_map, qk_l2norm=True,
    )  # fmt: skip
    o = rounded(o, rounding)
    u = rounded(o * torch.rsqrt(o.square().mean(-1, keepdim=True) + eps), rounding)
    z = z.unflatten(-1, (num_v_heads, head_v_dim))
    normed = rounded(rounded(norm_weight * u, rounding) * functional.silu(z), rounding)
    output = rounded(normed.flatten(2) @ out_proj[0].T, rounding)
    if input_norm_weight is not None:
        output = rounded(hidden + output, rounding)
    return output, conv_state, recurrent_state
