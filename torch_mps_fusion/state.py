"""GDNState: what one GDN layer remembers of the tokens it has seen, for a batch of sequences."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_CONV_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Of a control block, shaders/include/tasks.h: its words; bit 0 of this one is the committed slot.
CONTROL_WORDS, SLOT_WORD = 16, 5


class GDNState:
    """The two states of one layer. Ops that are given a state update its tensors in place.

    Attributes:
        conv: (B, conv_dim, W), model dtype: the last W inputs of the convolution, newest last.
        recurrent: (B, Hv, Dk, Dv), float32. States made here keep Dk contiguous in memory (a
            transposed view); tensors that are given may keep Dv contiguous instead.

    The constructor takes existing tensors, such as those of a transformers cache, without a copy.

    A state made here can live in two slots (`slots`), of which `conv` and `recurrent` are the
    committed one: asked for after a call on the slots, they wait for the device, and they are
    other tensors than before that call.
    """

    def __init__(self, conv: Tensor, recurrent: Tensor) -> None:
        """Checks and keeps the two tensors.

        Raises:
            TypeError: not tensors.
            ValueError: a dtype, shape, device or layout that no op accepts.
        """
        _check_conv(conv)
        _check_recurrent(recurrent)
        if conv.shape[0] != recurrent.shape[0]:
            raise ValueError(
                f"conv holds {conv.shape[0]} sequences, recurrent holds {recurrent.shape[0]}"
            )
        if conv.device != recurrent.device:
            raise ValueError(f"conv is on {conv.device}, recurrent on {recurrent.device}")
        self._tensors: tuple[Tensor, Tensor] | None = (conv, recurrent)
        self._slots: tuple[Tensor, Tensor, Tensor] | None = None
        self._made = False  # here: nobody else holds the tensors

    @property
    def conv(self) -> Tensor:
        return self._committed()[0]

    @conv.setter
    def conv(self, tensor: Tensor) -> None:
        if tensor is not self._committed()[0]:
            self.__init__(tensor, self.recurrent)  # type: ignore[misc]

    @property
    def recurrent(self) -> Tensor:
        return self._committed()[1]

    @recurrent.setter
    def recurrent(self, tensor: Tensor) -> None:
        if tensor is not self._committed()[1]:
            self.__init__(self.conv, tensor)  # type: ignore[misc]

    def slots(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """What `gdn_layer_slots_` takes: two slots of each state, and their control block.

        The first call makes them and copies the states once; None for a state on tensors that were
        given, whose owner sees them updated. The caller runs an op on the slots before it asks for
        `conv` or `recurrent`.
        """
        if not self._made:
            return None
        if self._slots is None:
            conv, stored = self.conv, self.recurrent.transpose(-1, -2)
            both = [
                torch.empty((2, *t.shape), dtype=t.dtype, device=t.device) for t in (conv, stored)
            ]
            for slots, tensor in zip(both, (conv, stored), strict=True):
                slots[0].copy_(tensor)
            control = torch.zeros(CONTROL_WORDS, dtype=torch.int32, device=conv.device)
            self._slots = both[0], both[1].transpose(-1, -2), control
        self._tensors = None
        return self._slots

    def _committed(self) -> tuple[Tensor, Tensor]:
        if self._tensors is None:
            assert self._slots is not None
            conv, recurrent, control = self._slots
            slot = int(control[SLOT_WORD]) & 1
            self._tensors = conv[slot], recurrent[slot]
        return self._tensors

    def _any(self) -> tuple[Tensor, Tensor]:
        """The tensors of one slot, whichever: the device is not asked."""
        if self._slots is None:
            return self._committed()
        return self._slots[0][0], self._slots[1][0]

    @classmethod
    def zeros(
        cls,
        batch_size: int,
        *,
        conv_dim: int,
        conv_width: int,
        num_v_heads: int,
        head_k_dim: int,
        head_v_dim: int,
        dtype: torch.dtype,
        device: torch.device | str | None = None,
    ) -> GDNState:
        """The state before the first token. ``dtype`` is the model's, for ``conv`` only."""
        conv = torch.zeros(batch_size, conv_dim, conv_width, dtype=dtype, device=device)
        stored = torch.zeros(
            batch_size, num_v_heads, head_v_dim, head_k_dim, dtype=torch.float32, device=device
        )
        return cls._new(conv, stored)

    @classmethod
    def _new(cls, conv: Tensor, stored: Tensor) -> GDNState:
        """A state on new tensors; stored: (B, Hv, Dv, Dk)."""
        state = cls(conv, stored.transpose(-1, -2))
        state._made = True
        return state

    @property
    def batch_size(self) -> int:
        return self._any()[0].shape[0]

    @property
    def device(self) -> torch.device:
        return self._any()[0].device

    @property
    def dtype(self) -> torch.dtype:
        """The model dtype; ``recurrent`` is float32 whatever this is."""
        return self._any()[0].dtype

    @torch.no_grad()
    def reset(self) -> None:
        """Forgets everything, in the same memory."""
        for tensor in self._slots[:2] if self._slots is not None else self._committed():
            tensor.zero_()

    def clone(self) -> GDNState:
        """An independent copy, Dk contiguous."""
        return self._map(lambda t: t.clone(memory_format=torch.contiguous_format))

    def reorder(self, batch_idx: Tensor) -> GDNState:
        """A new state whose sequence i is this state's sequence ``batch_idx[i]`` (beam search).

        Args:
            batch_idx: (N,), int32 or int64, each in 0..B-1; N may differ from B.
        """
        if not isinstance(batch_idx, Tensor):
            raise TypeError(f"batch_idx must be a tensor, got {type(batch_idx).__name__}")
        if batch_idx.dim() != 1 or batch_idx.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"batch_idx must be an int32 or int64 vector, got {batch_idx.dtype} of shape "
                f"{list(batch_idx.shape)}"
            )
        # Checked here because an index out of range is undefined on some devices.
        if batch_idx.numel() and not bool(((batch_idx >= 0) & (batch_idx < self.batch_size)).all()):
            raise ValueError(
                f"batch_idx must lie in 0..{self.batch_size - 1}, got {batch_idx.tolist()}"
            )
        idx = batch_idx.to(self.device)
        return self._map(lambda t: t.index_select(0, idx))

    def to(
        self, device: torch.device | str | None = None, *, dtype: torch.dtype | None = None
    ) -> GDNState:
        """This state on ``device``, with ``conv`` in ``dtype``; itself if nothing changes."""
        conv = self.conv.to(device=device or self.device, dtype=dtype or self.dtype)
        if conv is self.conv:
            return self
        stored = self.recurrent.transpose(-1, -2).to(device=conv.device, copy=True)
        return GDNState._new(conv, stored.contiguous())

    def __repr__(self) -> str:
        conv, recurrent = self._any()
        return (
            f"GDNState(conv={list(conv.shape)} {conv.dtype}, "
            f"recurrent={list(recurrent.shape)} {recurrent.dtype}, device={conv.device})"
        )

    def _map(self, copy: Callable[[Tensor], Tensor]) -> GDNState:
        """A new state from copies of both tensors, the recurrent one with Dk contiguous."""
        return GDNState._new(copy(self.conv), copy(self.recurrent.transpose(-1, -2)))


