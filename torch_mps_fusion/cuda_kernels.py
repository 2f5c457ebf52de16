"""PTX for the kernels of CUDA tensors: what csrc/cuda asks of Python.

The ops run our shader variants of CUDA tensors as PTX that `metal_host` makes of the shader texts
which the extension carries, one file for each kernel and set of function constants. Making one
needs clang (``pip install ziglang``) and libdevice, no GPU; a GPU machine that has neither takes
them from a folder that was filled elsewhere:

    python -m torch_mps_fusion ptx DIR --shape 9b        # on any machine
    TORCH_MPS_FUSION_PTX=DIR python ...                  # on the one with the GPU

A file's name holds a digest of all that it was made of, so that a stale one is never taken.
"""

from __future__ import annotations

import argparse
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import torch

from . import device, host_kernels, plan, shaders
from .metal_host import compiler, ptx, source
from .metal_host.errors import CompileError

FOLDER = "TORCH_MPS_FUSION_PTX"
VERSION = "1"  # of what `write` asks for
DEVICE = "H200"  # what plans are made for, see csrc/plan/devices.cpp
VARIANTS = ("packed", "core")  # what is made unless others are named
PERSISTENT = ("hybrid", "mega")
HEAD_MAPS = ("block", "tiled")
_STATES = ((True, True), (True, False), (False, False))  # prior ones, in place
Kernel = tuple[str, str, str]  # family, name, constants as "200=1,300=0"

# Function constants: the projection normalises its rows; the states have two slots.
NORM, SLOTS = 200, 401
_HEADER = re.compile(r"// by value:((?: \d+)*)\n")
_lock = threading.Lock()


@dataclass(frozen=True)
class Text:
    """What a kernel is compiled from: a flat text with macros, for threadgroups of `threads`, of
    which a multiprocessor is to hold `resident`."""

    flat: str
    threads: int
    defines: Mapping[str, int] = field(default_factory=dict)
    resident: int | None = None


def text_of(kernel: Kernel) -> Text:
    """The text of one of the package's own kernels."""
    family, name, constants = kernel
    norm = bool(host_kernels.parse_constants(constants).get(NORM, 0))
    return Text(
        host_kernels.text(family),
        shaders.threads(name),
        shaders.defines(name),
        shaders.resident(name, norm),
    )


def file_name(kernel: Kernel, text: Text | None = None) -> str:
    """The name of the kernel's file, with a digest of all that it is made of. `text`: of a kernel
    that is none of the package's."""
    _, name, constants = kernel
    made_of = text or text_of(kernel)
    key = compiler.digest(
        made_of.flat,
        name,
        constants,
        compiler.folder_digest(compiler.SHIM),
        *((compiler.HERE / f"{m}.py").read_text() for m in ("ptx", "rewrite", "source", "build")),
        f"{made_of.threads} {made_of.resident}",
        VERSION,
    )
    return f"{name}-{key}.ptx"


def find(family: str, name: str, constants: str, given_text: Text | None = None) -> tuple[str, str]:
    """(PTX, buffer indices of the arguments that are passed by value, by slot).

    Looked for in the folder that TORCH_MPS_FUSION_PTX names, then in the cache of `metal_host`;
    made where it is in neither.
    """
    kernel = family, name, constants
    cached = compiler.cache_dir() / "ptx" / file_name(kernel, given_text)
    given = os.environ.get(FOLDER)
    places = [*([Path(given, cached.name)] if given else []), cached]
    found = next((place for place in places if place.is_file()), None)
    text = found.read_text() if found else write(kernel, cached, given_text)
    header = _HEADER.match(text)
    if header is None:
        raise CompileError(f"{found}: no file of this version; delete it")
    return text, header[1].strip()


def write(kernel: Kernel, path: Path, text: Text | None = None) -> str:
    """Makes the kernel's PTX and writes it. CompileError says what is missing."""
    family, name, constants = kernel
    made_of = text or text_of(kernel)
    flat = made_of.flat
    values: dict[str | int, object] = {c.index: 0 for c in source.function_constants(flat)}
    values.update(host_kernels.parse_constants(constants).items())
    with _lock:
        try:
            module = ptx.build(
                f"{family}.metal",
                values,
                defines=made_of.defines,
                text=flat,
                kernels=[name],
                by_value=True,
                threads={name: made_of.threads},
                resident={} if made_of.resident is None else {name: made_of.resident},
            )
        except CompileError as error:
            raise CompileError(
                f"{name} (constants {constants or 'none'}) is in no folder and cannot be made "
                f"here: {error}. `python -m torch_mps_fusion ptx DIR` on another machine makes "
                f"what {FOLDER}=DIR then offers"
            ) from None
    slots = "".join(f" {i}" for i in module.kernels[name].values)
    made = f"// by value:{slots}\n{module.text}"
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_name(f".{os.getpid()}-{path.name}")
    making.write_text(made)
    making.replace(path)
    return made


