"""Generation by a small transformers model on the CPU, as it is and with its GDN layers fused.

Eight layers (six of them Gated DeltaNet), hidden size 256, random weights: small enough that the
layers' own overhead matters, as it does at batch 1. Behind a gate: both generate the same tokens.
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .harness import interleaved, machine, write_json

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Best and second-best logit closer than this times the best are a tie, which a rounding decides.
TIES = {"float32": 1e-5, "bfloat16": 2**-6}
CONFIG = {
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 896,
    "vocab_size": 1024,
    "eos_token_id": None,
}


@dataclass
class Row:
    dtype: str
    prompt: int
    new: int
    same_tokens: bool
    samples: dict[str, list[float]] = field(default_factory=dict)

    def minimum(self, arm: str) -> float:
        return min(self.samples[arm])

    @property
    def ratio(self) -> float:
        return self.minimum("original") / self.minimum("fused")


def make_models(dtype: torch.dtype, variant: str) -> dict[str, Any]:
    """The same seeded weights twice, the second model fused."""
    import transformers

    from torch_mps_fusion.integrations.transformers import fuse

    torch.manual_seed(0)
    config = transformers.Qwen3_5TextConfig(**CONFIG)
    model = transformers.Qwen3_5ForCausalLM(config).to(dtype).eval()
    return {"original": model, "fused": fuse(copy.deepcopy(model), variant)}


def generate(model: Any, ids: Tensor, new: int, **keywords: Any) -> Any:
    mask = torch.ones_like(ids)
    return model.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False, **keywords)


def same_tokens(models: dict[str, Any], ids: Tensor, new: int, tie: float) -> bool:
    """Equal tokens, or equal ones up to a tie of the original's logits."""
    keywords = {"output_logits": True, "return_dict_in_generate": True}
    original, fused = (generate(model, ids, new, **keywords) for model in models.values())
    different = (original.sequences[0] != fused.sequences[0]).nonzero().flatten()
    if len(different) == 0:
        return True
    best, second = original.logits[int(different[0]) - ids.shape[1]][0].float().topk(2).values
    return bool(best - second <= tie * best.abs())


def measure(name: str, options: argparse.Namespace) -> Row:
    models = make_models(DTYPES[name], options.variant)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, CONFIG["vocab_size"], (1, options.prompt), generator=generator)
    same = same_tokens(models, ids, options.new, TIES[name])
    row = Row(name, options.prompt, options.new, same)
    if row.same_tokens:
        arms = {arm: lambda m=model: generate(m, ids, options.new) for arm, model in models.items()}
        row.samples = interleaved(arms, options.seconds, warm_up=1, least=3)
    return row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--variant", default="auto", help="of the fused model")
    parser.add_argument("--prompt", type=int, default=40, help="prompt tokens")
    parser.add_argument("--new", type=int, default=256, help="generated tokens")
    parser.add_argument("--seconds", type=float, default=20.0, help="timed seconds a row")
    parser.add_argument("--json", type=Path, help="write every sample to this file")


def run(options: argparse.Namespace) -> int:
    from transformers.utils import logging

    logging.set_verbosity_error()  # it warns that its fallback is slow; that is what we time
    line = machine()
    print(" · ".join(f"{key} {value}" for key, value in line.items()))
    rows = [measure(name, options) for name in options.dtypes]
    print(f"\n{options.prompt} prompt and {options.new} new tokens, batch 1")
    print("minima over interleaved rounds, seconds")
    for row in rows:
        if not row.same_tokens:
            print(f"{row.dtype:>9}  unverified (the tokens differ)")
            continue
        original, fused = row.minimum("original"), row.minimum("fused")
        print(f"{row.dtype:>9}  original {original:.3f}  fused {fused:.3f}  {row.ratio:.2f}x")
    if options.json is not None:
        write_json(options.json, line, [asdict(row) for row in rows])
        print(f"samples: {options.json}")
    return 0 if all(row.same_tokens for row in rows) else 1
