"""A linear layer without a bias whose weight is packed; the rows come back on demand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torch_mps_fusion import packing


class PackedLinear(nn.Module):
    """Takes the place of an ``nn.Linear``; holds the packed weight and nothing else.

    ``state_dict`` and ``weight`` give the rows, as new tensors; ``load_state_dict`` takes rows.
    ``to`` packs again for the device and dtype. Inference only, except that a gradient flows to
    the input, through rows unpacked for the call.
    """

    packed: nn.Parameter

    def __init__(self, linear: nn.Linear, weight_format: str) -> None:
        """Packs ``linear``'s weight, whose memory is then given up; ``restore`` undoes both."""
        super().__init__()
        self.out_features, self.in_features = linear.weight.shape
        self.weight_format = weight_format
        self._pack(linear.weight.data)
        # Not a submodule: it holds no weight while this one stands for it.
        self.__dict__["_linear"] = linear
        linear.weight.data = linear.weight.data.new_empty(0)

    def restore(self) -> nn.Linear:
        """The linear that came in, its own parameter holding the weight again."""
        linear = self.__dict__["_linear"]
        linear.weight.data = self.weight
        return linear.train(self.training)

    @property
    def weight(self) -> Tensor:
        """(out_features, in_features), a new tensor."""
        return packing.unpack(
            self.packed.data, self.weight_format, self.out_features, self.in_features
        )

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            return F.linear(x, self.weight)
        return torch.ops.mps_fusion.packed_linear(
            x, [self.packed], out_features=self.out_features, weight_format=self.weight_format
        )

    def _pack(self, weight: Tensor) -> None:
        packed = packing.pack(weight, self.weight_format)
        self.packed = nn.Parameter(packed, requires_grad=False)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = self.weight

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        key = prefix + "weight"
        unexpected_keys += [
            name for name in state_dict if strict and name.startswith(prefix) and name != key
        ]
        if key not in state_dict:
            missing_keys += [key] if strict else []
        elif state_dict[key].shape != (self.out_features, self.in_features):
            error_msgs.append(
                f"size mismatch for {key}: got {tuple(state_dict[key].shape)}, accepted "
                f"{(self.out_features, self.in_features)}"
            )
        else:
            self._pack(state_dict[key].detach().to(self.packed))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        weight = fn(self.weight)
        lanes = "nvidia" if weight.device.type == "cuda" else "apple"
        self.weight_format = packing.format_name(lanes)
        self._pack(weight)
        return self

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.weight_format}"
