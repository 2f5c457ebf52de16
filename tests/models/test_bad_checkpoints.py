"""Every broken or foreign checkpoint is one clear error that names what is wrong, never a crash."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from torch_mps_fusion.models import CheckpointError, ConfigError, GatedDeltaNet, write_model
from torch_mps_fusion.models.names import GROUPED_PROJECTIONS, PREFIXES, SHARED, SPLIT_PROJECTIONS

MIXER = "model.language_model.layers.0.linear_attn."
INDEX = "model.safetensors.index.json"


def load(path, layer_idx=0, **options):
    return GatedDeltaNet.from_safetensors(path, layer_idx, **options)


def refuses(path, *words, error=CheckpointError, **options) -> None:
    with pytest.raises(error) as caught:
        load(path, **options)
    for word in words:
        assert str(word) in str(caught.value), str(caught.value)


@pytest.fixture
def sharded(tmp_path, config):
    return write_model(tmp_path / "sharded", config, shards=3)


def edit_index(directory, change) -> None:
    file = directory / INDEX
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, 100, -1, -1000])
def test_truncated_file_is_named(model_dir, kept):
    file = model_dir / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    refuses(model_dir, file, "truncated or not a safetensors file")


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_truncated_shard_is_named(sharded, kept):
    file = sharded / "model-00002-of-00003.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    refuses(sharded, file, "truncated or not a safetensors file")


def test_trailing_bytes_are_an_error(model_dir):
    file = model_dir / "model.safetensors"
    file.write_bytes(file.read_bytes() + b"\0")
    refuses(model_dir, file)


@pytest.mark.parametrize("seed", range(4))
def test_corrupt_header_never_crashes(model_dir, seed):
    """Random damage to the header is refused by name, or leaves the tensors of the layer whole."""
    file = model_dir / "model.safetensors"
    whole = file.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    rng = random.Random(seed)
    refused = 0
    for _ in range(100):
        damaged = bytearray(whole)
        for _ in range(rng.choice((1, 1, 4, 32))):
            damaged[rng.randrange(header)] = rng.randrange(256)
        file.write_bytes(damaged)
        try:
            load(model_dir)
        except CheckpointError as error:
            refused += 1
            assert str(model_dir) in str(error), f"seed {seed}: {error}"
        except Exception as error:  # noqa: BLE001
            pytest.fail(f"seed {seed}: {error!r}")
    assert refused > 50, f"seed {seed}"


@pytest.mark.parametrize("name", [*SPLIT_PROJECTIONS, *SHARED])
def test_missing_tensor_is_named(edit, name):
    refuses(edit(lambda tensors: tensors.pop(MIXER + name)), MIXER + name, "lacks")


@pytest.mark.parametrize("name", GROUPED_PROJECTIONS)
def test_missing_grouped_projection_is_named(tmp_path, config, name):
    path = write_model(tmp_path / "grouped", config, style="grouped")
    tensors = load_file(path / "model.safetensors")
    del tensors[MIXER + name]
    save_file(tensors, path / "model.safetensors")
    refuses(path, MIXER + name, "lacks")


def test_missing_input_norm_is_named_only_when_asked_for(edit):
    name = "model.language_model.layers.0.input_layernorm.weight"
    path = edit(lambda tensors: tensors.pop(name))
    assert load(path).input_norm_weight is None
    refuses(path, name, with_input_norm=True)


def test_absent_layer_lists_the_prefixes_tried(model_dir):
    refuses(model_dir, *(p.format(1) + "linear_attn." for p in PREFIXES), layer_idx=1)


def test_layer_under_two_prefixes_is_ambiguous(edit):
    def add(tensors):
        tensors["layers.0.linear_attn.A_log"] = torch.zeros(6)

    refuses(edit(add), "model.language_model.layers.0.", "layers.0.")


@pytest.mark.parametrize("name", [*SPLIT_PROJECTIONS, *SHARED])
def test_wrong_shape_is_named_with_both_shapes(edit, name):
    shape = []

    def shrink(tensors):
        shape.extend(tensors[MIXER + name].shape)
        tensors[MIXER + name] = tensors[MIXER + name][1:].contiguous()

    path = edit(shrink)
    refuses(path, MIXER + name, [shape[0] - 1, *shape[1:]], shape, "model.safetensors")


def test_wrong_shape_in_a_shard_names_the_shard(sharded):
    for file in sharded.glob("*.safetensors"):
        tensors = load_file(file)
        if MIXER + "in_proj_z.weight" in tensors:
            tensors[MIXER + "in_proj_z.weight"] = torch.zeros(3, 40)
            save_file(tensors, file)
            refuses(sharded, file, MIXER + "in_proj_z.weight", [3, 40], [384, 40])
            return
    pytest.fail("no shard holds in_proj_z")


@pytest.mark.parametrize("shape", [(512, 4), (512, 4, 4), (512, 1, 3), (1, 512, 4), (512, 2, 2)])
def test_convolution_of_neither_layout_is_named(edit, shape):
    refuses(
        edit(lambda tensors: tensors.update({MIXER + "conv1d.weight": torch.zeros(shape)})),
        MIXER + "conv1d.weight",
        list(shape),
        [512, 1, 4],
    )


@pytest.mark.parametrize(
    ("dtype", "word"),
    [
        (torch.float64, "F64"),
        (torch.int64, "I64"),
        (torch.bool, "BOOL"),
        (torch.uint8, "U8 (quantised"),
        (torch.int8, "I8 (quantised"),
        (torch.uint32, "U32 (quantised"),
        (torch.float8_e4m3fn, "F8_E4M3 (quantised"),
        (torch.float8_e5m2, "F8_E5M2 (quantised"),
    ],
)
@pytest.mark.parametrize("name", ["in_proj_qkv.weight", "A_log"])
def test_wrong_dtype_is_named(edit, name, dtype, word):
    def convert(tensors):
        tensors[MIXER + name] = torch.ones(tensors[MIXER + name].shape).to(dtype)

    refuses(edit(convert), MIXER + name, word, "accepted: F32, F16, BF16")


def test_projections_of_different_dtypes_need_a_choice(edit):
    name = MIXER + "in_proj_z.weight"
    path = edit(lambda tensors: tensors.update({name: tensors[name].float()}))
    refuses(path, name + " F32", "in_proj_qkv.weight BF16", "dtype=")
    assert load(path, dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize(
    "mark",
    [
        "in_proj_qkv.scales",
        "in_proj_qkv.biases",
        "in_proj_qkv.weight_scale_inv",
        "out_proj.weight_scale",
        "out_proj.qweight",
        "out_proj.weight.absmax",
        "in_proj_z.weight_packed",
        "in_proj_qkv.weight_scale_2",
    ],
)
def test_quantised_checkpoint_is_refused_by_name(edit, mark):
    path = edit(lambda tensors: tensors.update({MIXER + mark: torch.ones(1)}))
    refuses(path, MIXER + mark, "quantised", "F32, F16, BF16")


def test_quantised_mlx_checkpoint_is_refused_by_name(tmp_path, config):
    path = write_model(tmp_path / "mlx", config, mlx=True)
    tensors = load_file(path / "model.safetensors")
    for name in ("in_proj_qkv", "in_proj_z", "out_proj"):
        rows, columns = tensors[MIXER + name + ".weight"].shape
        tensors[MIXER + name + ".weight"] = torch.zeros(rows, columns // 8, dtype=torch.uint32)
        tensors[MIXER + name + ".scales"] = torch.zeros(rows, 1)
        tensors[MIXER + name + ".biases"] = torch.zeros(rows, 1)
    save_file(tensors, path / "model.safetensors")
    refuses(path, "quantised")


@pytest.mark.parametrize("name", ["in_proj_qkv.bias", "conv1d.bias", "q_norm.weight"])
def test_tensor_that_would_be_ignored_is_an_error(edit, name):
    path = edit(lambda tensors: tensors.update({MIXER + name: torch.zeros(1)}))
    refuses(path, MIXER + name, "would be ignored")


def test_projections_of_both_styles_are_an_error(edit):
    path = edit(lambda tensors: tensors.update({MIXER + "in_proj_ba.weight": torch.zeros(12, 40)}))
    refuses(path, "both styles", "in_proj_ba.weight")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"hidden_size": 48}, "in_proj_qkv.weight"),
        ({"linear_num_value_heads": 4}, "in_proj_qkv.weight"),
        ({"linear_key_head_dim": 64}, "in_proj_qkv.weight"),
        ({"linear_value_head_dim": 32}, "in_proj_qkv.weight"),
        ({"linear_conv_kernel_dim": 3}, "conv1d.weight"),
        # The same sizes divided otherwise: only the gates and the norm can tell.
        ({"linear_num_value_heads": 12, "linear_value_head_dim": 32}, "in_proj_b.weight"),
    ],
)
def test_config_that_disagrees_with_the_weights_is_named(edit_config, fields, name):
    refuses(edit_config(**fields), MIXER + name, "the config (qwen3_5) asks for")


def test_C7_directory_with_an_incomplete_config_is_refused(edit_config):
    refuses(edit_config(linear_num_value_heads=...), "linear_num_value_heads", error=ConfigError)


def test_attention_layer_is_refused_with_the_gdn_layers(model_dir):
    refuses(model_dir, "full_attention", "[0, 1, 2]", layer_idx=3, error=ConfigError)


def test_config_that_calls_an_attention_layer_gdn_is_named(edit):
    def swap(tensors):
        for name in list(tensors):
            del tensors[name]
        tensors["model.language_model.layers.0.self_attn.q_proj.weight"] = torch.zeros(1)

    refuses(edit(swap), "is an attention layer")


@pytest.mark.parametrize("layer_idx", [-1, 4, 2**40, True, "0", 0.0, None])
def test_layer_idx_outside_the_model_is_refused(model_dir, layer_idx):
    refuses(model_dir, "layer_idx", layer_idx=layer_idx, error=ConfigError)


def test_input_norm_of_a_model_without_a_plain_residual_is_refused(tmp_path, config):
    path = write_model(tmp_path / "exp", replace(config, model_type="qwen4_exp"))
    load(path)
    refuses(path, "with_input_norm", "qwen4_exp", with_input_norm=True, error=ValueError)


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("model.gguf", b"GGUF" + bytes(60), "a GGUF file"),
        ("model.safetensors", b"GGUF" + bytes(60), "a GGUF file"),
        ("model.safetensors", b"PK\x03\x04" + bytes(60), "pickle"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("pytorch_model.bin", bytes(60), "pickle"),
        ("weights.npz", bytes(60), "pickle"),
        ("model.onnx", bytes(60), "a .onnx file"),
        ("model", bytes(60), "nameless"),
    ],
)
def test_other_formats_are_refused_by_name(tmp_path, config, name, content, word):
    (tmp_path / name).write_bytes(content)
    refuses(tmp_path / name, tmp_path / name, word, "accepted: a .safetensors", config=config)


def test_directory_of_another_format_says_what_it_holds(tmp_path, config):
    (tmp_path / "model-Q4_K_M.gguf").write_bytes(b"GGUF")
    refuses(tmp_path, "model-Q4_K_M.gguf", "accepted: a .safetensors", config=config)


def test_empty_directory_is_named(tmp_path, config):
    refuses(tmp_path, tmp_path, "no weights", config=config)


def test_absent_path_is_named(tmp_path, config):
    refuses(tmp_path / "none", tmp_path / "none", config=config, error=FileNotFoundError)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["directory", "pipe"])
def test_path_that_is_no_regular_file_is_named(tmp_path, config, make):
    make(tmp_path / "model.safetensors")
    refuses(tmp_path, tmp_path / "model.safetensors", "not a regular file", config=config)


def test_missing_shard_is_named_with_its_tensor(sharded):
    (sharded / "model-00003-of-00003.safetensors").unlink()
    refuses(sharded, "model-00003-of-00003.safetensors", "does not exist", MIXER)


def test_shard_without_the_tensor_is_named(sharded):
    def move(content):
        content["weight_map"][MIXER + "A_log"] = content["weight_map"][MIXER + "conv1d.weight"]

    edit_index(sharded, move)
    refuses(sharded, MIXER + "A_log", "although the index says so")


@pytest.mark.parametrize(
    "shard",
    [
        "../model.safetensors",
        "a/../../model.safetensors",
        "/etc/passwd",
        "C:\\model.safetensors",
        "\\\\host\\share\\model.safetensors",
        "..\\model.safetensors",
        "a\0b",
    ],
)
def test_shard_outside_the_directory_is_refused(sharded, shard):
    edit_index(sharded, lambda content: content["weight_map"].update({MIXER + "A_log": shard}))
    refuses(sharded, repr(shard), MIXER + "A_log", "outside its directory")


@pytest.mark.parametrize("shard", [None, 3, ["x"], ""])
def test_shard_that_is_no_name_is_refused(sharded, shard):
    edit_index(sharded, lambda content: content["weight_map"].update({MIXER + "A_log": shard}))
    refuses(sharded, MIXER + "A_log", "file name")


def test_linked_shard_is_followed(sharded, tmp_path):
    """Download caches keep the files elsewhere and link to them."""
    store = tmp_path / "store"
    store.mkdir()
    for file in sharded.glob("*.safetensors"):
        file.rename(store / file.name)
        file.symlink_to(store / file.name)
    load(sharded)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"weight_map": []}', "[" * 100_000, "\xff"])
def test_bad_index_is_named(sharded, text):
    (sharded / INDEX).write_text(text, encoding="latin-1")
    refuses(sharded, sharded / INDEX)


def test_config_given_as_weights_is_named(model_dir):
    refuses(model_dir / "config.json", "weight_map")
