"""GDNConfig reads what transformers writes, and fills nothing in (failures.md C7)."""

from __future__ import annotations

import json

import pytest

from torch_mps_fusion.models import KNOWN_SHAPES, ConfigError, GDNConfig
from torch_mps_fusion.models.config import MODEL_TYPES, UNVERIFIED_SHAPES, layer_pattern

GEOMETRY = {
    "hidden_size": 96,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 12,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 3,
    "rms_norm_eps": 1e-5,
    "num_hidden_layers": 8,
}
FLAT = {
    "model_type": "qwen3_next",
    "hidden_act": "silu",
    "layer_types": list(layer_pattern(8)),
    **GEOMETRY,
}
REQUIRED = [*GEOMETRY, "model_type", "hidden_act"]


def transformers_config(model_type: str):
    transformers = pytest.importorskip("transformers")
    auto = transformers.AutoConfig
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} does not know {model_type}")
    if model_type not in ("qwen3_5", "qwen3_5_moe", "qwen4_exp"):
        return auto.for_model(model_type, **GEOMETRY)
    return auto.for_model(model_type, text_config=dict(GEOMETRY))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("through_file", [False, True], ids=["dict", "file"])
def test_equals_transformers_own_config(model_type, through_file, tmp_path):
    theirs = transformers_config(model_type)
    if through_file:
        theirs.save_pretrained(tmp_path)
        ours = GDNConfig.from_json(tmp_path)
    else:
        ours = GDNConfig.from_dict(theirs.to_dict())
    text = theirs.get_text_config()
    assert ours == GDNConfig(
        hidden_size=text.hidden_size,
        num_k_heads=text.linear_num_key_heads,
        num_v_heads=text.linear_num_value_heads,
        head_k_dim=text.linear_key_head_dim,
        head_v_dim=text.linear_value_head_dim,
        conv_kernel_size=text.linear_conv_kernel_dim,
        rms_norm_eps=text.rms_norm_eps,
        model_type=model_type,
        layer_types=tuple(text.layer_types),
    )
    assert (ours.hidden_size, ours.num_v_heads, ours.num_layers) == (96, 12, 8)
    assert ours.gdn_layers == (0, 1, 2, 4, 5, 6)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_to_dict_is_read_back_by_us_and_by_transformers(model_type, tmp_path):
    ours = GDNConfig.from_dict(transformers_config(model_type).to_dict())
    assert GDNConfig.from_dict(ours.to_dict()) == ours
    (tmp_path / "config.json").write_text(json.dumps(ours.to_dict()))
    theirs = pytest.importorskip("transformers").AutoConfig.from_pretrained(tmp_path)
    assert GDNConfig.from_dict(theirs.to_dict()) == ours


@pytest.mark.parametrize("name", REQUIRED)
@pytest.mark.parametrize("null", [False, True], ids=["absent", "null"])
def test_C7_missing_config_field_is_an_error(name, null, tmp_path):
    fields = {**FLAT, name: None} if null else {k: v for k, v in FLAT.items() if k != name}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=f"{file}: field '{name}'"):
        GDNConfig.from_json(file)


@pytest.mark.parametrize("name", GEOMETRY)
def test_C7_missing_nested_field_is_not_taken_from_the_outer_level(name):
    nested = {k: v for k, v in FLAT.items() if k not in (name, "model_type")}
    with pytest.raises(ConfigError, match=f"text_config: field '{name}' is missing"):
        GDNConfig.from_dict({**FLAT, "model_type": "qwen3_5", "text_config": nested})


def test_C7_layer_types_are_listed_or_derived_never_guessed():
    fields = {k: v for k, v in FLAT.items() if k != "layer_types"}
    with pytest.raises(ConfigError, match="'layer_types' and 'full_attention_interval'"):
        GDNConfig.from_dict(fields)
    derived = GDNConfig.from_dict({**fields, "full_attention_interval": 3})
    assert derived.gdn_layers == (0, 1, 3, 4, 6, 7)
    listed = GDNConfig.from_dict({**FLAT, "full_attention_interval": 3})
    assert listed.gdn_layers == (0, 1, 2, 4, 5, 6)


