"""``python -m benchmarks layer | rule | traffic``: a subcommand for each thing that is measured."""

from __future__ import annotations

import argparse
import sys

from . import generate, layer, memory, overhead, rule, traffic

COMMANDS = {
    "generate": generate,
    "layer": layer,
    "memory": memory,
    "overhead": overhead,
    "rule": rule,
    "traffic": traffic,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    subparsers = parser.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        title = (module.__doc__ or "").splitlines()[0]
        module.add_arguments(subparsers.add_parser(name, help=title))
    options = parser.parse_args(arguments)
    return COMMANDS[options.command].run(options)


if __name__ == "__main__":
    sys.exit(main())
