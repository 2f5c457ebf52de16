"""Loads a checkpoint directory, fuses its Gated DeltaNet layers and generates.

    python examples/generate.py model_dir "Once upon a time" --new 64

The directory is that of a Qwen3.5 or Qwen3-Next model with its tokenizer.
"""

from __future__ import annotations

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from torch_mps_fusion.integrations.transformers import fuse, fused_layers


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model_dir")
    parser.add_argument("prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens to generate")
    parser.add_argument("--device", default="mps" if torch.backends.mps.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--variant", default="auto", help="how the fused layers run")
    options = parser.parse_args(arguments)

    tokenizer = AutoTokenizer.from_pretrained(options.model_dir)
    dtype = getattr(torch, options.dtype)
    model = AutoModelForCausalLM.from_pretrained(options.model_dir, dtype=dtype)
    fuse(model.to(options.device), options.variant)
    print(f"{len(fused_layers(model))} layers fused")

    inputs = tokenizer(options.prompt, return_tensors="pt").to(options.device)
    tokens = model.generate(**inputs, max_new_tokens=options.new, do_sample=False)
    print(tokenizer.decode(tokens[0], skip_special_tokens=True))


if __name__ == "__main__":
    main()
