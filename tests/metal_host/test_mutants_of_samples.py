"""Every mutant of the sample shaders is caught by the checking build, or is proved equivalent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from samples import ALL, CONSTANTS, SHADERS, Sample

from torch_mps_fusion.metal_host import FaultError, Library
from torch_mps_fusion.metal_host.mutate import Mutant, hunt, mutants

# launches that reach every barrier and fence of the shader
LAUNCHES = {
    "rmsnorm.metal": ["rmsnorm_residual"],
    "persist.metal": ["persist"],
    "reduce.metal": ["reduce_sum"],
    "scan.metal": ["inclusive_scan"],
    "matmul.metal": ["matmul_half"],
    "histogram.metal": ["histogram"],
    "last_arriver.metal": ["last_arriver"],
    "lookback.metal": ["scan_lookback"],
}
EXPLAINED: dict[str, str] = {}
SEEDS = 6


def judge_in(folder: Path, shader: str):
    def judge(mutant: Mutant) -> str | None:
        path = mutant.write(folder / mutant.id.replace("/", "_"), SHADERS / shader)
        library = Library(path, CONSTANTS.get(shader), checked=True)
        for seed in range(SEEDS):
            for name in LAUNCHES[shader]:
                said = fault_of(library, ALL[name](np.random.default_rng(seed)), seed)
                if said:
                    return said
        return None

    return judge


def fault_of(library: Library, sample: Sample, seed: int) -> str | None:
    memory = [sample.threadgroup_bytes] if sample.threadgroup_bytes else None
    try:
        library.kernel(sample.kernel)(
            sample.grid,
            sample.threads,
            sample.buffers,
            threadgroup_memory=memory,
            schedule="random",
            seed=seed,
            preempt=5,
            time_limit=5.0,
        )
    except FaultError as error:
        return str(error.faults[0])
    return None


@pytest.mark.parametrize("shader", LAUNCHES)
def test_all_mutants_are_caught(shader: str, tmp_path: Path) -> None:
    todo = mutants(SHADERS / shader)
    assert todo, "nothing to mutate"
    explained = {k: v for k, v in EXPLAINED.items() if f"@{shader}:" in k}
    report = hunt(todo, judge_in(tmp_path, shader), explained)
    assert not report.survivors and not report.stale, str(report)


def test_shaders_without_mutants_order_nothing() -> None:
    rest = {p.name for p in SHADERS.glob("*.metal")} - set(LAUNCHES)
    assert rest and all(mutants(SHADERS / name) == [] for name in rest)
