"""Whether our shaders run on a CUDA device here."""

import torch

from torch_mps_fusion import supports


def why_not_cuda() -> str:
    """The reason why they do not; empty if they do."""
    return supports(
        "core", device="cuda", dtype=torch.float32, weight_format="tiles16-nvidia",
        num_k_heads=2, num_v_heads=2, head_k_dim=32, head_v_dim=32,
    ).reason  # fmt: skip