BAD_VALUES = [
    ("hidden_size", 0),
    ("hidden_size", "1024"),
    ("hidden_size", 1024.0),
    ("linear_num_key_heads", True),
    ("linear_num_value_heads", -4),
    ("linear_key_head_dim", [128]),
    ("linear_conv_kernel_dim", 1),
    ("rms_norm_eps", 0),
    ("rms_norm_eps", "1e-6"),
    ("rms_norm_eps", float("nan")),
    ("rms_norm_eps", False),
    ("hidden_act", "gelu"),
    ("output_gate_type", "sigmoid"),
    ("layer_types", "linear_attention"),
    ("layer_types", []),
    ("layer_types", ["linear_attention"] * 7 + ["mamba"]),
    ("layer_types", ["linear_attention"] * 7),
    ("num_hidden_layers", 0),
    ("num_hidden_layers", "8"),
]


@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_wrong_value_is_named_with_its_source(name, value):
    with pytest.raises(ConfigError, match=f"some.json: .*{name}"):
        GDNConfig.from_dict({**FLAT, name: value}, source="some.json")


def test_value_heads_must_be_a_multiple_of_key_heads():
    with pytest.raises(ConfigError, match="linear_num_value_heads.* 6.* multiple.* 4"):
        GDNConfig.from_dict({**FLAT, "linear_num_value_heads": 6})


@pytest.mark.parametrize("model_type", ["llama", "qwen3_5_vision", 7, ["qwen3_next"]])
def test_unknown_model_type_is_refused_with_the_accepted_ones(model_type):
    with pytest.raises(ConfigError) as error:
        GDNConfig.from_dict({**FLAT, "model_type": model_type})
    assert repr(model_type) in str(error.value)
    assert all(accepted in str(error.value) for accepted in MODEL_TYPES)


@pytest.mark.parametrize("nested", [[], "x", None, {"model_type": "qwen3_next"}])
def test_bad_text_config_is_named(nested):
    with pytest.raises(ConfigError, match="text_config"):
        GDNConfig.from_dict({**FLAT, "model_type": "qwen3_5", "text_config": nested})


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", "\x00", "[" * 100_000])
def test_unreadable_config_file_is_named(text, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=str(file)):
        GDNConfig.from_json(tmp_path)


def test_config_that_is_not_utf8_is_named(tmp_path):
    file = tmp_path / "config.json"
    file.write_bytes(b'{"model_type": "\xff"}')
    with pytest.raises(ConfigError, match=str(file)):
        GDNConfig.from_json(file)


def test_absent_config_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="config.json"):
        GDNConfig.from_json(tmp_path)


def test_constructor_checks_like_the_file(config):
    with pytest.raises(ConfigError, match="hidden_size"):
        GDNConfig(**{**vars(config), "hidden_size": 0})
    with pytest.raises(ConfigError, match="layer_types"):
        GDNConfig(**{**vars(config), "layer_types": "linear_attention"})


@pytest.mark.parametrize("layer_idx", [3, 4, -1, True, 1.0, "0", None])
def test_layer_that_is_no_gdn_layer_is_refused_with_those_that_are(config, layer_idx):
    with pytest.raises(ConfigError, match="layer"):
        config.check_layer(layer_idx)


def test_attention_layer_says_which_layers_are_gdn(config):
    with pytest.raises(ConfigError, match=r"layer 3 is a full_attention .*\[0, 1, 2\]"):
        config.check_layer(3)


def test_known_shapes_are_those_of_the_released_models():
    geometry = {
        name: (c.hidden_size, c.num_k_heads, c.num_v_heads, c.num_layers, len(c.gdn_layers))
        for name, c in KNOWN_SHAPES.items()
    }
    assert geometry == {
        "0.8b": (1024, 16, 16, 24, 18),
        "2b": (2048, 16, 16, 24, 18),
        "4b": (2560, 16, 32, 32, 24),
        "9b": (4096, 16, 32, 32, 24),
        "27b": (5120, 16, 48, 64, 48),
    }
    assert {"2b", "4b"} == UNVERIFIED_SHAPES
    assert all(
        (c.head_k_dim, c.head_v_dim, c.conv_dim - c.value_dim) == (128, 128, 4096)
        for c in KNOWN_SHAPES.values()
    )
