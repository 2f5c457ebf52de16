"""What the tests of a CUDA device need where no compiler is: python tests/cuda/prebuild.py DIR

Writes the PTX of every kernel that tests/cuda and tests/test_shader_devices.py run, and
metal_host.pt: what metal_host computed on this machine, to be compared there.

    TORCH_MPS_FUSION_PTX=DIR python -m pytest tests/cuda tests/test_shader_devices.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import compare  # noqa: E402 (behind the path)
from needed import NEEDED, TIMED, host_results  # noqa: E402 (behind the path)

from torch_mps_fusion import cuda_kernels, plan  # noqa: E402


def recorded(function, in_place: bool, found: set) -> object:
    """The function of compare.py; what its call would run on a CUDA device is noted."""

    def run(layer, hidden, states=(None, None), mask=None, **keywords):
        given = {**layer.keywords, **keywords}
        if given.get("variant") in cuda_kernels.VARIANTS:
            program = plan.plan_layer(
                hidden,
                *layer.weights,
                layer.input_norm_weight,
                *states,
                mask,
                **given,
                device=cuda_kernels.DEVICE,
                in_place=in_place,
            )
            found.update(cuda_kernels.kernels_of(program))
        return function(layer, hidden, states, mask, **keywords)

    return run


def of_the_shared_suite() -> set[cuda_kernels.Kernel]:
    """The kernels of tests/test_shader_devices.py, which runs here on CPU tensors."""
    found: set[cuda_kernels.Kernel] = set()
    compare.run_layer = recorded(compare.run_layer, False, found)
    compare.run_layer_in_place = recorded(compare.run_layer_in_place, True, found)
    suite = str(HERE.parent / "test_shader_devices.py")
    if pytest.main(["-q", "-k", "cpu", "-p", "no:cacheprovider", suite]) != 0:
        raise SystemExit("error: the suite fails on CPU tensors")
    return found


def of_these_tests() -> Iterator[cuda_kernels.Kernel]:
    for variants, shape, dtype, tokens, masks in NEEDED:
        yield from cuda_kernels.needed(shape, dtype, tokens, masks=masks, variants=variants)
    variants, shape, dtype, tokens, _ = TIMED
    yield from cuda_kernels.needed(shape, dtype, tokens, geometry=";times=1", variants=variants)


def main(folder: Path) -> None:
    kernels = of_the_shared_suite() | set(of_these_tests())
    print(f"{cuda_kernels.fill(folder, kernels)} kernels in {folder}", flush=True)
    torch.save(host_results(), folder / "metal_host.pt")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