def _check_conv(conv: Tensor) -> None:
    _check_tensor(conv, "conv", "(B, conv_dim, W)")
    if conv.dtype not in _CONV_DTYPES:
        accepted = ", ".join(map(str, _CONV_DTYPES))
        raise ValueError(f"conv has dtype {conv.dtype}; accepted: {accepted}")


def _check_recurrent(recurrent: Tensor) -> None:
    _check_tensor(recurrent, "recurrent", "(B, Hv, Dk, Dv)")
    if recurrent.dtype != torch.float32:
        raise ValueError(f"recurrent has dtype {recurrent.dtype}; accepted: torch.float32")
    (dk, dv), (step_k, step_v) = recurrent.shape[2:], recurrent.stride()[2:]
    v_contiguous = (dv == 1 or step_v == 1) and (dk == 1 or step_k >= dv)
    k_contiguous = (dk == 1 or step_k == 1) and (dv == 1 or step_v >= dk)
    if not (v_contiguous or k_contiguous):
        raise ValueError(
            f"recurrent has strides {recurrent.stride()}; the elements of Dk or of Dv must be "
            "contiguous (stride 1, the other stride at least that size)"
        )


def _check_tensor(tensor: Tensor, name: str, dims: str) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if tensor.dim() != dims.count(",") + 1 or 0 in tensor.shape:
        raise ValueError(f"{name} must be {dims}, none of them 0, got shape {list(tensor.shape)}")
    if any(
        step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    ):
        raise ValueError(f"{name} is expanded: its elements share memory and cannot be updated")
