"""Every variant of ours, once each, for compute-sanitizer: python tests/cuda/sanitized.py

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    compute-sanitizer --tool memcheck python tests/cuda/sanitized.py

Without PyTorch's caching allocator every tensor is an allocation of its own, whose end is known.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import torch  # noqa: E402
from cases import REAL, SMALL  # noqa: E402
from compare import run_layer  # noqa: E402
from needed import BF16, PERSISTENT, VARIANTS, cuda, inputs, moved  # noqa: E402


def main() -> None:
    for shape, tokens in ((SMALL, 9), (REAL["27b"], 8)):
        layer, hidden, states = inputs(shape, BF16, tokens)
        there, x, given = moved(layer), hidden.cuda(), cuda(states)
        for variant in (*VARIANTS, *PERSISTENT):
            run_layer(there, x, given, variant=variant)
            torch.cuda.synchronize()
            print(f"ran {variant}, hidden size {shape.hidden}, {tokens} tokens", flush=True)


if __name__ == "__main__":
    main()
