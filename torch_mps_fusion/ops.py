"""Typed functions over ``torch.ops.mps_fusion``, and the names that other packages use.

Shapes: B batch, T tokens, C channels, K convolution width, W width of the convolution state
(W >= K - 1), Hk/Hv key/value heads, Dk/Dv head dims. Errors are ``ValueError`` for an argument and
``NotImplementedError`` for a combination that nothing here runs; both are raised before any work.

The functional ops have gradients in every tensor but the mask (first derivatives, packed weights
excepted); the in-place ones and ``packed_linear`` refuse tensors that require grad. Gradients are
those of the formulas without the roundings between stages, at the rounded values, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import _C  # noqa: F401  (its import registers the ops)

VARIANTS = ("auto", "stock", "native", "packed", "core", "hybrid", "mega")


@dataclass(frozen=True)
class Support:
    """Whether a combination runs; ``reason`` says why not and is empty if it does."""

    ok: bool
    reason: str

    def __bool__(self) -> bool:
        return self.ok


def supports(
    variant: str = "auto",
    *,
    device: str | torch.device,
    dtype: torch.dtype,
    num_k_heads: int,
    num_v_heads: int,
    head_k_dim: int,
    head_v_dim: int,
    conv_width: int = 4,
    head_map: str = "block",
    weight_format: str = "rows",
    rows: int = 1,
    hidden_size: int = 0,
) -> Support:
    """Whether ``gdn_layer`` runs with these arguments: exactly what runs, nothing else.

    ``rows`` is the number of tokens in a call, of all sequences; ``hidden_size`` 0 is not looked
    at. An unknown ``variant`` or ``head_map`` is an error. On the CPU the shader variants run in
    ``metal_host``, whose compiler is no part of the answer: a call without it says what to install.
    """
    reason = torch.ops.mps_fusion._supports(
        torch.device(device).type,
        dtype,
        variant,
        num_k_heads=num_k_heads,
        num_v_heads=num_v_heads,
        head_k_dim=head_k_dim,
        head_v_dim=head_v_dim,
        conv_width=conv_width,
        head_map=head_map,
        weight_format=weight_format,
        rows=rows,
        hidden_size=hidden_size,
    )
    return Support(not reason, reason)


def check_launches(device: str | torch.device) -> None:
    """Waits for the device and raises RuntimeError if a ``hybrid`` or ``mega`` launch failed on it.

    A call on a device returns before it is done; on the CPU the call itself raises. Says which task
    waited for what, for the first program that failed, or that workers did not run to the end
    (launches of replayed graphs are not counted), and lets the next calls start afresh. The
    committed states are then as they were before the failed call. The control block of
    ``gdn_layer_slots_`` is looked at and cleared too, the slot word apart; until then it serves the
    stream of its first launch only.
    """
    torch.ops.mps_fusion._check_launches(torch.device(device).type)


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
    weight_format: str = "rows",
    eps: float = 1e-6,
    variant: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """One Gated DeltaNet layer; the states that come in stay whole.

    Args:
        hidden: (B, T, hidden), float32, float16 or bfloat16: the layer's dtype.
        in_proj: the rows of q, k, v, z, b, a as one tensor (conv_dim + Hv Dv + 2 Hv, hidden), or
            the checkpoint's four: qkv (conv_dim, hidden), z, b, a. Packed: one flat tensor, as
            ``packing.pack`` makes it of all of them.
        conv_weight: (conv_dim, K), conv_dim = 2 Hk Dk + Hv Dv.
        A_log, dt_bias: (Hv), the layer's dtype or float32.
        norm_weight: (Dv), used as ``w``.
        out_proj: one tensor (hidden, Hv Dv); packed: flat, on 16 bytes, like ``in_proj``.
        input_norm_weight: (hidden), used as ``1 + w``; given, the input is normalised and
            ``hidden`` is added to the result.
        conv_state: (B, conv_dim, W), W >= K - 1, the last W inputs of the convolution, oldest
            first. Both states or neither; neither means zeros.
        recurrent_state: (B, Hv, Dk, Dv) float32, Dk or Dv contiguous.
        mask: (B, T) bool, true for real tokens. A masked token acts as if it were not there.
        head_map: ``block`` (safetensors) or ``tiled`` (GGUF).
        weight_format: ``rows`` for ``stock``, ``native`` and ``auto``; the device's packed format
            for ``packed`` and ``core``. Nothing is packed inside a call.
        eps: of both RMS norms.

    Returns:
        output (B, T, hidden), conv_state as wide as the one given (else K wide), recurrent_state
        with Dk contiguous. None of them shares memory with an input.
    """
    return torch.ops.mps_fusion.gdn_layer(
        hidden,
        in_proj,
        conv_weight,
        A_log,
        dt_bias,
        norm_weight,
        out_proj,
        input_norm_weight,
        conv_state,
        recurrent_state,
        mask,
        num_k_heads=num_k_heads,
        num_v_heads=num_v_heads,
        head_k_dim=head_k_dim,
        head_v_dim=head_v_dim,
        head_map=head_map,
        weight_format=weight_format,
        eps=eps,
        variant=variant,
    )


def packed_linear(
    x: Tensor, weight: Sequence[Tensor], *, out_features: int, weight_format: str
) -> Tensor:
    """``x`` times a packed weight: any linear of a model without a bias.

    Args:
        x: (.., K), float32, float16 or bfloat16, K a multiple of 32.
        weight: one flat tensor on 16 bytes: ``packing.pack`` of (out_features, K), dtype of ``x``.
        weight_format: the packed format of the device, ``packing.format_name(lanes)``.

    Returns:
        (.., out_features). A row's bits do not depend on the other rows while there are at most as
        many as the device's row threshold; above it the product is aten's, on the weight unpacked.
    """
    return torch.ops.mps_fusion.packed_linear(
        x, weight, out_features=out_features, weight_format=weight_format
    )


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    **unsupported: object,
) -> tuple[Tensor, Tensor | None]:
    """flash-linear-attention's function of this name, on our kernels.

    Args:
        q, k: (B, T, Hk, Dk); v: (B, T, Hv, Dv); value head h uses key head ``h // (Hv / Hk)``.
        g: (B, T, Hv) log decay (zeros if None); beta: (B, T, Hv) (ones if None).
        scale: of q, ``1 / sqrt(Dk)`` if None.
        initial_state: (B, Hv, Dk, Dv) float32.
        gk, gv, cu_seqlens and any other keyword are refused unless None or False.

    Returns:
        o (B, T, Hv, Dv) and the final state (B, Hv, Dk, Dv) float32, or None unless asked for.
    """
    _refuse_given(
        "fused_recurrent_gated_delta_rule",
        {"gk": gk, "gv": gv, "cu_seqlens": cu_seqlens, **unsupported},
    )
    return _rule(
        q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel
    )


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    head_first: bool = False,
    **unsupported: object,
) -> tuple[Tensor, Tensor | None]:
    """flash-linear-attention's function of this name: the same values as the recurrent one.

    Arguments and results as in ``fused_recurrent_gated_delta_rule``; ``head_first`` is refused.
    """
    _refuse_given(
        "chunk_gated_delta_rule",
        {"cu_seqlens": cu_seqlens, "head_first": head_first, **unsupported},
    )
    return _rule(
        q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel
    )


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
    **unsupported: object,
) -> Tensor | tuple[Tensor, Tensor]:
    """causal-conv1d's function of this name.

    Args:
        x: (B, C, T); weight: (C, K); initial_states: (B, C, K - 1) or wider.
        final_states_out: (B, C, K - 1), written if ``return_final_states``.
        activation: None, "silu" or "swish".
        bias, seq_idx and any other keyword are refused unless None.

    Returns:
        out (B, C, T), and the last K - 1 inputs (B, C, K - 1) if ``return_final_states``.
    """
    name = "causal_conv1d_fn"
    _refuse_given(name, {"bias": bias, "seq_idx": seq_idx, **unsupported})
    if final_states_out is not None and not return_final_states:
        raise ValueError(f"{name}: final_states_out: got a tensor; accepted: None, since "
                         "return_final_states is False")  # fmt: skip
    if not return_final_states:
        out, _ = torch.ops.mps_fusion.causal_conv1d(
            x, weight, initial_states, activation=activation
        )
        return out
    history = max(weight.shape[-1] - 1, 0)
    if final_states_out is not None:
        expected = (*x.shape[:2], history)
        if tuple(final_states_out.shape) != expected or final_states_out.dtype != x.dtype:
            raise ValueError(
                f"{name}: final_states_out: got {tuple(final_states_out.shape)} "
                f"{final_states_out.dtype}; accepted: {expected} {x.dtype}"
            )
    out, state = torch.ops.mps_fusion.causal_conv1d(
        x, weight, initial_states, activation=activation
    )
    last = state[..., state.shape[-1] - history :]
    if final_states_out is None:
        return out, last.contiguous()
    return out, final_states_out.copy_(last)


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
    **unsupported: object,
) -> Tensor:
    """causal-conv1d's function of this name; ``conv_state`` is updated in place.

    Args:
        x: (B, C) or (B, C, T); conv_state: (B, C, W), W >= K - 1; weight: (C, K).
        activation: None, "silu" or "swish".
        bias, cache_seqlens, conv_state_indices and any other keyword are refused unless None.

    Returns:
        out of x's shape.
    """
    _refuse_given(
        "causal_conv1d_update",
        {
            "bias": bias,
            "cache_seqlens": cache_seqlens,
            "conv_state_indices": conv_state_indices,
            **unsupported,
        },
    )
    one_token = x.dim() == 2
    out = torch.ops.mps_fusion.causal_conv1d_(
        x.unsqueeze(-1) if one_token else x, conv_state, weight, activation=activation
    )
    return out.squeeze(-1) if one_token else out


def _rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    scale: float | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    qk_l2norm: bool,
) -> tuple[Tensor, Tensor | None]:
    if g is None:
        g = v.new_zeros(v.shape[:3], dtype=torch.float32)
    if beta is None:
        beta = v.new_ones(v.shape[:3], dtype=torch.float32)
    output, state = torch.ops.mps_fusion.gated_delta_rule(
        q, k, v, g.float(), beta, initial_state,
        head_map="block", scale=scale, qk_l2norm=qk_l2norm,
    )  # fmt: skip
    return output, state if output_final_state else None


def _refuse_given(function: str, arguments: dict[str, object]) -> None:
    """None of our kernels uses these: given, they would change the result, so they raise."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            what = type(value).__name__ if isinstance(value, Tensor) else repr(value)
            raise NotImplementedError(
                f"{function}: {name}: got {what}; accepted: None (not supported)"
            )
