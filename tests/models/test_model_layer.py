"""GatedDeltaNet as a module: one call of the op, states, copies, state_dict, dtypes, gradients."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from torch_mps_fusion.models import GatedDeltaNet
from torch_mps_fusion.models.names import SPLIT_PROJECTIONS, parameter_shapes
from torch_mps_fusion.models.random_weights import random_weights
from torch_mps_fusion.tolerances import error, tolerance


def assert_close(got: torch.Tensor, expected: torch.Tensor, name: str = "output") -> None:
    assert error(got, expected) <= tolerance(name, torch.float32).rms


@pytest.fixture(params=[False, True], ids=["mixer", "with_input_norm"])
def layer(config, request) -> GatedDeltaNet:
    return GatedDeltaNet.from_config(config, with_input_norm=request.param)


@pytest.fixture
def x(config) -> torch.Tensor:
    return torch.randn(2, 7, config.hidden_size, generator=torch.Generator().manual_seed(0))


def test_parameters_are_those_of_the_checkpoint(layer, config):
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    norm = shapes.pop("input_norm_weight", None)
    assert norm == ((config.hidden_size,) if layer.input_norm_weight is not None else None)
    assert shapes == parameter_shapes(config)
    assert not any(p.requires_grad for p in layer.parameters())


def test_forward_is_the_op_on_the_parameters(layer, config, x):
    weights = dict(layer.named_parameters())
    expected, conv, recurrent = torch.ops.mps_fusion.gdn_layer(
        x,
        [weights[name] for name in SPLIT_PROJECTIONS],
        weights["conv1d.weight"][:, 0],
        weights["A_log"],
        weights["dt_bias"],
        weights["norm.weight"],
        [weights["out_proj.weight"]],
        weights.get("input_norm_weight"),
        num_k_heads=2,
        num_v_heads=6,
        head_k_dim=32,
        head_v_dim=64,
        head_map="block",
        eps=config.rms_norm_eps,
    )
    assert torch.equal(layer(x), expected)
    state = layer.new_state(2)
    assert torch.equal(layer(x, state), expected)
    assert torch.equal(state.conv, conv)
    assert torch.equal(state.recurrent, recurrent)


def test_geometry_eps_and_variant_reach_the_op(layer, x, monkeypatch):
    """None of the op's keywords is left to its default."""
    seen = {}

    def record(*args, **keywords):
        seen.update(keywords)
        return (args[0], None, None)

    monkeypatch.setattr(torch.ops.mps_fusion, "gdn_layer", record)
    mask = torch.ones(2, 7, dtype=torch.bool)
    layer(x, mask=mask, variant="stock")
    assert seen.pop("mask") is mask
    assert seen == {
        "num_k_heads": 2,
        "num_v_heads": 6,
        "head_k_dim": 32,
        "head_v_dim": 64,
        "head_map": "block",
        "weight_format": "rows",
        "eps": 1e-6,
        "variant": "stock",
    }


def test_state_is_advanced_in_place_and_only_when_given(layer, x):
    state = layer.new_state(2)
    pointers = state.conv.data_ptr(), state.recurrent.data_ptr()
    first = layer(x, state)
    assert (state.conv.data_ptr(), state.recurrent.data_ptr()) == pointers
    assert state.recurrent.any()
    assert not torch.equal(layer(x, state), first)
    assert torch.equal(layer(x), first)
    state.reset()
    assert torch.equal(layer(x, state), first)


@pytest.mark.parametrize("split", range(1, 7))
def test_E1_split_sequence_equals_one_call(layer, x, split):
    whole, state = layer.new_state(2), layer.new_state(2)
    expected = layer(x, whole)
    got = torch.cat((layer(x[:, :split], state), layer(x[:, split:], state)), dim=1)
    assert_close(got, expected)
    assert_close(state.recurrent, whole.recurrent, "recurrent_state")
    assert_close(state.conv, whole.conv, "conv_state")


def test_D3_left_padding_does_not_matter(layer, x):
    expected = layer(x)
    for pads in range(1, 6):
        padded = torch.cat((torch.full_like(x[:, :pads], 1e4), x), dim=1)
        mask = torch.arange(7 + pads).expand(2, -1) >= pads
        got = layer(padded, mask=mask)[:, pads:]
        assert_close(got, expected)


def test_reordered_state_continues_the_chosen_sequences(layer, x):
    state = layer.new_state(2)
    layer(x, state)
    token = x[:, :1]
    beams = state.reorder(torch.tensor([1, 1, 0]))
    expected = layer(token[[1, 1, 0]], beams)
    plain = layer(token, state)
    assert_close(expected, plain[[1, 1, 0]])


@pytest.mark.parametrize("with_state", [False, True], ids=["no_state", "state"])
def test_compiles_to_one_graph(layer, x, with_state):
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    states = [layer.new_state(2) if with_state else None for _ in range(2)]
    for _ in range(2):
        assert torch.equal(compiled(x, states[0]), layer(x, states[1]))
    if with_state:
        assert torch.equal(states[0].conv, states[1].conv)
        assert torch.equal(states[0].recurrent, states[1].recurrent)


@pytest.mark.parametrize("state", [(1, 2), torch.zeros(1), "new"])
def test_state_of_another_type_is_refused(layer, x, state):
    with pytest.raises(TypeError, match="state must be a GDNState"):
        layer(x, state)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"x": torch.zeros(2, 7, 41)}, "hidden|in_proj"),
        ({"x": torch.zeros(2, 7, 40, dtype=torch.float64)}, "hidden"),
        ({"mask": torch.ones(2, 6, dtype=torch.bool)}, "mask"),
        ({"mask": torch.ones(2, 7)}, "mask"),
        ({"variant": "fast"}, "variant"),
    ],
)
def test_bad_argument_is_refused_and_the_state_is_untouched(layer, x, argument, message):
    state = layer.new_state(2)
    layer(x, state)
    before = state.clone()
    with pytest.raises(ValueError, match=message):
        layer(**({"x": x, "state": state} | argument))
    assert torch.equal(state.conv, before.conv)
    assert torch.equal(state.recurrent, before.recurrent)


