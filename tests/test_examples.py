"""The scripts of examples/, run on small seeded models."""

import runpy
import warnings
from pathlib import Path

import pytest
import torch

from torch_mps_fusion.models import GDNConfig, write_model

EXAMPLES = Path(__file__).parent.parent / "examples"
TESTED = {"generate", "fuse_transformers", "lora_step"}


def run(name, *arguments):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*runs transformers' own forward")
        return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](list(arguments))


def test_each_example_has_a_test():
    assert {file.stem for file in EXAMPLES.glob("*.py")} == TESTED


def write_checkpoint(directory, vocabulary=16):
    """A small model and its tokenizer, as ``save_pretrained`` writes them."""
    import tokenizers
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen3_5TextConfig(
        hidden_size=64, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32,
        linear_value_head_dim=32, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
        intermediate_size=96, vocab_size=vocabulary, eos_token_id=None,
    )  # fmt: skip
    transformers.Qwen3_5ForCausalLM(config).save_pretrained(directory)
    words = {f"w{i}": i for i in range(vocabulary)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(directory)


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_generate(tmp_path, capsys, dtype):
    pytest.importorskip("transformers", reason="transformers is a test extra")
    write_checkpoint(tmp_path)
    run("generate", str(tmp_path), "w3 w5 w7", "--new=4", "--device=cpu", f"--dtype={dtype}")
    fused, text = capsys.readouterr().out.splitlines()
    assert fused == "1 layers fused"
    assert text.startswith("w3 w5 w7 ") and len(text.split()) == 7


def test_fuse_transformers(capsys):
    pytest.importorskip("transformers", reason="transformers is a test extra")
    run("fuse_transformers", "--new=8")
    lines = capsys.readouterr().out.splitlines()
    names = ", ".join(f"model.layers.{i}.linear_attn" for i in range(3))
    assert f"fused: {names}" in lines and lines[-1] == "same tokens: True"


def test_lora_step(tmp_path):
    config = GDNConfig(
        hidden_size=64, num_k_heads=1, num_v_heads=2, head_k_dim=32, head_v_dim=32,
        conv_kernel_size=4, rms_norm_eps=1e-6, model_type="qwen3_5",
        layer_types=("linear_attention",),
    )  # fmt: skip
    write_model(tmp_path / "model", config)
    losses = run("lora_step", str(tmp_path / "model"), "--steps=3", "--tokens=70", "--rank=4")
    assert len(losses) == 4 and losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.95 * losses[0]
