"""LoRA on one Gated DeltaNet layer: low-rank terms on its projections learn, the rest is frozen.

    python examples/lora_step.py model_dir --layer 0 --steps 5

Loads one layer of a checkpoint and moves its outputs towards those of the same layer with one
weight changed. Memory grows with the tokens as the inputs do: the backward pass computes the layer
again, chunk by chunk.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from torch_mps_fusion.models import GatedDeltaNet

ADAPTED = ("in_proj_qkv", "in_proj_z", "out_proj")


class LoRA(nn.Module):
    """weight + up down: ``up`` starts at zero, so that the layer is at first what it was."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.down = nn.Parameter(weight.new_empty(rank, columns).normal_(std=columns**-0.5))
        self.up = nn.Parameter(weight.new_zeros(rows, rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


def run_adapted(layer: GatedDeltaNet, adapters: nn.ModuleDict, x: Tensor) -> Tensor:
    weights = {f"{name}.weight": adapters[name](layer.get_submodule(name).weight)
               for name in ADAPTED}  # fmt: skip
    return torch.func.functional_call(layer, weights, (x,))


def main(arguments: list[str] | None = None) -> list[float]:
    """Returns the loss before each step and after the last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model_dir", help="a checkpoint: safetensors and config.json")
    parser.add_argument("--layer", type=int, default=0)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=256)
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    layer = GatedDeltaNet.from_safetensors(options.model_dir, options.layer, dtype=torch.float32)
    x = torch.randn(1, options.tokens, layer.config.hidden_size)
    turned = {"out_proj.weight": layer.out_proj.weight.roll(1, 0)}
    target = torch.func.functional_call(layer, turned, (x,))

    weights = {name: layer.get_submodule(name).weight for name in ADAPTED}
    adapters = nn.ModuleDict({name: LoRA(w, options.rank) for name, w in weights.items()})
    optimizer = torch.optim.AdamW(adapters.parameters(), lr=1e-2)
    losses = []
    for step in range(options.steps + 1):
        loss = (run_adapted(layer, adapters, x) - target).square().mean() / target.square().mean()
        losses.append(loss.item())
        print(f"step {step}: loss {losses[-1]:.4f}")
        if step < options.steps:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return losses


if __name__ == "__main__":
    main()
