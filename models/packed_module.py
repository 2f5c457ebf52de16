"""PackedProjections: a module whose projections are rows or packed operands, as calls need them.

Packing is lazy and leaves one copy of the weights: the rows become operands in their own memory,
and whatever wants rows again (an attribute, ``state_dict``, ``load_state_dict``, ``.to()``) gets
them back the same way. Where somebody else holds a projection or shares its memory (an optimiser,
a kept ``state_dict``), the rows stay; a packed copy is kept beside them and made anew when they
change.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torch_mps_fusion import packing
from torch_mps_fusion.models import operands
from torch_mps_fusion.models.names import OUT_PROJECTION, SPLIT_PROJECTIONS
from torch_mps_fusion.models.operands import OPERANDS

ROWS = "rows"
# One for all modules: packing is rare, and a lock of its own could not be copied with a module.
_LOCK = threading.RLock()


class PackedProjections(nn.Module):
    """Base of a module that holds the projections of ``operands.OPERANDS`` as ``name.weight``."""

    def __init__(self) -> None:
        super().__init__()
        self.weight_format = ROWS  # what the projections' memory holds now
        self._copies: _Copies | None = None

    # ------------------------------------------------------------------------------- for calls

    def projections(self, weight_format: str) -> tuple[list[Tensor], list[Tensor]]:
        """``in_proj`` and ``out_proj`` of the op in this format, packed or unpacked if need be."""
        if weight_format != self.weight_format:
            copies = self._repack(weight_format)
            if copies is not None:
                return [copies.packed[0]], [copies.packed[1]]
        if weight_format != ROWS:
            return [self._operand("in_proj_packed")], [self._operand("out_proj_packed")]
        return [self._row(name) for name in SPLIT_PROJECTIONS], [self._row(OUT_PROJECTION)]

    @torch.compiler.disable(reason="pack the layer before compiling: layer.pack_(weight_format)")
    def _repack(self, weight_format: str) -> _Copies | None:
        """Brings the projections into the format; or returns packed copies, if rows must stay."""
        with _LOCK:
            self.unpack_()
            if weight_format == ROWS:
                return None
            if self._exclusive():
                self.pack_(weight_format)
                return None
            rows = [[self._row(name) for name in names] for names in OPERANDS.values()]
            if self._copies is None or not self._copies.fresh(weight_format, rows):
                self._copies = _Copies(weight_format, rows)
            return self._copies

    def pack_(self, weight_format: str) -> None:
        """Packs the projections where they are; tensors that share their memory become garbage.

        Calls do this by themselves when nothing else holds the weights.
        """
        with _LOCK:
            if weight_format == self.weight_format:
                return
            self.unpack_()
            for names in OPERANDS.values():
                packing.check([self._row(name) for name in names], weight_format)
            self._gather()
            for name in OPERANDS:
                packed = operands.pack_in_place([self._operand(name)], weight_format)
                self._parameters[name] = nn.Parameter(packed, requires_grad=False)
            self.weight_format = weight_format

    def unpack_(self) -> None:
        """Brings the rows back, in the same memory. Does nothing if they are there."""
        with _LOCK:
            if self.weight_format == ROWS:
                return
            for name in OPERANDS:
                packed = self._operand(name)
                columns = self._shapes[name][0][1]
                rows = len(packed) // columns
                [buffer] = operands.unpack_in_place(packed, self.weight_format, [(rows, columns)])
                self._parameters[name] = nn.Parameter(buffer, requires_grad=False)
            self.weight_format = ROWS
            self._scatter()

    # --------------------------------------------------------------- what has to see the rows

    def __getattr__(self, name: str) -> Any:
        if self.__dict__.get("weight_format", ROWS) != ROWS and _is_projection(name):
            self.unpack_()
        return super().__getattr__(name)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self.unpack_()
        return super().state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.unpack_()
        super()._load_from_state_dict(*args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # As one parameter an operand, so that its projections stay adjacent on the other side.
        with _LOCK:
            self.unpack_()
            if not self._exclusive():
                return super()._apply(fn, recurse)
            self._gather()
            try:
                return super()._apply(fn, recurse)
            finally:
                self._scatter()

    # ------------------------------------------------------------------------------- inside

    def _holder(self, name: str) -> dict[str, Any]:
        """Where the projection ``name`` is held, under "weight"."""
        module = self._modules[name.removesuffix(".weight")]
        assert module is not None
        return module._parameters

    def _row(self, name: str) -> Tensor:
        return self._holder(name)["weight"]

    def _operand(self, name: str) -> Tensor:
        parameter = self._parameters[name]
        assert parameter is not None
        return parameter.data

    def _exclusive(self) -> bool:
        """Whether nothing outside this module can see the projections' memory."""
        for names in OPERANDS.values():
            holders = [self._holder(name) for name in names]
            # Two references: the holder's and the argument.
            if any(sys.getrefcount(holder["weight"]) > 2 for holder in holders):
                return False
            if any(holder["weight"].requires_grad for holder in holders):
                return False
            storages = {holder["weight"].untyped_storage()._cdata for holder in holders}
            uses = sum(map(torch._C._storage_Use_Count, storages))
            # Each projection is one use, and the Python object of a storage is another.
            if uses > len(holders) + len(storages):
                return False
        return True

    def _gather(self) -> None:
        """Projections in the holders -> one parameter an operand: the buffer of their rows."""
        self._copies = None
        self._shapes = {
            name: [tuple(self._row(n).shape) for n in names] for name, names in OPERANDS.items()
        }
        for name, names in OPERANDS.items():
            buffer = operands.shared_buffer(operands.join([self._row(n).data for n in names]))
            for n in names:
                self._holder(n)["weight"] = None
            self.register_parameter(name, nn.Parameter(buffer, requires_grad=False))

    def _scatter(self) -> None:
        """The inverse of ``_gather``."""
        for name, names in OPERANDS.items():
            buffer = self._operand(name)
            del self._parameters[name]
            sizes = [shape[0] for shape in self._shapes[name]]
            views = buffer[: sum(sizes)].split(sizes)
            for n, view in zip(names, views, strict=True):
                self._holder(n)["weight"] = nn.Parameter(view, requires_grad=False)


class _Copies:
    """Packed copies beside rows that somebody else holds, and the state of the rows they are of."""

    def __init__(self, weight_format: str, rows: list[list[Tensor]]) -> None:
        self.weight_format = weight_format
        self.seen = _state_of(rows)
        self.packed = [packing.pack([w.detach() for w in part], weight_format) for part in rows]

    def fresh(self, weight_format: str, rows: list[list[Tensor]]) -> bool:
        return self.weight_format == weight_format and self.seen == _state_of(rows)


def _state_of(rows: list[list[Tensor]]) -> list[tuple]:
    return [(w.data_ptr(), w._version, w.dtype, w.device) for part in rows for w in part]


def _is_projection(name: str) -> bool:
    return any(f"{name}.weight" in names for names in OPERANDS.values())
