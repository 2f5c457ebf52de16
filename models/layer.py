"""GatedDeltaNet: one layer as a module, run by ``torch.ops.mps_fusion.gdn_layer``."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from torch_mps_fusion import _C  # noqa: F401 (it registers the ops)
from torch_mps_fusion.models.choice import PERSISTENT, format_for, variant_for
from torch_mps_fusion.models.config import GDNConfig
from torch_mps_fusion.models.loader import DTYPES, load_layer, resolve_device
from torch_mps_fusion.models.names import (
    DECAY_PARAMETERS,
    INPUT_NORM_PARAMETER,
    parameter_shapes,
)
from torch_mps_fusion.models.operands import OPERANDS, join
from torch_mps_fusion.models.packed_module import PackedProjections
from torch_mps_fusion.models.random_weights import random_weights
from torch_mps_fusion.state import GDNState


class Weight(nn.Module):
    """Holds one tensor, so that its name ends in ``.weight`` as in the checkpoint."""

    weight: nn.Parameter


class GatedDeltaNet(PackedProjections):
    """One GDN layer with the parameter names of Qwen3.5 checkpoints.

    Parameters are for inference: they are made with ``requires_grad=False``. With
    ``input_norm_weight`` the module is the whole residual branch of the decoder layer,
    ``x + mixer(rms_norm(x) * (1 + w))``; without it, the mixer alone.

    Make one with ``from_safetensors`` or ``from_config``.
    """

    in_proj_qkv: Weight
    in_proj_z: Weight
    in_proj_b: Weight
    in_proj_a: Weight
    conv1d: Weight
    A_log: nn.Parameter
    dt_bias: nn.Parameter
    norm: Weight
    out_proj: Weight
    input_norm_weight: nn.Parameter | None

    def __init__(self, config: GDNConfig, weights: Mapping[str, Tensor]) -> None:
        """Takes complete weights, by parameter name, without a copy.

        Args:
            config: the geometry.
            weights: the tensors of ``names.parameter_shapes``, optionally ``input_norm_weight``
                (H,). One dtype and device; ``A_log`` and ``dt_bias`` may be float32 in any case.

        Raises:
            ValueError: a tensor is missing, unknown, or of another shape, dtype or device.
        """
        super().__init__()
        _check_weights(config, weights)
        self.config = config
        self.register_parameter(INPUT_NORM_PARAMETER, None)
        for name, tensor in weights.items():
            holder, _, leaf = name.rpartition(".")
            if holder and holder not in self._modules:
                self.add_module(holder, Weight())
            self.get_submodule(holder).register_parameter(
                leaf, nn.Parameter(tensor, requires_grad=False)
            )

    @classmethod
    def from_config(
        cls,
        config: GDNConfig,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        with_input_norm: bool = False,
        seed: int = 0,
    ) -> GatedDeltaNet:
        """A layer with seeded random weights (see ``random_weights``); it knows nothing."""
        target = resolve_device(device)
        weights = random_weights(config, dtype=dtype, seed=seed, with_input_norm=with_input_norm)
        weights = {name: tensor.to(target) for name, tensor in weights.items()}
        for names in OPERANDS.values():
            weights |= zip(names, join([weights[name] for name in names]), strict=True)
        return cls(config, weights)

    @classmethod
    def from_safetensors(
        cls,
        path: str | os.PathLike[str],
        layer_idx: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        with_input_norm: bool = False,
        *,
        config: GDNConfig | None = None,
    ) -> GatedDeltaNet:
        """Loads one layer of a checkpoint: arguments and errors are those of ``load_layer``."""
        config, weights = load_layer(
            path,
            layer_idx,
            config=config,
            device=device,
            dtype=dtype,
            with_input_norm=with_input_norm,
        )
        return cls(config, weights)

    @property
    def dtype(self) -> torch.dtype:
        """The model dtype, that of activations, projections and the convolution state."""
        return self.norm.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.norm.weight.device

    def new_state(self, batch_size: int) -> GDNState:
        """The state before the first token, for ``batch_size`` sequences; W is K."""
        config = self.config
        return GDNState.zeros(
            batch_size,
            conv_dim=config.conv_dim,
            conv_width=config.conv_kernel_size,
            num_v_heads=config.num_v_heads,
            head_k_dim=config.head_k_dim,
            head_v_dim=config.head_v_dim,
            dtype=self.dtype,
            device=self.device,
        )

    def forward(
        self,
        x: Tensor,
        state: GDNState | None = None,
        *,
        mask: Tensor | None = None,
        variant: str = "auto",
    ) -> Tensor:
        """Runs the layer on the next T tokens of each sequence.

        Args:
            x: (B, T, H), model dtype.
            state: advanced in place by the T tokens; None starts at zero and keeps nothing.
            mask: (B, T) bool, true for real tokens; a masked token leaves the state alone.
            variant: which implementation runs; ``auto`` chooses for the device. Above the device's
                row threshold (32) ``core`` runs in place of ``hybrid`` and ``mega``, which keep a
                state of ``new_state`` in two slots (``GDNState.slots``).

        Returns:
            (B, T, H), model dtype.
        """
        if state is not None and not isinstance(state, GDNState):
            raise TypeError(f"state must be a GDNState or None, got {type(state).__name__}")
        config = self.config
        dims = config.head_k_dim, config.head_v_dim, config.conv_kernel_size
        variant = variant_for(variant, x, *dims)
        weight_format = format_for(variant, x.device)
        in_proj, out_proj = self.projections(weight_format)
        weights = (
            in_proj,
            self.conv1d.weight.squeeze(1),
            self.A_log,
            self.dt_bias,
            self.norm.weight,
            out_proj,
            self.input_norm_weight,
        )
        keywords = {
            "num_k_heads": config.num_k_heads,
            "num_v_heads": config.num_v_heads,
            "head_k_dim": config.head_k_dim,
            "head_v_dim": config.head_v_dim,
            "head_map": "block",
            "weight_format": weight_format,
            "eps": config.rms_norm_eps,
            "variant": variant,
        }
        if state is None:
            return torch.ops.mps_fusion.gdn_layer(x, *weights, mask=mask, **keywords)[0]
        slots = state.slots() if variant in PERSISTENT else None
        if slots is not None:
            return torch.ops.mps_fusion.gdn_layer_slots_(x, *slots, *weights, mask=mask, **keywords)
        return torch.ops.mps_fusion.gdn_layer_(
            x, state.conv, state.recurrent, *weights, mask=mask, **keywords
        )

    def extra_repr(self) -> str:
        c = self.config
        return (
            f"hidden_size={c.hidden_size}, key heads {c.num_k_heads} x {c.head_k_dim}, "
            f"value heads {c.num_v_heads} x {c.head_v_dim}, conv {c.conv_kernel_size}, "
            f"input norm {self.input_norm_weight is not None}, {self.dtype}, {self.device}"
        )


def _check_weights(config: GDNConfig, weights: Mapping[str, Tensor]) -> None:
    shapes = parameter_shapes(config)
    if INPUT_NORM_PARAMETER in weights:
        shapes[INPUT_NORM_PARAMETER] = (config.hidden_size,)
    if weights.keys() != shapes.keys():
        missing = sorted(shapes.keys() - weights.keys())
        unknown = sorted(weights.keys() - shapes.keys())
        raise ValueError(f"weights lack {missing} and have the unknown {unknown}")
    reference = weights["out_proj.weight"]
    if reference.dtype not in DTYPES:
        accepted = ", ".join(map(str, DTYPES))
        raise ValueError(f"weights: out_proj.weight is {reference.dtype}; accepted: {accepted}")
    for name, tensor in weights.items():
        if tuple(tensor.shape) != shapes[name]:
            raise ValueError(
                f"weights: {name} has shape {list(tensor.shape)}, the config asks for "
                f"{list(shapes[name])}"
            )
        wide = name in DECAY_PARAMETERS and tensor.dtype == torch.float32
        if tensor.dtype != reference.dtype and not wide:
            raise ValueError(
                f"weights: {name} is {tensor.dtype}; accepted: {reference.dtype}"
                + (", or torch.float32" if name in DECAY_PARAMETERS else "")
            )
        if tensor.device != reference.device:
            raise ValueError(f"weights: {name} is on {tensor.device}, not on {reference.device}")
