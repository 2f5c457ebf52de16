"""Fuses a small random transformers model, and shows that it generates the same tokens.

    python examples/fuse_transformers.py

Nothing is downloaded. ``python -m benchmarks generate`` measures the same with care.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from torch_mps_fusion.integrations.transformers import fuse, fused_layers, unfuse


def small_model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        hidden_size=128,
        num_hidden_layers=4,  # three Gated DeltaNet layers and one of full attention
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        intermediate_size=256,
        vocab_size=512,
        eos_token_id=None,
    )
    return Qwen3_5ForCausalLM(config).eval()


def timed_generate(title: str, model: PreTrainedModel, prompt: Tensor, new: int) -> Tensor:
    model.generate(prompt, max_new_tokens=2, do_sample=False)  # the first call sets things up
    start = time.perf_counter()
    tokens = model.generate(prompt, max_new_tokens=new, do_sample=False)
    print(f"{title:<12} {new / (time.perf_counter() - start):7.1f} tokens/s")
    return tokens


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--new", type=int, default=64, help="tokens to generate")
    options = parser.parse_args(arguments)

    model, prompt = small_model(), torch.arange(2, 12).unsqueeze(0)
    original = timed_generate("as it was", model, prompt, options.new)
    fuse(model)
    print("fused:", ", ".join(fused_layers(model)))
    fused = timed_generate("fused", model, prompt, options.new)
    unfuse(model)
    print("same tokens:", torch.equal(original, fused))


if __name__ == "__main__":
    main()
