"""Small seeded transformers models: three GDN layers and one of full attention."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

from torch_mps_fusion.integrations.transformers import fuse
from torch_mps_fusion.tolerances import error, tolerance

VOCABULARY = 64
# The keyword for a model's and for generate's cache was renamed in transformers 5.23.
_FORWARD = inspect.signature(transformers.Qwen3_5ForCausalLM.forward)
CACHE = "cache" if "cache" in _FORWARD.parameters else "past_key_values"
TEXT = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "vocab_size": VOCABULARY,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
MOE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}


def qwen3_5(**changes: Any) -> torch.nn.Module:
    config = transformers.Qwen3_5TextConfig(**{**TEXT, **changes})
    return transformers.Qwen3_5ForCausalLM(config)


def qwen3_5_moe(**changes: Any) -> torch.nn.Module:
    config = transformers.Qwen3_5MoeTextConfig(**{**TEXT, **MOE, **changes})
    return transformers.Qwen3_5MoeForCausalLM(config)


def qwen3_next(**changes: Any) -> torch.nn.Module:
    config = transformers.Qwen3NextConfig(**{**TEXT, "num_experts": 0, **changes})
    return transformers.Qwen3NextForCausalLM(config)


FAMILIES = {f.__name__: f for f in (qwen3_5, qwen3_5_moe, qwen3_next)}


def make(family: str, dtype: torch.dtype = torch.float32, **changes: Any) -> torch.nn.Module:
    """A seeded model, its gates spread so that states neither vanish nor stay."""
    torch.manual_seed(0)
    model = FAMILIES[family](**changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                # Wider than the initialiser's 0.02: each layer shall matter for the tokens.
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
            elif name.endswith("A_log"):
                parameter.uniform_(-3, 1)
            elif name.endswith("dt_bias"):
                parameter.uniform_(-1, 1)
    return model.to(dtype).eval()


def prompt(batch: int = 2, tokens: int = 11, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (batch, tokens), generator=generator)


@dataclass
class Twins:
    """A model and its fused copy, with equal weights in separate memory."""

    family: str
    dtype: torch.dtype = torch.float32
    variant: str = "auto"
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.original = make(self.family, self.dtype, **self.changes)
        self.fused = fuse(copy.deepcopy(self.original), self.variant)
        # Four units in the last place of a bfloat16 logit between 2 and 4; float32 has no excuse.
        self.margin = {torch.float32: 1e-4, torch.bfloat16: 0.0625}[self.dtype]

    def generate(self, **keywords: Any) -> tuple[Any, Any]:
        return generate(self.original, **keywords), generate(self.fused, **keywords)

    def assert_same(self, **keywords: Any) -> Any:
        """Both generate the same tokens; returns the fused model's output."""
        original, fused = self.generate(**keywords)
        assert_same_tokens(original, fused, self.margin)
        return fused


def generate(model: torch.nn.Module, input_ids: torch.Tensor | None = None, **keywords: Any) -> Any:
    settings = {"max_new_tokens": 24, "do_sample": False, "output_logits": True}
    settings["return_dict_in_generate"] = True
    ids = prompt() if input_ids is None else input_ids
    keywords.setdefault("attention_mask", torch.ones_like(ids))
    return model.generate(ids, **{**settings, **keywords})


def assert_same_tokens(original: Any, fused: Any, margin: float) -> None:
    """Equal tokens in each row, up to a tie: there the original's two best logits are closer than
    ``margin``, and after it the rows are different sequences."""
    start = original.sequences.shape[1] - len(original.logits)
    assert original.sequences.shape == fused.sequences.shape
    for row in range(len(original.sequences)):
        different = (original.sequences[row] != fused.sequences[row]).nonzero().flatten()
        if len(different) == 0:
            continue
        step = int(different[0]) - start
        best = original.logits[step][row].float().topk(2).values
        assert best[0] - best[1] < margin, f"row {row}: other tokens from new token {step} on"


def layer_of(model: torch.nn.Module) -> Any:
    return model.model.layers[0].linear_attn


def original(layer: Any, *args: Any, **keywords: Any) -> torch.Tensor:
    """What transformers' own forward gives, fused or not."""
    return type(layer).forward(layer, *args, **keywords)


def new_cache(model: torch.nn.Module) -> Any:
    return transformers.DynamicCache(config=model.config)


def gradients(model: torch.nn.Module, tokens: int = 70, **keywords: Any) -> dict[str, torch.Tensor]:
    """Of the loss of a seeded batch, by parameter name."""
    model.train().zero_grad()
    ids = prompt(tokens=tokens)
    model(ids, labels=ids, **keywords).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def assert_close_gradients(
    found: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Gradients by parameter name, within the tolerance table."""
    accepted = tolerance("layer_gradient", dtype).rms
    assert found.keys() == expected.keys()
    for name, grad in found.items():
        difference = error(grad, expected[name])
        assert difference <= accepted, f"{name}: error {difference:.2e}, accepted {accepted}"
