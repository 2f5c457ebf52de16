"""The Gated DeltaNet layer in float64: the arithmetic that every variant is compared with.

Two readings of the same formulas, chosen by ``rounding``:

- ``None``: nothing is rounded; what the formulas say.
- a dtype: values stay float64, but each is rounded to that dtype where a checkpoint of that dtype
  rounds it (the projections, the convolution twice, beta, the rule's output, the gated norm three
  times, the output projection, the residual sum). What a faithful implementation aims at.

Plain loops and index lists on purpose: slow, and easy to believe.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

L2_NORM_EPS = 1e-6
SOFTPLUS_THRESHOLD = 20.0


def rounded(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """``x`` in float64, rounded to ``dtype`` on the way unless that is None or float64."""
    return x.double() if dtype is None else x.to(dtype).double()


def key_heads(num_k_heads: int, num_v_heads: int, head_map: str) -> list[int]:
    """The key head of each value head: ``block`` is ``h // (Hv / Hk)``, ``tiled`` is ``h % Hk``."""
    if num_v_heads % num_k_heads:
        raise ValueError(f"num_v_heads: got {num_v_heads}; accepted: a multiple of {num_k_heads}")
    if head_map == "block":
        return [h // (num_v_heads // num_k_heads) for h in range(num_v_heads)]
    if head_map == "tiled":
        return [h % num_k_heads for h in range(num_v_heads)]
    raise ValueError(f"head_map: got {head_map!r}; accepted: 'block', 'tiled'")


def rms_norm(x: Tensor, weight: Tensor, eps: float, rounding: torch.dtype | None = None) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * (1 + weight)`` over the last dim."""
    x = x.double()
    normed = x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)
    return rounded(normed * (1 + weight.double()), rounding)


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    state: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    activation: str | None = "silu",
    rounding: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Depthwise causal convolution: ``y[c, t] = sum_j weight[c, j] x[c, t - (K - 1) + j]``.

    ``x`` (B, C, T), ``weight`` (C, K), ``state`` (B, C, W) the inputs before ``x`` (zeros if None,
    then W = K), ``mask`` (B, T). Returns the output (B, C, T) and the last W inputs (B, C, W).
    """
    if mask is not None:
        return _each_row_without_masked_tokens(
            lambda x_, s_: causal_conv1d(x_, weight, s_, activation=activation, rounding=rounding),
            mask,
            x,
            state,
            token_dim=2,
        )
    batch, channels, tokens = x.shape
    width = weight.shape[1]
    if state is None:
        state = x.new_zeros(batch, channels, width)
    history = torch.cat([state.double(), x.double()], dim=2)
    first = state.shape[2] - (width - 1)
    y = torch.zeros(batch, channels, tokens, dtype=torch.float64, device=x.device)
    for j in range(width):
        y += weight[:, j].double()[:, None] * history[:, :, first + j : first + j + tokens]
    y = rounded(y, rounding)
    if activation is not None:
        y = rounded(silu(y), rounding)
    return y, history[:, :, tokens:].clone()


def gates(
    a: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, rounding: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """Log decay ``g = -exp(A_log) softplus(a + dt_bias)`` and ``beta = sigmoid(b)``, (B, T, Hv)."""
    softplus = torch.nn.functional.softplus(
        a.double() + dt_bias.double(), threshold=SOFTPLUS_THRESHOLD
    )
    return -A_log.double().exp() * softplus, rounded(torch.sigmoid(b.double()), rounding)


def l2_normalised(x: Tensor) -> Tensor:
    return x / torch.sqrt(x.square().sum(-1, keepdim=True) + L2_NORM_EPS)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    head_map: str,
    scale: float | None = None,
    qk_l2norm: bool = False,
    rounding: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Per token and value head, with the state S (Dk, Dv)::

        S <- exp(g) S;   d = beta (v - S^T k);   S <- S + k d^T;   o = S^T q

    ``q``, ``k`` (B, T, Hk, Dk), ``v`` (B, T, Hv, Dv), ``g``, ``beta`` (B, T, Hv), ``state``
    (B, Hv, Dk, Dv). Returns the output (B, T, Hv, Dv) and the state.
    """
    if mask is not None:
        return _each_row_without_masked_tokens(
            lambda q_, k_, v_, g_, beta_, s_: gated_delta_rule(
                q_, k_, v_, g_, beta_, s_,
                head_map=head_map, scale=scale, qk_l2norm=qk_l2norm, rounding=rounding,
            ),
            mask, q, k, v, g, beta, state,
        )  # fmt: skip
    batch, tokens, num_k_heads, head_k_dim = q.shape
    num_v_heads, head_v_dim = v.shape[2:]
    q, k, v, g, beta = (t.double() for t in (q, k, v, g, beta))
    if qk_l2norm:
        q, k = l2_normalised(q), l2_normalised(k)
    heads = key_heads(num_k_heads, num_v_heads, head_map)
    q = q[:, :, heads] * (head_k_dim**-0.5 if scale is None else scale)
    k = k[:, :, heads]
    if state is None:
        state = q.new_zeros(batch, num_v_heads, head_k_dim, head_v_dim)
    s = state.double().clone()
    o = torch.zeros_like(v)
    for t in range(tokens):
        s *= g[:, t].exp()[..., None, None]
        d = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", s, k[:, t]))
        s += k[:, t, :, :, None] * d[:, :, None, :]
        o[:, t] = torch.einsum("bhkv,bhk->bhv", s, q[:, t])
    return rounded(o, rounding), s


def gated_rms_norm(
    o: Tensor, z: Tensor, weight: Tensor, eps: float, rounding: torch.dtype | None = None
) -> Tensor:
    """``weight * (o / sqrt(mean(o^2) + eps)) * silu(z)`` over the last dim, rounded three times."""
    o = o.double()
    u = rounded(o / torch.sqrt(o.square().mean(-1, keepdim=True) + eps), rounding)
    u = rounded(weight.double() * u, rounding)
    return rounded(u * silu(z.double()), rounding)


def gdn_layer(
    hidden: Tensor,
    in_proj: Sequence[Tensor],
    conv_weight: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    out_proj: Sequence[Tensor],
    input_norm_weight: Tensor | None = None,
    conv_state: Tensor | None = None,
    recurrent_state: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    num_k_heads: int,
    num_v_heads: int,
    head_k_dim: int,
    head_v_dim: int,
    head_map: str,
    eps: float = 1e-6,
    rounding: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The layer with the arguments of ``mps_fusion::gdn_layer`` (``rows`` weights), in float64.

    Returns output (B, T, hidden), conv_state (B, conv_dim, W), recurrent_state (B, Hv, Dk, Dv).
    """
    if mask is not None:
        output, *states = _each_row_without_masked_tokens(
            lambda hidden_, conv_, recurrent_: gdn_layer(
                hidden_, in_proj, conv_weight, A_log, dt_bias, norm_weight, out_proj,
                input_norm_weight, conv_, recurrent_,
                num_k_heads=num_k_heads, num_v_heads=num_v_heads, head_k_dim=head_k_dim,
                head_v_dim=head_v_dim, head_map=head_map, eps=eps, rounding=rounding,
            ),
            mask, hidden, conv_state, recurrent_state, states=2,
        )  # fmt: skip
        if input_norm_weight is not None:
            output = torch.where(mask[..., None], output, hidden.double())
        return output, states[0], states[1]

    batch, tokens, _ = hidden.shape
    key_dim, value_dim = num_k_heads * head_k_dim, num_v_heads * head_v_dim
    x = hidden.double()
    if input_norm_weight is not None:
        x = rms_norm(x, input_norm_weight, eps, rounding)
    weight = torch.cat([w.double() for w in in_proj])
    projected = rounded(x @ weight.T, rounding)
    qkv, z, b, a = projected.split(
        [2 * key_dim + value_dim, value_dim, num_v_heads, num_v_heads], dim=-1
    )
    mixed, conv_state = causal_conv1d(
        qkv.transpose(1, 2), conv_weight, conv_state, rounding=rounding
    )
    q, k, v = mixed.transpose(1, 2).split([key_dim, key_dim, value_dim], dim=-1)
    g, beta = gates(a, b, A_log, dt_bias, rounding)
    o, recurrent_state = gated_delta_rule(
        q.reshape(batch, tokens, num_k_heads, head_k_dim),
        k.reshape(batch, tokens, num_k_heads, head_k_dim),
        v.reshape(batch, tokens, num_v_heads, head_v_dim),
        g, beta, recurrent_state, head_map=head_map, qk_l2norm=True, rounding=rounding,
    )  # fmt: skip
    z = z.reshape(batch, tokens, num_v_heads, head_v_dim)
    normed = gated_rms_norm(o, z, norm_weight, eps, rounding).reshape(batch, tokens, value_dim)
    output = rounded(normed @ out_proj[0].double().T, rounding)
    if input_norm_weight is not None:
        output = rounded(hidden.double() + output, rounding)
    return output, conv_state, recurrent_state


def _each_row_without_masked_tokens(call, mask: Tensor, *tensors, token_dim: int = 1, states=1):
    """Run ``call`` on each batch row with its masked tokens taken out, and put zeros there.

    ``tensors`` are the per-token inputs followed by the last ``states`` states (each may be None).
    """
    inputs, given = tensors[:-states], tensors[-states:]
    rows = []
    for row in range(mask.shape[0]):
        real = mask[row].nonzero().squeeze(1)
        out, *new_states = call(
            *(t[row : row + 1].index_select(token_dim, real) for t in inputs),
            *(None if s is None else s[row : row + 1] for s in given),
        )
        shape = list(out.shape)
        shape[token_dim] = mask.shape[1]
        full = out.new_zeros(shape).index_copy(token_dim, real, out)
        rows.append((full, *new_states))
    return tuple(torch.cat(parts) for parts in zip(*rows, strict=True))
