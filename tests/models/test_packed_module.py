"""Packing by the module: lazy, one copy, and never a stale or overwritten weight."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from peak import peak_bytes

from torch_mps_fusion import packing
from torch_mps_fusion.models import KNOWN_SHAPES, GatedDeltaNet, write_model
from torch_mps_fusion.models.names import OUT_PROJECTION, SPLIT_PROJECTIONS
from torch_mps_fusion.models.operands import OPERANDS, shared_buffer

FORMATS = tuple(packing.FORMATS)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture
def config(config):
    """A hidden size that goes by blocks of 32."""
    return replace(config, hidden_size=64)


@pytest.fixture(params=DTYPES, ids=str)
def layer(config, request):
    return GatedDeltaNet.from_config(config, dtype=request.param)


def rows_of(layer):
    return {n: layer.get_parameter(n).clone() for n in (*SPLIT_PROJECTIONS, OUT_PROJECTION)}


def expected(rows, weight_format):
    return [packing.pack([rows[n] for n in names], weight_format) for names in OPERANDS.values()]


def packed(layer, weight_format):
    return [part[0].data for part in layer.projections(weight_format)]


def all_equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("weight_format", FORMATS)
def test_packed_operands_and_the_way_back(layer, weight_format):
    rows = rows_of(layer)
    assert all_equal(packed(layer, weight_format), expected(rows, weight_format))
    assert layer.weight_format == weight_format
    assert all_equal(rows_of(layer).values(), rows.values())
    assert layer.weight_format == "rows"


def test_one_copy_remains_in_the_same_memory(layer):
    pointers = [layer.get_parameter(n).data_ptr() for n in (SPLIT_PROJECTIONS[0], OUT_PROJECTION)]
    assert [t.data_ptr() for t in packed(layer, FORMATS[0])] == pointers
    held = sum(p.untyped_storage().nbytes() for p in layer.parameters())
    layer.unpack_()
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage() for p in layer.parameters()}
    assert held == sum(s.nbytes() for s in storages.values())
    assert layer.get_parameter(OUT_PROJECTION).data_ptr() == pointers[1]


def test_one_format_to_another(layer):
    rows = rows_of(layer)
    for weight_format in (*FORMATS, FORMATS[0]):
        assert all_equal(packed(layer, weight_format), expected(rows, weight_format))


def test_a_held_weight_stays_whole_and_its_edits_are_seen(layer):
    rows = rows_of(layer)
    held = layer.in_proj_z.weight
    first = packed(layer, FORMATS[0])
    assert layer.weight_format == "rows" and torch.equal(held, rows["in_proj_z.weight"])
    assert packed(layer, FORMATS[0])[0] is not None and all_equal(packed(layer, FORMATS[0]), first)
    held.mul_(2)
    rows["in_proj_z.weight"] *= 2
    assert all_equal(packed(layer, FORMATS[0]), expected(rows, FORMATS[0]))


def test_a_kept_state_dict_stays_whole(layer):
    rows = rows_of(layer)
    kept = layer.state_dict()
    packed(layer, FORMATS[0])
    assert all(torch.equal(kept[name], value) for name, value in rows.items())


def test_in_place_edit_between_calls(layer):
    packed(layer, FORMATS[0])
    layer.out_proj.weight.mul_(-1)
    rows = rows_of(layer)
    assert all_equal(packed(layer, FORMATS[0]), expected(rows, FORMATS[0]))


def test_L1_state_dict_and_load_state_dict_of_a_packed_layer(layer, config):
    rows = rows_of(layer)
    packed(layer, FORMATS[0])
    saved = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    assert all(torch.equal(saved[name], value) for name, value in rows.items())
    other = GatedDeltaNet.from_config(config, dtype=layer.dtype, seed=1)
    packed(other, FORMATS[0])
    other.load_state_dict(saved)
    assert all_equal(packed(other, FORMATS[0]), expected(rows, FORMATS[0]))


def test_L1_parent_modules_see_rows(layer):
    rows = rows_of(layer)
    parent = torch.nn.ModuleDict({"mixer": layer})
    packed(layer, FORMATS[0])
    saved = parent.state_dict()
    assert all(torch.equal(saved["mixer." + name], value) for name, value in rows.items())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_L1_to_another_dtype(layer, dtype):
    rows = rows_of(layer)
    packed(layer, FORMATS[0])
    layer.to(dtype)
    rows = {name: value.to(dtype) for name, value in rows.items()}
    assert all_equal(packed(layer, FORMATS[0]), expected(rows, FORMATS[0]))
    layer.unpack_()
    for names in OPERANDS.values():
        assert shared_buffer([layer.get_parameter(n) for n in names]) is not None


def test_L1_deepcopy_and_pickle_of_a_packed_layer(layer):
    rows = rows_of(layer)
    packed(layer, FORMATS[0])
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        layer.out_proj.weight.zero_()
        assert all_equal(packed(other, FORMATS[0]), expected(rows, FORMATS[0]))
        with torch.no_grad():
            layer.out_proj.weight.copy_(rows[OUT_PROJECTION])
        packed(layer, FORMATS[0])


def test_separate_weights_are_joined(layer, config):
    weights = {name: p.clone() for name, p in layer.state_dict().items()}
    other = GatedDeltaNet(config, weights)
    rows = rows_of(other)
    del weights
    assert all_equal(packed(other, FORMATS[0]), expected(rows, FORMATS[0]))


def test_a_loaded_layer_has_shared_buffers(config, tmp_path):
    """So that it can be packed where it is."""
    layer = GatedDeltaNet.from_safetensors(write_model(tmp_path / "m", config), 0)
    for names in OPERANDS.values():
        assert shared_buffer([layer.get_parameter(n) for n in names]) is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_packing_takes_a_tenth_of_the_weights_at_most(dtype):
    """Both ways, at the smallest model's shape, where the constant part weighs most."""
    layer = GatedDeltaNet.from_config(KNOWN_SHAPES["0.8b"], dtype=dtype)
    weights = sum(p.nbytes for p in layer.parameters())
    assert 0 < peak_bytes(lambda: layer.pack_(FORMATS[0])) <= 0.1 * weights
    assert layer.weight_format == FORMATS[0]
    assert 0 < peak_bytes(layer.unpack_) <= 0.1 * weights


def test_a_hidden_size_that_cannot_be_packed_is_refused_and_the_rows_stay(config):
    layer = GatedDeltaNet.from_config(replace(config, hidden_size=40))
    rows = rows_of(layer)
    with pytest.raises(ValueError, match="40 input features"):
        layer.pack_(FORMATS[0])
    assert layer.weight_format == "rows"
    assert all_equal(rows_of(layer).values(), rows.values())
