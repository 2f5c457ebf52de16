"""Decode of a stack of layers: 3 seeds x 3 context lengths, 9 pairs, tokens hashed.

A seeded stand-in for a model: embedding, GDN layers, head, sampling with the seed's own noise. The
metric is decode output tokens divided by decode wall time, prefill and the time to a completed
answer left out. Our shaders must give the same tokens, or nothing is reported; an arm that rounds
elsewhere (aten, native) and so gives other ones in some request is named and left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torch_mps_fusion.explain import aligned

from .. import facts, receipts
from ..errors import GateFailed
from ..harness import Measured
from ..layers import SHAPES, Layer, Ours, ours
from ..stats import compare

METRIC = "decode output tokens / decode wall time"
VOCABULARY = 64
WARM_UP_TOKENS = 2
LENS = {"cpu": [64, 320, 640], "cuda": [1024, 5120, 10240], "mps": [1024, 5120, 10240]}
QUICK_LENS = [128, 512, 1024]
SMOKE_LENS = [4, 8, 12]


@dataclass
class Stack:
    """Layers with one embedding and head; states are fresh for every request."""

    layers: list[Layer]
    embedding: Tensor  # (vocabulary, hidden)

    @classmethod
    def make(cls, shape: str, count: int, device: str) -> Stack:
        layers = [Layer(SHAPES[shape], device, seed) for seed in range(count)]
        generator = torch.Generator().manual_seed(99)
        table = torch.randn(VOCABULARY, SHAPES[shape].hidden, generator=generator)
        return cls(layers, table.to(device))

    def step(self, arm: Ours, tokens: Tensor, states: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Logits of the last of the tokens."""
        x = self.embedding[tokens].to(self.layers[0].dtype)[None]
        for layer, own in zip(self.layers, states, strict=True):
            x = arm.for_rows(layer, len(tokens))(layer, x, own)[0]
        return x[0, -1].float() @ self.embedding.T


@dataclass
class Request:
    """What one request gave."""

    tokens: list[int] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def digest(self) -> str:
        return facts.sha256_of(self.tokens)


def settle(device: str) -> None:
    {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device, lambda: None)()


