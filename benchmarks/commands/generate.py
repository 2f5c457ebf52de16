"""Generation by a small transformers model on the CPU, as it is and with its GDN layers fused.

Eight layers (six of them Gated DeltaNet), hidden size 256, random weights: small enough that the
layers' own overhead matters, as it does at batch 1. Behind a gate: both generate the same tokens.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .. import receipts
from ..harness import Arm, check, measure, options_of
from ..timers import HostClock

DEVICE = "cpu"  # whatever the others run on
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


def cell(name: str, options: argparse.Namespace) -> receipts.Receipt:
    models = make_models(DTYPES[name], options.variant)
    generator = torch.Generator().manual_seed(options.seed + 1)
    ids = torch.randint(2, CONFIG["vocab_size"], (1, options.prompt), generator=generator)
    same = same_tokens(models, ids, options.new, TIES[name])
    check({"same tokens": 0.0 if same else float("inf")}, name)
    measured = measure(
        [Arm(a, lambda m=models[a]: generate(m, ids, options.new)) for a in ("fused", "original")],
        HostClock(),
        rounds=options.rounds or (2 if options.smoke else 7),
        warm_up_s=0.0 if options.smoke else options.warm_up_gpu_seconds,
        **options_of(options),
    )
    c = measured.compare("fused", "original")
    print(
        f"{name:>9}  original {measured.median('original'):.3f} s  fused "
        f"{measured.median('fused'):.3f} s  {1 / c.ratio.mean:.2f}x: {c.verdict}"
    )
    return receipts.new(
        options,
        "cpu-native",
        scope="model",
        tier=3,
        rows=1,
        sequences=1,
        dtype=name,
        cache_mode="warm",
        measured=measured,
        arms=[receipts.arm("fused"), receipts.arm("original")],
        comparisons=[c.as_dict()],
        results={"part": name, "prompt": options.prompt, "new": options.new},
        numerics={"class": "tolerance", "tokens": "the same, up to ties of the best two logits"},
        caveats=["a small model with random weights: the layers' own overhead dominates"],
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--variant", default="auto", help="of the fused model")
    parser.add_argument("--prompt", type=int, default=40, help="prompt tokens")
    parser.add_argument("--new", type=int, default=256, help="generated tokens")


def run(options: argparse.Namespace) -> Iterator[receipts.Receipt]:
    from transformers.utils import logging

    logging.set_verbosity_error()  # it warns that its fallback is slow; that is what we time
    if options.smoke:
        options.dtypes, options.prompt, options.new = ["float32"], 2, 2
    print(f"{options.prompt} prompt and {options.new} new tokens, batch 1, CPU")
    for name in options.dtypes:
        with torch.no_grad():
            yield cell(name, options)
