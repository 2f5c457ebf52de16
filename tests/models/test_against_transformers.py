"""Checkpoints that transformers itself saves, loaded by us and run beside transformers' modules."""

from __future__ import annotations

import pytest
import torch

from torch_mps_fusion.models import GatedDeltaNet
from torch_mps_fusion.state import GDNState
from torch_mps_fusion.tolerances import error, tolerance

transformers = pytest.importorskip("transformers")

GEOMETRY = {
    "vocab_size": 32,
    "hidden_size": 48,
    "intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
EXPERTS = {
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
}
VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 48,
    "num_position_embeddings": 16,
}
FAMILIES = ["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5"]


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert error(got, expected) <= tolerance("output", torch.float32).rms


def build(model_type: str):
    """A tiny model with random weights in which no norm is the identity."""
    torch.manual_seed(0)
    geometry = GEOMETRY | (EXPERTS if model_type in ("qwen3_next", "qwen3_5_moe_text") else {})
    if model_type == "qwen3_5":
        config = transformers.AutoConfig.for_model(
            model_type, text_config=geometry, vision_config=VISION
        )
        model = transformers.AutoModelForImageTextToText.from_config(config)
    else:
        config = transformers.AutoConfig.for_model(model_type, **geometry)
        model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        if "norm" in name or "dt_bias" in name:
            parameter.data += 0.2 * torch.randn_like(parameter)
        elif ".linear_attn." in name and parameter.dim() > 1:
            parameter.data.normal_(std=0.15)
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request, tmp_path_factory):
    """(model, directory with one file, directory with shards)."""
    model = build(request.param)
    root = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(root / "single")
    model.save_pretrained(root / "sharded", max_shard_size="40KB")
    assert (root / "sharded" / "model.safetensors.index.json").exists()
    return model, root / "single", root / "sharded"


def decoder_layers(model):
    return getattr(model.model, "language_model", model.model).layers


@pytest.mark.parametrize("form", ["single", "sharded"])
@pytest.mark.parametrize("layer_idx", [0, 2])
def test_C3_loaded_layer_equals_transformers_module(saved, form, layer_idx, variant):
    model, single, sharded = saved
    decoder = decoder_layers(model)[layer_idx]
    layer = GatedDeltaNet.from_safetensors(single if form == "single" else sharded, layer_idx)
    x = torch.randn(2, 9, 48)
    assert_close(layer(x, variant=variant), decoder.linear_attn(x))


def test_with_input_norm_equals_the_residual_branch(saved, variant):
    model, single, _ = saved
    decoder = decoder_layers(model)[1]
    layer = GatedDeltaNet.from_safetensors(single, 1, with_input_norm=True)
    x = 3 * torch.randn(2, 9, 48)
    expected = x + decoder.linear_attn(decoder.input_layernorm(x))
    assert_close(layer(x, variant=variant), expected)


def test_E1_state_continues_a_transformers_cache_without_a_copy(saved, variant):
    """Prefill by transformers, then tokens by us on the same memory, then by transformers again."""
    model, single, _ = saved
    theirs = decoder_layers(model)[0].linear_attn
    ours = GatedDeltaNet.from_safetensors(single, 0)
    x = torch.randn(2, 12, 48)
    shared, reference = (transformers.DynamicCache(config=model.config) for _ in range(2))
    for cache in (shared, reference):
        theirs(x[:, :6], cache=cache)
    state = GDNState(shared.get_conv_state(0), shared.get_recurrent_state(0))
    for start, stop in ((6, 7), (7, 10), (10, 11)):
        got = ours(x[:, start:stop], state, variant=variant)
        assert_close(got, theirs(x[:, start:stop], cache=reference))
        assert state.conv.data_ptr() == shared.layers[0].conv_states[0].data_ptr()
    got = theirs(x[:, 11:], cache=shared)
    assert_close(got, theirs(x[:, 11:], cache=reference))


def test_D1_left_padding_equals_transformers(saved, variant):
    model, single, _ = saved
    theirs = decoder_layers(model)[0].linear_attn
    ours = GatedDeltaNet.from_safetensors(single, 0)
    x = torch.randn(2, 9, 48)
    mask = torch.arange(9).expand(2, -1) >= torch.tensor([[4], [1]])
    expected = theirs(x, attention_mask=mask.to(torch.int64))
    got = ours(x, mask=mask, variant=variant)
    assert_close(got[mask], expected[mask])


def test_bfloat16_checkpoint_stays_bfloat16(saved, tmp_path):
    model, single, _ = saved
    half = type(model).from_pretrained(single, dtype=torch.bfloat16)
    half.save_pretrained(tmp_path / "bf16")
    layer = GatedDeltaNet.from_safetensors(tmp_path / "bf16", 0)
    assert {p.dtype for p in layer.parameters()} == {torch.bfloat16}
    assert torch.equal(layer.conv1d.weight, decoder_layers(half)[0].linear_attn.conv1d.weight)