def test_state_of_another_batch_is_refused(layer, x):
    with pytest.raises(ValueError, match="state"):
        layer(x, layer.new_state(3))


def test_state_of_another_dtype_is_refused(layer, x):
    with pytest.raises(ValueError, match="conv_state"):
        layer(x, layer.new_state(2).to(dtype=torch.bfloat16))


def test_a_gradient_flows_without_a_state_and_is_refused_with_one(layer, x):
    layer.out_proj.weight.requires_grad_()
    layer(x.requires_grad_()).sum().backward()
    assert x.grad.abs().sum() > 0 and layer.out_proj.weight.grad.abs().sum() > 0
    for given in (x, x.detach()):  # the op in place has no gradient
        with pytest.raises(ValueError, match="grad"):
            layer(given, layer.new_state(2))
    with torch.no_grad():
        layer(x, layer.new_state(2))


def test_L1_state_dict_round_trip(layer, config, x):
    other = GatedDeltaNet.from_config(
        config, with_input_norm=layer.input_norm_weight is not None, seed=1
    )
    assert not torch.equal(other(x), layer(x))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))


def test_L1_state_dict_is_strict(layer, config):
    state = layer.state_dict()
    with pytest.raises(RuntimeError, match="Missing.*in_proj_z.weight"):
        layer.load_state_dict({n: t for n, t in state.items() if n != "in_proj_z.weight"})
    with pytest.raises(RuntimeError, match="Unexpected.*in_proj_qkvz.weight"):
        layer.load_state_dict({**state, "in_proj_qkvz.weight": torch.zeros(1)})
    with pytest.raises(RuntimeError, match="size mismatch.*A_log"):
        layer.load_state_dict({**state, "A_log": torch.zeros(7)})
    mixer = GatedDeltaNet.from_config(config)
    norm = torch.zeros(config.hidden_size)
    with pytest.raises(RuntimeError, match="Unexpected.*input_norm_weight"):
        mixer.load_state_dict({**mixer.state_dict(), "input_norm_weight": norm})


def test_L1_weights_changed_in_place_take_effect(layer, x):
    before = layer(x)
    layer.out_proj.weight.zero_()
    after = layer(x)
    assert not torch.equal(before, after)
    assert torch.equal(after, torch.zeros_like(x) if layer.input_norm_weight is None else x)


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))],
    ids=["deepcopy", "pickle"],
)
def test_L1_copies_are_equal_and_independent(layer, x, duplicate):
    expected = layer(x)
    other = duplicate(layer)
    assert torch.equal(other(x), expected)
    assert other.config == layer.config
    for parameter in other.parameters():
        parameter.zero_()
    assert torch.equal(layer(x), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_L1_to_moves_everything_together(layer, x, dtype):
    layer.to(dtype)
    assert {p.dtype for p in layer.parameters()} == {dtype}
    assert (layer.dtype, layer.new_state(2).dtype) == (dtype, dtype)
    assert layer(x.to(dtype), layer.new_state(2)).dtype == dtype
    layer.to("meta")
    assert layer.new_state(1).device.type == "meta"
    assert layer(x.to("meta", dtype)).shape == x.shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_layers_may_keep_float32_decays(config, x, dtype):
    layer = GatedDeltaNet.from_config(config, dtype=dtype)
    assert (layer.A_log.dtype, layer.dt_bias.dtype) == (torch.float32, torch.float32)
    assert layer(x.to(dtype)).isfinite().all()


def test_constructor_takes_the_tensors_without_a_copy(config):
    weights = random_weights(config, dtype=torch.bfloat16, seed=0)
    layer = GatedDeltaNet(config, weights)
    for name, parameter in layer.named_parameters():
        assert parameter.data_ptr() == weights[name].data_ptr(), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"A_log": None}, "lack.*A_log"),
        ({"conv1d.bias": torch.zeros(1)}, "unknown.*conv1d.bias"),
        ({"in_proj_z.weight": torch.zeros(384, 41)}, r"in_proj_z.weight has shape \[384, 41\]"),
        ({"in_proj_b.weight": torch.zeros(6, 40).half()}, "in_proj_b.weight is torch.float16"),
        ({"A_log": torch.zeros(6).half()}, "A_log is torch.float16"),
        ({"dt_bias": torch.zeros(6, device="meta")}, "dt_bias is on meta"),
        ({"out_proj.weight": torch.zeros(40, 384).double()}, "out_proj.weight is torch.float64"),
        ({"input_norm_weight": torch.zeros(41)}, "input_norm_weight has shape"),
    ],
)
def test_constructor_refuses_incomplete_or_wrong_weights(config, change, message):
    weights = random_weights(config, dtype=torch.float32, seed=0) | change
    weights = {name: tensor for name, tensor in weights.items() if tensor is not None}
    with pytest.raises(ValueError, match=message):
        GatedDeltaNet(config, weights)


def test_seed_fixes_the_weights(config):
    def weights(seed, dtype):
        return GatedDeltaNet.from_config(config, seed=seed, dtype=dtype).state_dict()

    first, again = weights(3, torch.float32), weights(3, torch.bfloat16)
    other = weights(4, torch.float32)
    for name, tensor in first.items():
        assert torch.equal(tensor.to(again[name].dtype), again[name]), name
        assert not torch.equal(tensor, other[name]), name


def test_repr_shows_geometry(layer):
    assert "value heads 6 x 64" in repr(layer)
