"""The sample shaders with inputs, launch geometry and numpy's answer: one function a kernel.

Every function takes a random generator and returns a fresh Sample; its `verify` looks at the
buffers after the launch and raises AssertionError when they are not what numpy computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SHADERS = Path(__file__).parent / "shaders"
# values for the function constants of a shader that has some
CONSTANTS: dict[str, dict[str, object]] = {"rmsnorm.metal": {"has_residual": True}}


@dataclass
class Sample:
    """One launch.

    buffers: arrays by buffer index.  threadgroup_bytes: of [[threadgroup(0)]], 0 if there is none.
    """

    shader: str
    kernel: str
    grid: tuple[int, ...]
    threads: tuple[int, ...]
    buffers: list[np.ndarray]
    verify: Callable[[], None]
    threadgroup_bytes: int = 0
    constants: dict[str, object] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return SHADERS / self.shader


def to_bfloat(x: np.ndarray) -> np.ndarray:
    """float32 -> bfloat bits (uint16), to nearest even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat(u: np.ndarray) -> np.ndarray:
    """bfloat bits (uint16) -> float32."""
    return (u.astype(np.uint32) << 16).view(np.float32)


def u32(*values: int) -> np.ndarray:
    return np.array(values, np.uint32)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def close(got: np.ndarray, want: np.ndarray, tolerance: float) -> None:
    """|got - want| <= tolerance * max(1, |want|): rounding of sums of that many float32 terms."""
    np.testing.assert_array_less(np.abs(got - want), tolerance * np.maximum(1, np.abs(want)))


def rmsnorm(rng: np.random.Generator, bfloat: bool = False, residual: bool = False) -> Sample:
    rows, n, eps = 3, 520, 1e-6
    x, w = normal(rng, rows, n), normal(rng, n)
    store = to_bfloat if bfloat else np.copy
    load = from_bfloat if bfloat else np.copy
    bx, bw, y = store(x), store(w), store(np.full((rows, n), np.nan, np.float32))
    xx = load(bx).astype(np.float64)
    want = xx / np.sqrt((xx**2).mean(1, keepdims=True) + eps) * load(bw) + residual * xx

    def verify() -> None:
        close(load(y), want, 2**-8 if bfloat else 1e-5)

    buffers = [bx, bw, y, u32(n), np.array([eps], np.float32)]
    return Sample(
        "rmsnorm.metal",
        "rmsnorm_bf16" if bfloat else "rmsnorm_f32",
        (rows,),
        (256,),
        buffers,
        verify,
        constants={"has_residual": residual},
    )


