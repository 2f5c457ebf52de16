"""``python -m torch_mps_fusion demo | doctor | explain | explore | ptx``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

DTYPES = ("bfloat16", "float16", "float32")
VARIANTS = ("packed", "core", "hybrid", "mega")
SHAPES = ("0.8b", "2b", "4b", "9b", "27b")


def token_counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",")]
    if not counts or min(counts) < 1:
        raise ValueError
    return counts


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m torch_mps_fusion", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)

    demo = commands.add_parser(
        "demo", help="load a GDN layer from safetensors and run every variant that runs here"
    )
    source = demo.add_mutually_exclusive_group()
    source.add_argument("--model", type=Path, metavar="DIR", help="a Qwen checkpoint directory")
    source.add_argument(
        "--shape", choices=SHAPES, default="0.8b", help="shape of a model with random weights"
    )
    demo.add_argument("--layer", type=int, metavar="N", help="layer index (default: first GDN)")
    demo.add_argument("--dtype", choices=DTYPES, help="default: the checkpoint's")
    demo.add_argument("--device", default="cpu", help="cpu, mps or cuda (default: cpu)")
    demo.add_argument(
        "--tokens", type=token_counts, default=[1, 8, 64], metavar="T,T,..", help="tokens a call"
    )
    demo.add_argument("--rounds", type=int, default=20, help="timed rounds of all variants")

    explain = commands.add_parser(
        "explain", help="dispatches, bytes and estimated times of a variant on a named chip"
    )
    explain.add_argument("--shape", choices=SHAPES, default="9b")
    explain.add_argument("--variant", choices=VARIANTS, default="core")
    explain.add_argument("--rows", type=positive, default=1, metavar="T", help="tokens a sequence")
    explain.add_argument("--batch", type=positive, default=1, metavar="B", help="sequences")
    explain.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    explain.add_argument(
        "--device",
        default="M1 Max",
        help='a chip ("M5 Max", "H200", ..), with changes: "M1 Max;cores=24;row_threshold=8"',
    )
    explain.add_argument(
        "--geometry",
        default="",
        help='launch geometry by hand: ";tile=nt1u4;groups=96;rule=r2s4;core=r4;block=256"',
    )
    explain.add_argument(
        "--program",
        nargs="?",
        const=Path(),
        type=Path,
        metavar="FILE",
        help="the tasks of hybrid or mega over their workers, by estimate: as text, or as a "
        "picture if FILE (.svg, .png) is named",
    )

    explore = commands.add_parser(
        "explore", help="try schedules of the persistent kernels in the checking build"
    )
    explore.add_argument("--variant", choices=("hybrid", "mega"), help="default: both")
    length = explore.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=positive, metavar="S", help="default: 60")
    length.add_argument("--schedules", type=positive, metavar="N")
    explore.add_argument("--seed", type=int, default=0, help="of the schedules (default: 0)")
    explore.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    explore.add_argument(
        "--rows", type=token_counts, metavar="T,T,..", help="tokens a sequence (default: 1, 3 or 9)"
    )
    explore.add_argument(
        "--replay", metavar="FIELD=VALUE,..", help="one schedule, as a failed run prints it"
    )

    ptx = commands.add_parser(
        "ptx", help="make the kernels of CUDA tensors, for a GPU machine that has no compiler"
    )
    ptx.add_argument("folder", type=Path, help="TORCH_MPS_FUSION_PTX names it there")
    ptx.add_argument("--shape", choices=SHAPES, nargs="+", default=["9b"])
    ptx.add_argument("--dtype", choices=DTYPES, nargs="+", default=["bfloat16"])
    ptx.add_argument(
        "--tokens", type=token_counts, default=[1, 8], metavar="T,T,..", help="tokens a call"
    )
    ptx.add_argument("--variants", choices=VARIANTS, nargs="+", default=["packed", "core"])
    ptx.add_argument("--masks", action="store_true", help="calls with a mask too")
    ptx.add_argument(
        "--geometry", nargs="+", default=[""], help='launch geometries, as "explain" takes them'
    )
    ptx.add_argument("--list", action="store_true", help="print the files' names, make none")

    commands.add_parser("doctor", help="what is here, what is missing, which variants run where")
    return top


def main(arguments: list[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    try:
        if args.command == "doctor":
            from .doctor import run_doctor

            return run_doctor()
        if args.command == "explain":
            from .explain import run_explain

            return run_explain(args)
        if args.command == "explore":
            from .explore import run_explore

            return run_explore(args)
        if args.command == "ptx":
            from .cuda_kernels import run_ptx

            return run_ptx(args)
        from .demo import run_demo

        return run_demo(args)
    except (ValueError, OSError, NotImplementedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
