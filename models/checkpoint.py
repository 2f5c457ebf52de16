"""Finds tensors in safetensors files: one file, a directory, or an index of shards.

Files are memory-mapped and only the tensors that are asked for are read. This file knows nothing
about GDN; ``loader.py`` does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ACCEPTED = (
    f"a .safetensors file, a directory with {SINGLE} or {INDEX}, or a .safetensors.index.json"
)

_GGUF = "a GGUF file"
_PICKLE = "a zip archive (PyTorch pickle or numpy)"
_FORMAT_BY_SUFFIX = {
    ".gguf": _GGUF,
    ".bin": _PICKLE,
    ".pt": _PICKLE,
    ".pth": _PICKLE,
    ".npz": _PICKLE,
}
_FORMAT_BY_START = {
    b"GGUF": _GGUF,
    b"PK\x03\x04": _PICKLE,
    b"version https://git-lfs": "a Git LFS pointer, not the file itself: fetch it first",
}


class CheckpointError(ValueError):
    """A checkpoint that is unreadable, incomplete, of another format, or unlike its config."""


@dataclass(frozen=True)
class TensorInfo:
    """What a file's header says of one tensor. ``dtype`` is safetensors' name, such as BF16."""

    dtype: str
    shape: tuple[int, ...]
    file: Path


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a checkpoint by name, each with the file that is said to hold it."""

    source: Path
    files: Mapping[str, Path]

    @property
    def directory(self) -> Path:
        return self.source if self.source.is_dir() else self.source.parent

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Lists the tensors of ``path``; see ``ACCEPTED`` for what it may be.

        Raises:
            FileNotFoundError: nothing is there.
            CheckpointError: the path, its index or its header is not what it should be.
        """
        source = Path(path)
        if not source.exists():
            raise FileNotFoundError(f"no checkpoint at {source}")
        file = _weights_of_directory(source) if source.is_dir() else source
        if not file.is_file():
            raise CheckpointError(f"{file} is not a regular file; accepted: {ACCEPTED}")
        if file.name.endswith(".json"):
            return cls(source, _read_index(file))
        _check_format(file)
        with _opened(file) as handle:
            return cls(source, dict.fromkeys(handle.keys(), file))

    def info(self, name: str) -> TensorInfo:
        """Reads dtype and shape of a listed tensor from its file's header."""
        file = self.files[name]
        with self._holding(name) as handle:
            part = handle.get_slice(name)
            return TensorInfo(part.get_dtype(), tuple(part.get_shape()), file)

    def read(self, name: str) -> Tensor:
        """The tensor, mapped from its file: copy it before the file may change."""
        with self._holding(name) as handle:
            return handle.get_tensor(name)

    @contextmanager
    def _holding(self, name: str) -> Iterator[Any]:
        file = self.files[name]
        if not file.is_file():
            raise CheckpointError(
                f"{self.source}: tensor {name} is in {file}, which does not exist"
            )
        _check_format(file)
        with _opened(file) as handle:
            if name not in handle.keys():  # noqa: SIM118 (the handle is no dict)
                raise CheckpointError(f"{file} does not hold {name}, although the index says so")
            yield handle


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt", device="cpu") as handle:
            yield handle
    except SafetensorError as error:
        raise CheckpointError(f"{file} is truncated or not a safetensors file: {error}") from error
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error


def _check_format(file: Path) -> None:
    """Refuses other formats by name. The header itself is checked by safetensors."""
    found = _FORMAT_BY_SUFFIX.get(file.suffix.lower())
    if found is None:
        try:
            with file.open("rb") as stream:
                start = stream.read(32)
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from error
        found = next(
            (text for mark, text in _FORMAT_BY_START.items() if start.startswith(mark)), None
        )
    if found is None and file.suffix != ".safetensors":
        found = f"a {file.suffix or 'nameless'} file"
    if found is not None:
        raise CheckpointError(f"{file} is {found}; accepted: {ACCEPTED}")


def _weights_of_directory(directory: Path) -> Path:
    for name in (SINGLE, INDEX):
        if (directory / name).exists():
            return directory / name
    there = sorted(
        p.name for p in directory.iterdir() if p.suffix in {".safetensors", *_FORMAT_BY_SUFFIX}
    )
    listed = f"it holds {', '.join(there[:8])}" if there else "it holds no weights"
    raise CheckpointError(
        f"{directory} has neither {SINGLE} nor {INDEX} ({listed}); accepted: {ACCEPTED}"
    )


def _read_index(index: Path) -> dict[str, Path]:
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise CheckpointError(f"{index} is not a JSON file: {error}") from error
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shards, dict):
        raise CheckpointError(f"{index} has no 'weight_map' object, so it is not a shard index")
    return {
        name: index.parent / _checked_shard(index, name, shard) for name, shard in shards.items()
    }


def _checked_shard(index: Path, name: str, shard: object) -> str:
    """A shard must lie in the index's directory; links inside it may point elsewhere."""
    if not isinstance(shard, str) or not shard:
        raise CheckpointError(f"{index}: the shard of {name} is {shard!r}; it must be a file name")
    windows = PureWindowsPath(shard)
    parts = {*PurePosixPath(shard).parts, *windows.parts}
    if ".." in parts or windows.anchor or PurePosixPath(shard).is_absolute() or "\0" in shard:
        raise CheckpointError(f"{index}: the shard of {name} is {shard!r}, outside its directory")
    return shard
