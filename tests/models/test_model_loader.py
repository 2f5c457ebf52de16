"""Every accepted form of a checkpoint gives the same weights, bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from torch_mps_fusion.models import GatedDeltaNet, load_layer, write_model
from torch_mps_fusion.models import loader as loader_module
from torch_mps_fusion.models.names import DECAY_PARAMETERS, PREFIXES
from torch_mps_fusion.models.random_weights import random_weights


def written(config, layer_idx: int, dtype=torch.bfloat16, with_input_norm=False, **options):
    """The weights that ``write_model`` puts into layer ``layer_idx``."""
    return random_weights(
        config, dtype=dtype, seed=layer_idx, with_input_norm=with_input_norm, **options
    )


def assert_same(loaded: dict, expected: dict) -> None:
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert loaded[name].dtype == tensor.dtype, name
        assert torch.equal(loaded[name], tensor), name


@pytest.mark.parametrize("style", ["split", "grouped"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("mlx", [False, True], ids=["hf", "mlx"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
def test_every_form_gives_the_same_weights(tmp_path, config, style, shards, prefix, mlx, dtype):
    path = write_model(
        tmp_path / "model",
        config,
        layers=[0, 2],
        dtype=dtype,
        style=style,
        prefix=prefix,
        shards=shards,
        mlx=mlx,
    )
    for layer_idx in (0, 2):
        expected = written(config, layer_idx, dtype, with_input_norm=True)
        norm = expected["input_norm_weight"]
        if mlx:  # the checkpoint holds 1 + w rounded; w is what that stands for
            norm = expected["input_norm_weight"] = ((norm.float() + 1).to(dtype).float() - 1).to(
                dtype
            )
        read_config, loaded = load_layer(path, layer_idx, with_input_norm=True)
        assert read_config == config
        assert_same(loaded, expected)
        assert norm.abs().max() < 1


@pytest.mark.parametrize("model_type", ["qwen3_next", "qwen3_5", "qwen3_5_moe_text", "qwen4_exp"])
def test_the_writer_follows_the_model_type(tmp_path, config, model_type):
    config = replace(config, model_type=model_type)
    path = write_model(tmp_path / "model", config)
    stored = load_file(path / "model.safetensors")
    grouped = any("in_proj_qkvz" in name for name in stored)
    assert grouped == (model_type == "qwen3_next")
    nested = model_type in ("qwen3_5", "qwen4_exp")
    assert all(
        n.startswith("model.language_model.layers.0." if nested else "model.layers.0.")
        for n in stored
    )
    assert_same(load_layer(path, 0)[1], written(config, 0))


def test_file_index_and_directory_are_the_same(tmp_path, config):
    single = write_model(tmp_path / "single", config)
    sharded = write_model(tmp_path / "sharded", config, shards=2)
    expected = written(config, 0)
    for path in (
        single,
        str(single),
        single / "model.safetensors",
        sharded,
        sharded / "model.safetensors.index.json",
    ):
        assert_same(load_layer(path, 0)[1], expected)


def test_single_file_of_any_name_with_a_given_config(tmp_path, config, model_dir):
    file = (model_dir / "model.safetensors").rename(tmp_path / "layer0.safetensors")
    assert_same(load_layer(file, 0, config=config)[1], written(config, 0))
    with pytest.raises(FileNotFoundError, match=r"config.json; put it beside .* or give config="):
        load_layer(file, 0)


def test_only_the_shards_of_the_layer_are_opened(tmp_path, config):
    path = write_model(tmp_path / "model", config, layers=[0, 1], shards=2)
    index = path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    tensors = {n: t for f in path.glob("*.safetensors") for n, t in load_file(f).items()}
    for name in tensors:
        content["weight_map"][name] = (
            "zero.safetensors" if ".layers.0." in name else "absent.safetensors"
        )
    index.write_text(json.dumps(content))
    save_file({n: t for n, t in tensors.items() if ".layers.0." in n}, path / "zero.safetensors")
    assert_same(load_layer(path, 0)[1], written(config, 0))
    with pytest.raises(ValueError, match="absent.safetensors"):
        load_layer(path, 1)


def test_other_tensors_are_not_read(edit, config):
    """Quantised neighbours, vision tensors and mtp.* are none of this layer's business."""
    mixer = "layers.0.linear_attn.in_proj_qkv.weight"

    def add(tensors):
        tensors["mtp." + mixer] = torch.zeros(1)
        tensors["mtp.layers.0.linear_attn.in_proj_qkv.scales"] = torch.zeros(1)
        tensors["model.visual.blocks.0.attn.qkv.weight"] = torch.zeros(2, 2)
        tensors["model.language_model.layers.0.mlp.up_proj.weight"] = torch.zeros(
            2, dtype=torch.uint32
        )
        tensors["model.language_model.layers.10.linear_attn.A_log"] = torch.zeros(1)

    assert_same(load_layer(edit(add), 0)[1], written(config, 0))