def gdn_step(rng: np.random.Generator) -> Sample:
    Hk, Hv, D, scale, eps = 1, 2, 128, 128**-0.5, 1e-6
    q, k, v = normal(rng, Hk, D), normal(rng, Hk, D), normal(rng, Hv, D)
    g, beta = -rng.random(Hv).astype(np.float32), rng.random(Hv).astype(np.float32)
    state, out = normal(rng, Hv, D, D), np.full((Hv, D), np.nan, np.float32)
    args = np.zeros(4, np.uint32)
    args[:2] = Hk, Hv
    args[2:] = np.array([scale, eps], np.float32).view(np.uint32)

    def unit(z: np.ndarray) -> np.ndarray:
        z = z.astype(np.float64)
        return np.repeat(z / np.sqrt((z * z).sum(-1, keepdims=True) + eps), Hv // Hk, 0)

    kk, qq = unit(k), unit(q) * scale
    S = state.astype(np.float64) * np.exp(g.astype(np.float64))[:, None, None]
    d = beta[:, None] * (v - np.einsum("hvk,hk->hv", S, kk))
    S = S + d[:, :, None] * kk[:, None, :]
    want = np.einsum("hvk,hk->hv", S, qq)

    def verify() -> None:
        close(out, want, 1e-5)
        close(state, S, 1e-5)

    buffers = [q, k, v, g, beta, state, out, args]
    return Sample("gdn_step.metal", "gdn_step_f32", (4, Hv), (128,), buffers, verify)


def gemm8(rng: np.random.Generator, tiles: int = 1) -> Sample:
    N, K = 64, 64
    X, W = to_bfloat(normal(rng, 8, K)), to_bfloat(normal(rng, N, K))
    Y = np.full((8, N), np.nan, np.float32)
    want = from_bfloat(X).astype(np.float64) @ from_bfloat(W).astype(np.float64).T

    def verify() -> None:
        close(Y, want, 1e-5)

    grid = (N // (8 * tiles * 2),)
    return Sample("gemm8.metal", f"gemm8_{tiles}", grid, (64,), [X, W, Y, u32(N, K)], verify)


def matvec(rng: np.random.Generator) -> Sample:
    N, K = 16, 256
    x, W = to_bfloat(normal(rng, K)), to_bfloat(normal(rng, N, K))
    y = np.full(N, np.nan, np.float32)
    want = from_bfloat(W).astype(np.float64) @ from_bfloat(x).astype(np.float64)

    def verify() -> None:
        close(y, want, 1e-5)

    return Sample("gemm8.metal", "matvec", (N // 4,), (128,), [x, W, y, u32(N, K)], verify)


def persist(
    rng: np.random.Generator,
    kernel: str = "ticket",
    groups: int = 4,
    spin: int = 0,
    threads: int = 64,
) -> Sample:
    tiles, tile = 4, 128
    x, tmp = normal(rng, tiles * tile), np.zeros(tiles * tile, np.float32)
    out, ctl = np.full(tiles, np.nan, np.float32), np.zeros(4, np.uint32)
    want = (x.astype(np.float64) ** 2).sum() + np.arange(tiles)

    def verify() -> None:
        assert ctl[2] == 0, "the error word is set"
        close(out, want, 1e-5)

    buffers = [x, tmp, out, ctl, u32(tiles, tile, spin)]
    return Sample("persist.metal", f"persist_{kernel}", (groups,), (threads,), buffers, verify)


def reduce(rng: np.random.Generator, op: str = "sum", n: int = 300) -> Sample:
    groups, threads = 3, 64
    x, out = normal(rng, groups, n), np.full(groups, np.nan, np.float32)
    want = getattr(x.astype(np.float64), op)(1)

    def verify() -> None:
        close(out, want, 1e-5 if op == "sum" else 1e-30)

    buffers = [x, out, u32(n)]
    return Sample(
        "reduce.metal", f"reduce_{op}", (groups,), (threads,), buffers, verify, 4 * threads
    )


def inclusive_scan(rng: np.random.Generator) -> Sample:
    rows, n = 2, 300
    x = rng.integers(0, 2**32, (rows, n), np.uint32)
    y = np.zeros_like(x)

    def verify() -> None:
        np.testing.assert_array_equal(y, np.cumsum(x, 1, dtype=np.uint32))

    return Sample("scan.metal", "inclusive_scan", (rows,), (96,), [x, y, u32(n)], verify)


def matmul(rng: np.random.Generator, kind: str = "half") -> Sample:
    M, N, K = 16, 32, 48
    a, b = normal(rng, M, K), normal(rng, K, N)
    store = {"half": np.float16, "float": np.float32}
    A, B = (to_bfloat(z) if kind == "bfloat" else z.astype(store[kind]) for z in (a, b))
    C = np.full((M, N), np.nan, np.float32)
    exact = [(from_bfloat(z) if kind == "bfloat" else z).astype(np.float64) for z in (A, B)]
    want = exact[0] @ exact[1]

    def verify() -> None:
        close(C, want, 1e-5)

    buffers = [A, B, C, u32(M, N, K)]
    return Sample("matmul.metal", f"matmul_{kind}", (N // 16, M // 16), (128,), buffers, verify)


def histogram(rng: np.random.Generator) -> Sample:
    n = 1000
    x = (rng.integers(0, 256, n) & rng.integers(0, 256, n)).astype(np.uint8)
    counts = np.zeros(256, np.uint32)

    def verify() -> None:
        np.testing.assert_array_equal(counts, np.bincount(x, minlength=256))

    return Sample("histogram.metal", "histogram", (3,), (64,), [x, counts, u32(n)], verify)


def last_arriver(rng: np.random.Generator) -> Sample:
    groups, n = 6, 100
    x, partial = normal(rng, groups, n), np.zeros(groups, np.float32)
    out, ticket = np.full(1, np.nan, np.float32), np.zeros(1, np.uint32)

    def verify() -> None:
        close(out, x.astype(np.float64).sum(), 1e-5)
        assert ticket[0] == 0

    buffers = [x, partial, out, ticket, u32(n)]
    return Sample("last_arriver.metal", "last_arriver", (groups,), (64,), buffers, verify)


def scan_lookback(
    rng: np.random.Generator, spin: int = 0, tiles: int = 6, threads: int = 64
) -> Sample:
    x = rng.integers(0, 2**32, tiles * threads, np.uint32)
    y, ctl = np.zeros_like(x), np.zeros(2, np.uint32)
    sums, prefixes, stage = (np.zeros(tiles, np.uint32) for _ in range(3))

    def verify() -> None:
        assert ctl[1] == 0, f"tile {ctl[1] - 1} gave up"
        np.testing.assert_array_equal(y, np.cumsum(x, dtype=np.uint32))

    buffers = [x, y, sums, prefixes, stage, ctl, u32(spin)]
    return Sample("lookback.metal", "scan_lookback", (tiles,), (threads,), buffers, verify)


def pack_tiles(W: np.ndarray) -> np.ndarray:
    """W [N][K] bfloat bits -> [N/16][K/16][32][4] words, Apple's order of native_tile.h."""
    N, K = W.shape
    lane = np.arange(32)
    k = ((lane >> 2) & 4) + ((lane >> 1) & 3)
    pair = ((lane >> 2) & 2) + (lane & 1)
    tiles = W.reshape(N // 16, 16, K // 16, 16)
    words = []
    for k0, n0 in ((0, 0), (0, 8), (8, 0), (8, 8)):
        low, high = (tiles[:, n0 + 2 * pair + i, :, k0 + k] for i in (0, 1))
        words.append(low.astype(np.uint32) | high.astype(np.uint32) << 16)
    return np.ascontiguousarray(np.stack(words, -1).transpose(1, 2, 0, 3))


def native_tile(rng: np.random.Generator) -> Sample:
    N, K = 32, 64
    X, W = to_bfloat(normal(rng, 8, K)), to_bfloat(normal(rng, N, K))
    Y = np.full((8, N), np.nan, np.float32)
    want = from_bfloat(X).astype(np.float64) @ from_bfloat(W).astype(np.float64).T

    def verify() -> None:
        close(Y, want, 1e-5)

    buffers = [X.view(np.uint32), pack_tiles(W), Y, u32(N, K)]
    return Sample("native_tile.metal", "native_tile", (N // 32,), (64,), buffers, verify)


ALL: dict[str, Callable[[np.random.Generator], Sample]] = {
    "rmsnorm": rmsnorm,
    "rmsnorm_bf16": lambda rng: rmsnorm(rng, bfloat=True),
    "rmsnorm_residual": lambda rng: rmsnorm(rng, residual=True),
    "gdn_step": gdn_step,
    "gemm8_1": gemm8,
    "gemm8_4": lambda rng: gemm8(rng, 4),
    "matvec": matvec,
    "native_tile": native_tile,
    "persist": persist,
    "reduce_sum": reduce,
    "reduce_max": lambda rng: reduce(rng, "max"),
    "reduce_min": lambda rng: reduce(rng, "min"),
    "inclusive_scan": inclusive_scan,
    "matmul_half": matmul,
    "matmul_bfloat": lambda rng: matmul(rng, "bfloat"),
    "matmul_float": lambda rng: matmul(rng, "float"),
    "histogram": histogram,
    "last_arriver": last_arriver,
    "scan_lookback": scan_lookback,
}
