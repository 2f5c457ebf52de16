"""python -m torch_mps_fusion.metal_host: check, mutants, ptx, bench.

Exit status: 0 when there is nothing to say, 1 when `check` has findings or a file does not compile,
2 when the command itself is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import bench, ptx
from .describe import FileFacts, describe
from .errors import CompileError, MetalHostError
from .lint import Finding, parse_level, wishes
from .lint_compiled import lint_all
from .mutate import KINDS, mutants
from .source import Parameter


def _level(text: str) -> tuple[int, int]:
    try:
        return parse_level(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _constant(text: str) -> tuple[str | int, object]:
    """NAME=VALUE or INDEX=VALUE, the value a bool, a whole number or a number."""
    given, equals, value = text.partition("=")
    name = int(given) if given.isdigit() else given
    if value in ("true", "false"):
        return name, value == "true"
    for number in (int, float):
        try:
            return name, number(value)
        except ValueError:
            continue
    got = f"got {text!r}" if equals else f"got {text!r} without a value"
    raise argparse.ArgumentTypeError(f"{got}, accepted: NAME=true, NAME=false, NAME=number")


def _file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        why = "it is a folder" if path.is_dir() else "there is no such file"
        raise argparse.ArgumentTypeError(f"{text}: {why}")
    try:
        path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{text}: cannot be read: {error}") from None
    return path


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m torch_mps_fusion.metal_host")
    commands = p.add_subparsers(dest="command", required=True)

    check = commands.add_parser("check", help="kernels, arguments, threadgroup memory, findings")
    check.add_argument("files", metavar="FILE", type=_file, nargs="+")
    check.add_argument("--msl", metavar="LEVEL", type=_level, help="over what the file declares")

    check.add_argument(
        "--no-address-spaces",
        action="store_true",
        help="accept whole-struct copies between address spaces, and give up their checking",
    )

    mutate = commands.add_parser("mutants", help="what can be taken away from a shader")
    mutate.add_argument("file", metavar="FILE", type=_file)
    mutate.add_argument("--kind", action="append", choices=KINDS, help="only these")
    mutate.add_argument(
        "--write", metavar="FOLDER", type=Path, help="write each to a folder of its own"
    )

    gpu = commands.add_parser("ptx", help="PTX text, or a cubin, for an NVIDIA GPU")
    gpu.add_argument("file", metavar="FILE", type=_file)
    gpu.add_argument(
        "--constant", metavar="NAME=VALUE", type=_constant, action="append", default=[]
    )
    gpu.add_argument("--cubin", metavar="FILE", type=Path, help="assemble to this file")

    commands.add_parser("bench", help="what a launch costs on this machine")
    return p


def _parameter(p: Parameter) -> str:
    if p.kind == "builtin":
        return f"{p.builtin}  {p.type} {p.name}"
    attribute = "threadgroup" if p.kind == "threadgroup" else "buffer"
    optional = f", if {p.optional}" if p.optional else ""
    return f"{attribute}({p.index})  {p.type} {p.name}{optional}"


def _print_facts(facts: FileFacts) -> None:
    for c in facts.constants:
        print(f"  function constant {c.index}  {c.type} {c.name}")
    if not facts.kernels:
        print("  no kernels")
    for k in facts.kernels:
        limit = f", at most {k.max_threads} threads" if k.max_threads else ""
        instance = f" = {k.callee}" if k.callee != k.name else ""
        print(f"  kernel {k.name}{instance}{limit}")
        for p in k.parameters:
            print(f"    {_parameter(p)}")
        sizes = ", ".join(f"{name} {size}" for name, size in k.threadgroup)
        print(
            f"    threadgroup memory {k.threadgroup_bytes} bytes" + (f": {sizes}" if sizes else "")
        )


def _check_one(path: Path, level: tuple[int, int] | None, address_spaces: bool) -> bool:
    """Prints everything about a file; True if there is nothing to say against it."""
    at = level or wishes(path.read_text())[0].level
    print(f"{path} (MSL {at[0]}.{at[1]})")
    findings: list[Finding] = []
    try:
        _print_facts(describe(path, at[0] * 100 + at[1] * 10, address_spaces))
        findings = lint_all(path, level, address_spaces)
    except CompileError as error:
        print(f"  does not compile:\n{error}")
        return False
    for finding in findings:
        print(finding)
    count = len(findings)
    print(f"  {count or 'no'} finding{'' if count == 1 else 's'}")
    return not findings


def _mutants(arguments: argparse.Namespace) -> int:
    made = mutants(arguments.file, arguments.kind or KINDS)
    for mutant in made:
        print(f"{mutant.id}  {mutant.description}")
        if arguments.write:
            folder = arguments.write / mutant.id.replace("/", "_").replace("#", "_")
            mutant.write(folder, arguments.file)
    print(f"{len(made)} mutants")
    return 0


def _ptx(arguments: argparse.Namespace) -> int:
    module = ptx.build(arguments.file, dict(arguments.constant))
    if arguments.cubin is None:
        print(module.text, flush=True)
        return 0
    cubin = ptx.assemble(module)
    arguments.cubin.write_bytes(cubin.data)
    for name, used in cubin.resources.items():
        spills = f", {used.spill_stores} bytes spilled" if used.spill_stores else ""
        memory = f"{used.threadgroup_bytes} bytes of threadgroup memory"
        print(f"{name}: {used.registers} registers, {memory}{spills}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status."""
    arguments = parser().parse_args(argv)
    try:
        if arguments.command == "check":
            spaces = not arguments.no_address_spaces
            clean = [_check_one(path, arguments.msl, spaces) for path in arguments.files]
            return int(not all(clean))
        if arguments.command == "mutants":
            return _mutants(arguments)
        if arguments.command == "ptx":
            return _ptx(arguments)
        bench.main()
        return 0
    except BrokenPipeError:  # such as of `ptx FILE | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (MetalHostError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
