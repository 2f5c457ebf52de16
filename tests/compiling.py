"""Tools of the torch.compile tests: compile once, count graphs, read what inductor runs."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch._dynamo.testing import CompileCounterWithBackend


def counted(function: Callable, *, dynamic: bool) -> tuple[Callable, CompileCounterWithBackend]:
    """``function`` compiled as one graph through AOT autograd, and the counter of its graphs."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, backend=counter, fullgraph=True, dynamic=dynamic), counter


class Inductor:
    """Compiles with inductor and keeps the graphs that it generates code from.

    At that point mutations are decided: an ``aten.clone`` in a graph runs, and so does an
    ``aten.copy_`` unless it copies a tensor to itself.
    """

    def __init__(self) -> None:
        self.graphs: list[str] = []

    def compile(self, function: Callable, *, dynamic: bool | None = None) -> Callable:
        torch._dynamo.reset()
        compiled = torch.compile(
            function,
            fullgraph=True,
            dynamic=dynamic,
            # Precompiled headers would cost more than they save on a test's few kernels.
            options={"fx_graph_cache": False, "cpp_cache_precompile_headers": False},
        )

        def call(*arguments):
            from torch._inductor import graph

            run = graph.GraphLowering.run

            def keep(lowering, *inputs):
                self.graphs.append(lowering.module.print_readable(print_output=False))
                return run(lowering, *inputs)

            graph.GraphLowering.run = keep
            try:
                return compiled(*arguments)
            finally:
                graph.GraphLowering.run = run

        return call

    def count(self, operator: str) -> int:
        """How often the graphs call ``torch.ops.<operator>``."""
        pattern = rf"torch\.ops\.{re.escape(operator)}\b"
        return sum(len(re.findall(pattern, graph)) for graph in self.graphs)

    def copies(self) -> int:
        """How many ``aten.copy_`` have another source than destination."""
        pattern = r"aten\.copy_\.default\((\w+), (\w+)\)"
        found = [pair for graph in self.graphs for pair in re.findall(pattern, graph)]
        return sum(a != b for a, b in found)
