"""Arguments of a launch: what a kernel wants, what was given, and whether they agree."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import LaunchError
from .source import Parameter

CONST, COHERENT, REFERENCE, ATOMIC = 1, 2, 4, 8
_KINDS = {"f": "float", "h": "half", "b": "bfloat", "i": "int", "u": "uint", "o": "bool"}


class ParamInfo(ctypes.Structure):
    """Layout of msl::Param in shim/msl/launch.h."""

    _fields_ = [(n, ctypes.c_uint32) for n in ("size", "align", "element", "columns", "flags")]

    size: int
    align: int
    element: int
    columns: int
    flags: int


@dataclass(frozen=True)
class BufferParam:
    """A buffer parameter with what the compiler says of its type."""

    name: str
    index: int
    text: str
    size: int
    align: int
    element: str
    columns: int
    flags: int
    optional: bool

    @property
    def element_size(self) -> int:
        lanes = 4 if self.columns == 3 else self.columns or 1
        return self.size // lanes

    def __str__(self) -> str:
        return f"argument `{self.name}` ([[buffer({self.index})]], {self.text})"


@dataclass
class Bound:
    """A bound argument. `keep` owns the memory while the launch runs."""

    name: str
    address: int
    bytes: int
    keep: Any


def buffer_params(parameters: Sequence[Parameter], table: Any) -> list[BufferParam]:
    """The buffer parameters of a kernel, in the order of the signature."""
    out = []
    for parameter, info in zip(parameters, table, strict=False):
        if parameter.kind in ("device", "constant"):
            assert parameter.index is not None
            out.append(
                BufferParam(
                    parameter.name,
                    parameter.index,
                    parameter.type,
                    info.size,
                    info.align,
                    chr(info.element) if info.element else "s",
                    info.columns,
                    info.flags | (CONST if parameter.kind == "constant" else 0),
                    parameter.optional is not None,
                )
            )
    return out


def bind(params: Sequence[BufferParam], given: Sequence[Any] | Mapping[Any, Any]) -> list[Bound]:
    """Matches `given` (by position, or a mapping by name or index) with `params`.

    Raises LaunchError, naming the argument, if anything does not agree.
    """
    by_index = sorted(params, key=lambda p: p.index)
    if isinstance(given, Mapping):
        values = _by_key(by_index, given)
    else:
        if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
            raise LaunchError(f"args: {given!r} is neither a sequence nor a mapping of buffers")
        values = list(given)
        if len(values) != len(by_index):
            names = ", ".join(p.name for p in by_index) or "none"
            wanted = f"{len(by_index)} buffers ({names})"
            raise LaunchError(f"args: the kernel takes {wanted}, {len(values)} were given")
    return [_bind_one(p, v) for p, v in zip(by_index, values, strict=True)]


def _by_key(params: Sequence[BufferParam], given: Mapping[Any, Any]) -> list[Any]:
    used = set()
    values = []
    for p in params:
        keys = [k for k in (p.name, p.index) if k in given]
        if not keys and not p.optional:
            raise LaunchError(f"args: {p} is missing")
        if len(keys) == 2:
            raise LaunchError(f"args: {p} is given twice, by name and by index")
        used.update(keys)
        values.append(given[keys[0]] if keys else None)
    for key in given:
        if key not in used:
            names = ", ".join(f"{p.name} ({p.index})" for p in params)
            raise LaunchError(f"args[{key!r}]: the kernel has no such buffer; it has: {names}")
    return values


def _bind_one(p: BufferParam, value: Any) -> Bound:
    if value is None:
        if p.optional:
            return Bound(p.name, 0, 0, None)
        raise LaunchError(f"{p}: None was given, an array is needed")
    if isinstance(value, (bool, int, float, np.generic)):
        return _bind_scalar(p, value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        if isinstance(value, bytes) and not p.flags & CONST:
            raise LaunchError(f"{p}: bytes cannot be written; give a bytearray or an array")
        return _bind_array(p, np.frombuffer(value, np.uint8), raw=True)
    if isinstance(value, np.ndarray):
        return _bind_array(p, value)
    if type(value).__module__.split(".")[0] == "torch" and hasattr(value, "data_ptr"):
        return _bind_tensor(p, value)
    raise LaunchError(
        f"{p}: {type(value).__name__} was given; numpy arrays, torch CPU tensors, bytes and, for "
        "constant references, numbers are accepted"
    )


def _bind_scalar(p: BufferParam, value: Any) -> Bound:
    if not p.flags & REFERENCE or not p.flags & CONST or p.columns or p.element in "sb":
        raise LaunchError(f"{p}: a number is accepted only for a constant reference to a scalar")
    if isinstance(value, np.generic):
        value = value.item()
    kind = "b" if p.element == "o" else p.element
    dtype = np.dtype("?" if kind == "b" else {"f": "f", "h": "f"}.get(kind, kind) + str(p.size))
    if kind in "iu":
        limits = np.iinfo(dtype)
        if not isinstance(value, int) or not limits.min <= value <= limits.max:
            raise LaunchError(f"{p}: {value!r} is not a {dtype}")
    array = np.array([value], dtype)
    return Bound(p.name, array.ctypes.data, array.nbytes, array)


def _check_memory(p: BufferParam, address: int, nbytes: int) -> None:
    if address % p.align:
        raise LaunchError(f"{p}: address {address:#x} is not a multiple of {p.align}")
    if nbytes < p.size:
        raise LaunchError(f"{p}: {nbytes} bytes were given, at least {p.size} are needed")


def _check_element(p: BufferParam, kind: str, size: int, given: str) -> None:
    """kind: as BufferParam.element. 16-bit integers stand for the bits of half and bfloat."""
    if p.element == "s":
        return
    wanted = p.element_size
    agrees = size == wanted and (
        kind == p.element
        or {kind, p.element} <= {"i", "u"}
        or {kind, p.element} <= {"u", "o"}
        or (kind == "u" and p.element in "hb")
    )
    if not agrees:
        name = _KINDS[p.element]
        more = " (or uint16 for its bits)" if p.element in "hb" else ""
        raise LaunchError(
            f"{p}: elements of type {given} were given, {name} of {wanted} bytes{more} is needed"
        )


def _bind_array(p: BufferParam, array: np.ndarray, raw: bool = False) -> Bound:
    if not array.flags.c_contiguous:
        raise LaunchError(
            f"{p}: the array of shape {array.shape} has strides {array.strides}; it must be "
            "contiguous"
        )
    if not p.flags & CONST and not array.flags.writeable:
        raise LaunchError(f"{p}: the array is read-only, the kernel may write to it")
    if not raw and array.dtype.kind != "V":
        letter = str(array.dtype.kind)
        kind = {"f": "h" if array.dtype.itemsize == 2 else "f", "b": "o"}.get(letter, letter)
        _check_element(p, kind, array.dtype.itemsize, str(array.dtype))
    elif not raw and array.dtype.name == "bfloat16":
        _check_element(p, "b", 2, "bfloat16")
    _check_memory(p, array.ctypes.data, array.nbytes)
    return Bound(p.name, array.ctypes.data, array.nbytes, array)


def _bind_tensor(p: BufferParam, tensor: Any) -> Bound:
    if tensor.device.type != "cpu":
        raise LaunchError(f"{p}: the tensor is on {tensor.device}, metal_host needs it on the CPU")
    if tensor.layout.__str__() != "torch.strided" or not tensor.is_contiguous():
        raise LaunchError(
            f"{p}: the tensor of shape {tuple(tensor.shape)} has strides "
            f"{getattr(tensor, 'stride', tuple)()}; it must be contiguous"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise LaunchError(f"{p}: the tensor is a lazy conjugate or negation; resolve it first")
    name = str(tensor.dtype).removeprefix("torch.")
    kind = {"float16": "h", "bfloat16": "b", "bool": "o"}.get(name) or (
        "u" if name.startswith("uint") else "f" if name.startswith("float") else "i"
    )
    _check_element(p, kind, tensor.element_size(), name)
    nbytes = tensor.numel() * tensor.element_size()
    _check_memory(p, tensor.data_ptr(), nbytes)
    return Bound(p.name, tensor.data_ptr(), nbytes, tensor)


def dimensions(name: str, value: Any, limit: int) -> tuple[int, int, int]:
    """One to three positive numbers, as three. Raises LaunchError naming `name`."""
    numbers = list(value) if isinstance(value, Iterable) else [value]
    if not 1 <= len(numbers) <= 3 or not all(isinstance(n, (int, np.integer)) for n in numbers):
        raise LaunchError(f"{name}: {value!r} is not one to three whole numbers")
    if any(n < 1 for n in numbers):
        raise LaunchError(f"{name}: {tuple(numbers)} has a zero or negative extent")
    product = 1
    for n in numbers:
        product *= int(n)
    if product > limit:
        raise LaunchError(f"{name}: {tuple(numbers)} is {product} in all, at most {limit} can be")
    x, y, z = (*map(int, numbers), 1, 1)[:3]
    return x, y, z


def local_sizes(parameters: Sequence[Parameter], given: Any, limit: int) -> list[int]:
    """Bytes of each [[threadgroup(i)]] parameter, by index. `given`: a list, or a dict by name or
    index. Raises LaunchError."""
    wanted = sorted((p for p in parameters if p.kind == "threadgroup"), key=lambda p: p.index or 0)
    if given is None:
        given = []
    if isinstance(given, (int, np.integer)):
        given = [given]
    if isinstance(given, Mapping):
        keys = {k for p in wanted for k in (p.name, p.index)}
        for key in given:
            if key not in keys:
                raise LaunchError(f"threadgroup_memory[{key!r}]: the kernel has no such parameter")
        given = [given.get(p.name, given.get(p.index)) for p in wanted]
    sizes: list[int] = [0] * ((wanted[-1].index or 0) + 1 if wanted else 0)
    names = ", ".join(f"{p.name} ([[threadgroup({p.index})]])" for p in wanted) or "none"
    if len(given) != len(wanted) or any(g is None for g in given):
        raise LaunchError(f"threadgroup_memory: sizes in bytes are needed for exactly: {names}")
    for p, size in zip(wanted, given, strict=True):
        if not isinstance(size, (int, np.integer)) or size < 1 or size % 16:
            raise LaunchError(
                f"threadgroup_memory: {size!r} bytes for {p.name} is not a positive multiple of 16"
            )
        sizes[p.index or 0] = int(size)
    if sum(sizes) > limit:
        raise LaunchError(f"threadgroup_memory: {sum(sizes)} bytes, the limit is {limit}")
    return sizes
