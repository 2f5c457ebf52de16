"""Runs dispatches in metal_host: one library for each kernel and its function constants."""

from __future__ import annotations

import functools
from pathlib import Path

import abi
from program import Dispatch, Program

from torch_mps_fusion import shaders
from torch_mps_fusion.metal_host import Library, Result, source

FAST = {"threads": 2, "time_limit": 300.0}


@functools.cache
def library(kernel: str, constants: tuple[tuple[str, int], ...], checked: bool) -> Library:
    """The one kernel of its family, specialised. Constants that it does not use are false."""
    path = abi.SHADERS / f"{shaders.parse_name(kernel).op}.metal"
    values = dict.fromkeys(declared(path), 0) | dict(constants)
    return Library(path, values, checked, defines=shaders.defines(kernel))


@functools.cache
def declared(path: Path) -> tuple[str, ...]:
    """Function constants in the family's text."""
    return tuple(c.name for c in source.function_constants(shaders.flat_text(path)))


def launch(d: Dispatch, *, checked: bool = False, **options: object) -> Result:
    """Runs one dispatch. A checked build treats the buffers that are only written as poison."""
    built = library(d.kernel, tuple(sorted(d.constants.items())), checked)
    buffers = [memoryview(b.numpy()) for b in d.buffers]
    return built.kernel(d.kernel)(d.grid, d.threads, buffers, **options)


def run(program: Program, **options: object) -> list[Result]:
    """Runs the dispatches of a program in order; without options, as fast as this machine can."""
    return [launch(d, **(options or FAST)) for d in program.dispatches]