def test_weights_do_not_share_memory_with_the_file(model_dir, config):
    layer = GatedDeltaNet.from_safetensors(model_dir, 0)
    file = model_dir / "model.safetensors"
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.write(b"\xff" * size)
    assert_same(layer.state_dict(), written(config, 0))
    with file.open("wb"):  # a mapped page beyond the end of a file is a bus error
        pass
    assert_same(layer.state_dict(), written(config, 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("decay_dtype", [torch.float32, torch.bfloat16])
def test_dtype_converts_the_weights_but_never_rounds_the_decay(
    tmp_path, config, dtype, decay_dtype
):
    path = write_model(tmp_path / "model", config, decay_dtype=decay_dtype)
    stored = written(config, 0, decay_dtype=decay_dtype)
    _, loaded = load_layer(path, 0, dtype=dtype)
    for name, tensor in loaded.items():
        if name in DECAY_PARAMETERS:
            assert tensor.dtype in (dtype, torch.float32)
            assert torch.equal(tensor.double(), stored[name].double()), name
        else:
            assert tensor.dtype == dtype, name
            assert torch.equal(tensor, stored[name].to(dtype)), name
    GatedDeltaNet(config, loaded)


def test_without_dtype_the_projections_decide(edit, config):
    """A float32 gated norm in a bfloat16 checkpoint is rounded, as transformers rounds it."""
    name = "model.language_model.layers.0.linear_attn.norm.weight"
    path = edit(lambda tensors: tensors.update({name: tensors[name].float()}))
    assert_same(load_layer(path, 0)[1], written(config, 0))


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu"), "meta"])
def test_L2_indexed_and_plain_device_names_load_alike(model_dir, device):
    layer = GatedDeltaNet.from_safetensors(model_dir, 0, device=device)
    assert layer.device.type == torch.device(device).type
    assert {p.device.type for p in layer.parameters()} == {layer.device.type}


@pytest.mark.parametrize("device", ["mps", "mps:0"])
def test_L2_mps_names_never_reach_safetensors(model_dir, device, monkeypatch):
    """Both names load on a Mac; elsewhere both are refused before a file is opened."""
    if torch.backends.mps.is_available():
        layer = GatedDeltaNet.from_safetensors(model_dir, 0, device=device)
        assert layer.device == torch.device("mps:0")
        return
    opened = []
    monkeypatch.setattr(loader_module.Checkpoint, "open", lambda path: opened.append(path))
    with pytest.raises(ValueError, match=f"device '{device}' cannot be used here"):
        GatedDeltaNet.from_safetensors(model_dir, 0, device=device)
    assert not opened


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "", 1.5])
def test_unusable_device_is_named(model_dir, device):
    with pytest.raises(ValueError, match="device "):
        load_layer(model_dir, 0, device=device)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.float8_e4m3fn, "bfloat16"])
def test_unusable_dtype_is_named(model_dir, dtype):
    with pytest.raises(ValueError, match="dtype is .*accepted: torch.float32"):
        load_layer(model_dir, 0, dtype=dtype)


def test_G7_weight_beyond_float16_is_refused_rather_than_infinite(edit):
    name = "model.language_model.layers.0.linear_attn.out_proj.weight"
    path = edit(lambda tensors: tensors[name].view(-1)[5].fill_(1e5))
    load_layer(path, 0)
    with pytest.raises(ValueError, match=f"{name} holds .* torch.float16 cannot hold"):
        load_layer(path, 0, dtype=torch.float16)


def test_writer_refuses_a_directory_that_is_not_empty(model_dir, config):
    before = sorted(model_dir.iterdir())
    with pytest.raises(ValueError, match="not empty"):
        write_model(model_dir, config)
    assert sorted(model_dir.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"style": "rows"}, "style is 'rows'"),
        ({"prefix": "blk.{}."}, "prefix is 'blk.{}.'"),
        ({"shards": 0}, "shards is 0"),
        ({"layers": [3]}, "layer 3 is a full_attention layer"),
    ],
)
def test_writer_refuses_bad_arguments_before_it_writes(tmp_path, config, options, message):
    with pytest.raises(ValueError, match=message):
        write_model(tmp_path / "model", config, **options)
    assert not (tmp_path / "model").exists()