def kernel_of(dispatch: plan.Dispatch) -> Kernel:
    """The kernel of a dispatch, as `find` takes it."""
    constants = ",".join(f"{i}={v}" for i, v in sorted(dispatch.constants.items()))
    return dispatch.family, dispatch.kernel, constants


def kernels_of(program: plan.Program) -> Iterator[Kernel]:
    """The kernels of a program, as `find` takes them."""
    return map(kernel_of, program.kernels)


def needed(
    shape: Mapping[str, int],
    dtype: torch.dtype,
    tokens: Iterable[int],
    *,
    masks: bool = False,
    geometry: str = "",
    variants: Sequence[str] = VARIANTS,
) -> set[Kernel]:
    """What variants need of a layer for calls of these numbers of tokens.

    shape: hidden_size, num_k_heads, num_v_heads, head_k_dim, head_v_dim, conv_width. Covered are
    both head maps, gate parameters of the layer's dtype and float32, calls with and without input
    norm and prior states, in place (also in slots) and not; with `masks` masked ones too. Recurrent
    states are those that this package makes: Dk contiguous. geometry: as in `plan.plan_layer`.
    Calls with more rows than `hybrid` and `mega` take are left out.
    """
    found: set[Kernel] = set()
    gates = sorted({dtype, torch.float32}, key=str)
    most = device.find(DEVICE).row_threshold
    calls = product(variants, tokens, HEAD_MAPS, gates, (True, False), _STATES, {False, masks})
    for variant, count, head_map, gate, norm, (states, in_place), masked in calls:
        if variant in PERSISTENT and count > most:
            continue
        given, keywords = plan.meta_layer(
            batch=1,
            tokens=count,
            dtype=dtype,
            weight_format="tiles16-nvidia",
            input_norm=norm,
            states=states,
            **shape,
        )
        arguments = list(given)
        arguments[3:5] = [parameter.to(gate) for parameter in arguments[3:5]]
        if masked:
            arguments[-1] = torch.empty(1, count, dtype=torch.bool, device="meta")
        keywords |= {"head_map": head_map, "variant": variant, "in_place": in_place}
        program = plan.plan_layer(*arguments, **keywords, device=DEVICE, geometry=geometry)
        found.update(kernels_of(program))
        if in_place and variant in PERSISTENT:
            found.update(map(_with_slots, kernels_of(program)))
    return found


def _with_slots(kernel: Kernel) -> Kernel:
    """The kernel of the same call on states in two slots."""
    family, name, constants = kernel
    return family, name, constants.replace(f"{SLOTS}=0", f"{SLOTS}=1")


def fill(folder: Path, kernels: Iterable[Kernel], text: Text | None = None) -> int:
    """Writes the kernels that the folder lacks; how many there are. `text`: of all of them, where
    they are none of the package's."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for kernel in sorted(kernels):
        path = folder / file_name(kernel, text)
        if not path.is_file():
            write(kernel, path, text)
        count += 1
    return count


def run_ptx(args: argparse.Namespace) -> int:
    """`python -m torch_mps_fusion ptx`: fills a folder, or lists what would be in it."""
    from .models.config import KNOWN_SHAPES

    kernels: set[Kernel] = set()
    for name in args.shape:
        config = KNOWN_SHAPES[name]
        shape = {
            "hidden_size": config.hidden_size,
            "num_k_heads": config.num_k_heads,
            "num_v_heads": config.num_v_heads,
            "head_k_dim": config.head_k_dim,
            "head_v_dim": config.head_v_dim,
            "conv_width": config.conv_kernel_size,
        }
        for dtype in args.dtype:
            for geometry in args.geometry:
                kernels |= needed(
                    shape,
                    getattr(torch, dtype),
                    args.tokens,
                    masks=args.masks,
                    geometry=geometry,
                    variants=args.variants,
                )
    if args.list:
        print("\n".join(map(file_name, sorted(kernels))))
        return 0
    try:
        count = fill(args.folder, kernels)
    except CompileError as error:
        raise ValueError(str(error)) from None
    print(f"{count} kernels in {args.folder}; on the GPU machine: {FOLDER}={args.folder}")
    return 0


def finding() -> str:
    """Where kernels of CUDA tensors come from here, for the doctor."""
    given = os.environ.get(FOLDER)
    if given:
        count = len(list(Path(given).glob("*.ptx"))) if Path(given).is_dir() else 0
        where = f"{FOLDER}={given} holds {count}"
    else:
        where = f"{FOLDER} is not set"
    try:
        return f"{where}; others are made by {compiler.compiler().version}"
    except CompileError:
        return f"{where}; no compiler makes others here"