def serve(stack: Stack, arm: Ours, length: int, seed: int, new: int) -> Request:
    """Prefill of `length` tokens, some tokens to warm up, then `new` tokens against the clock."""
    device, request = stack.layers[0].device, Request()
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(VOCABULARY, (length,), generator=generator).to(device)
    noise = -torch.log(
        -torch.log(torch.rand(WARM_UP_TOKENS + new, VOCABULARY, generator=generator))
    )
    states = [layer.states() for layer in stack.layers]
    logits = stack.step(arm, prompt, states)
    for i, drawn in enumerate(noise.to(device)):
        if i == WARM_UP_TOKENS:
            settle(device)
            begin = time.perf_counter()
        token = torch.argmax(logits + drawn)[None]
        request.tokens.append(int(token))
        logits = stack.step(arm, token, states)
    settle(device)
    request.seconds = time.perf_counter() - begin
    return request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shape", nargs=1, choices=SHAPES, default=["0.8b"])
    parser.add_argument("--layers", type=int, help="default: 18; 4 on a CPU")
    parser.add_argument(
        "--lens", type=int, nargs="+", help="default: 1024 5120 10240; 64 320 640 on a CPU"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--new", type=int, default=64, help="decoded tokens of a request")
    parser.add_argument("--arms", nargs="+", help="default: all that run here")


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    cpu = options.device == "cpu"
    options.lens = options.lens or LENS[options.device]
    shape, count = options.shape[0], options.layers or (4 if cpu else 18)
    if options.smoke:
        shape, count, options.lens, options.new = "small", 2, SMOKE_LENS, 4
    arms = ours(SHAPES[shape], options.device, 1, torch.bfloat16)
    arms = [a for a in arms if not options.arms or a.name in options.arms]
    emulated = [a for a in arms if a.emulated(options.device)]
    native = [a for a in arms if a not in emulated]
    with torch.no_grad():
        if len(native) > 1:
            stack = Stack.make(shape, count, options.device)
            yield pairs(options, stack, native, options.lens, emulated=False)
        if len(emulated) > 1:
            stack = Stack.make("small", 2, options.device)
            yield pairs(options, stack, emulated, SMOKE_LENS, emulated=True)


def same_tokens(
    arms: list[Ours], served: dict[str, list[Request]]
) -> tuple[list[str], dict[str, int]]:
    """(names of the arms with the tokens of the first shader arm, in how many requests others
    differ). GateFailed if one of our shaders is among those."""
    first = next((a for a in arms if a.shader), arms[0]).name
    different = {
        a.name: sum(
            x.digest != y.digest for x, y in zip(served[a.name], served[first], strict=True)
        )
        for a in arms
    }
    for arm in arms:
        if arm.shader and different[arm.name]:
            raise GateFailed(f"{arm.name}: other tokens than {first}")
    left_out = {name: count for name, count in different.items() if count}
    return [a.name for a in arms if a.name not in left_out], left_out


def pairs(
    options: argparse.Namespace, stack: Stack, arms: list[Ours], lens: list[int], emulated: bool
) -> receipts.Receipt:
    """Every seed and length, the arms in alternating order. The first arm left is the control."""
    served: dict[str, list[Request]] = {a.name: [] for a in arms}
    orders, cells = [], [(n, s) for n in lens for s in range(options.seeds)]
    new = min(options.new, 4) if emulated else options.new
    for i, (length, seed) in enumerate(cells):
        turn = arms[:: 1 if i % 2 == 0 else -1]
        for arm in turn:
            served[arm.name].append(serve(stack, arm, length, options.seed + seed, new))
        orders.append([a.name for a in turn])
    names, left_out = same_tokens(arms, served)
    for name, count in left_out.items():
        print(f"{name}: left out, other tokens in {count} of {len(cells)} requests")
    samples = {x: [r.seconds / new for r in served[x]] for x in names}
    digests = [
        {"length": n, "seed": s, "sha256": r.digest, "useful_tokens": new}
        for (n, s), r in zip(cells, served[names[0]], strict=True)
    ]
    n = len(digests)
    print(f"{', '.join(names)}: the same tokens in n = {n} requests of {new} tokens")
    extra: dict[str, Any] = {
        "scope": "serving",
        "tier": 4,
        "rows": 1,
        "sequences": 1,
        "dtype": "bfloat16",
    }
    results = {
        "part": "-".join(names),
        "metric": METRIC,
        "requests": digests,
        "n": n,
        "left_out": left_out,
    }
    caveats = ["a stack of seeded layers, no attention, no MLP, no language"]
    if emulated:
        print("emulated: tokens compared, nothing timed")
        records = [receipts.arm(x, emulated=True, replay="none") for x in names]
        return receipts.new(
            options,
            "cpu-emulation",
            arms=records,
            results=results,
            caveats=caveats,
            needs=["rates: a Mac or an NVIDIA GPU"],
            **extra,
        )
    made = [compare(samples, b, names[0], control=None) for b in names[1:]]
    lines = [("arm", "tokens/s (median)", f"of {names[0]}", "95 % interval", "wins", "verdict")]
    by_name = {c.a: c for c in made}
    for x in names:
        rate = f"{1 / sorted(samples[x])[n // 2]:.1f}"
        c = by_name.get(x)
        rest = (
            ("", "", "", "")
            if c is None
            else (
                f"{1 / c.ratio.mean:.3f}",
                f"{1 / c.ratio.high:.3f} to {1 / c.ratio.low:.3f}",
                f"{c.ratio.wins}/{c.ratio.rounds}",
                c.verdict,
            )
        )
        lines.append((x, rate, *rest))
    print("\n".join(aligned(lines)))
    print(f"{METRIC}; {options.device}")
    measured = Measured("host clock", False, "abba", options.seed, orders, {}, samples)
    return receipts.new(
        options,
        "cpu-native" if options.device == "cpu" else options.device,
        measured=measured,
        arms=[receipts.arm(x) for x in names],
        comparisons=[c.as_dict() for c in made],
        results=results,
        caveats=[*caveats, "no A/A arm: seeds and lengths are the rounds"],
        cache_mode="cold",
        **extra,
    )
