"""Bad input: an error with the argument, what came and what is accepted; no state changes."""

import pytest
import torch
from cases import SMALL, make_hidden, make_layer, make_states
from compare import run_layer, run_layer_in_place

F32, BF16, F64 = torch.float32, torch.bfloat16, torch.float64


def call(replaced: dict, in_place: bool):
    layer = make_layer(SMALL, F32, input_norm=True)
    arguments = {
        "hidden": make_hidden(SMALL, 2, 5, F32),
        "conv_state": make_states(SMALL, 2, F32)[0],
        "recurrent_state": make_states(SMALL, 2, F32)[1],
        "mask": None,
    }
    keywords = {}
    for name, value in replaced.items():
        if name in arguments:
            arguments[name] = value
        elif hasattr(layer, name):
            setattr(layer, name, value)
        else:
            keywords[name] = value
    states = (arguments["conv_state"], arguments["recurrent_state"])
    run = run_layer_in_place if in_place else run_layer
    before = [None if s is None else s.clone() for s in states]
    try:
        run(layer, arguments["hidden"], states, arguments["mask"], **keywords)
    finally:
        for state, copy in zip(states, before, strict=True):
            assert state is None or torch.equal(state, copy), "a state changed"


def zeros(*size, dtype=F32):
    return torch.zeros(*size, dtype=dtype)


CASES = [
    ("hidden", zeros(2, 5, 96, dtype=F64), r"hidden: got dtype float64; accepted: dtype float32"),
    ("hidden", zeros(2, 96), r"hidden: got shape \[2, 96\]; accepted: \(B, T, hidden\)"),
    ("hidden", zeros(2, 5, 95), r"in_proj\[0\]: got shape \[256, 96\]; .* = \[256, 95\]"),
    ("hidden", zeros(2, 5, 96, dtype=BF16), r"in_proj\[0\]: got dtype float32; .* bfloat16"),
    ("hidden", zeros(2, 5, 96).to_sparse(), r"hidden: got layout Sparse"),
    ("in_proj", [zeros(256, 96)] * 3, r"in_proj: got a list of 3 tensors; accepted: one tensor"),
    ("in_proj", [], r"in_proj: got a list of 0 tensors"),
    ("in_proj", [zeros(392, 95)], r"in_proj\[0\]: got shape \[392, 95\]; .* = \[392, 96\]"),
    ("in_proj", [zeros(256, 96), zeros(128, 96), zeros(4, 96), zeros(3, 96)],
     r"in_proj\[3\]: got shape \[3, 96\]"),
    ("out_proj", [zeros(96, 128), zeros(1)], r"out_proj: got a list of 2 tensors"),
    ("out_proj", [zeros(128, 96)], r"out_proj\[0\]: got shape \[128, 96\]; .* = \[96, 128\]"),
    ("conv_weight", zeros(256, 1, 4), r"conv_weight: got shape \[256, 1, 4\]; .*\(conv_dim, K\)"),
    ("conv_weight", zeros(255, 4), r"conv_weight: got shape \[255, 4\]; .* = \[256, 4\]"),
    ("conv_weight", zeros(256, 0), r"conv_weight: .* K >= 1"),
    ("conv_weight", zeros(256, 4, dtype=BF16), r"conv_weight: got dtype bfloat16"),
    ("A_log", zeros(3), r"A_log: got shape \[3\]; accepted: \(Hv\) = \[4\]"),
    ("A_log", zeros(4, dtype=BF16), r"A_log: got dtype bfloat16; accepted: dtype float32"),
    ("dt_bias", zeros(4, 1), r"dt_bias: got shape \[4, 1\]"),
    ("norm_weight", zeros(31), r"norm_weight: got shape \[31\]; accepted: \(Dv\) = \[32\]"),
    ("input_norm_weight", zeros(95), r"input_norm_weight: got shape \[95\]; .* = \[96\]"),
    ("conv_state", zeros(2, 256, 2), r"conv_state: got shape \[2, 256, 2\]; .* W >= 3\]"),
    ("conv_state", zeros(1, 256, 4), r"conv_state: got shape \[1, 256, 4\]"),
    ("conv_state", zeros(2, 256, 4, dtype=BF16), r"conv_state: got dtype bfloat16"),
    ("recurrent_state", zeros(2, 4, 32, 31), r"recurrent_state: got shape \[2, 4, 32, 31\]"),
    ("recurrent_state", zeros(2, 4, 32, 32, dtype=BF16),
     r"recurrent_state: got dtype bfloat16; accepted: dtype float32"),
    ("recurrent_state", zeros(2, 4, 32, 64)[..., ::2],
     r"recurrent_state: got strides .*; accepted: a state whose Dk or Dv elements are contiguous"),
    ("mask", zeros(2, 5), r"mask: got dtype float32; accepted: dtype bool"),
    ("mask", zeros(2, 4, dtype=torch.bool), r"mask: got shape \[2, 4\]; accepted: .* = \[2, 5\]"),
    ("num_k_heads", 0, r"num_k_heads: got 0; accepted: a positive integer"),
    ("num_k_heads", 3, r"num_v_heads: got 4; accepted: a multiple of the 3 key heads"),
    ("head_v_dim", -1, r"head_v_dim: got -1"),
    ("head_map", "blok", r"head_map: got 'blok'; accepted: 'block' .* 'tiled'"),
    ("variant", "fast", r"variant: got 'fast'; accepted: auto, stock, native, packed"),
    ("weight_format", "packed", r"weight_format: got 'packed'; accepted: 'rows'"),
    ("eps", float("nan"), r"eps: got nan"),
]  # fmt: skip


@pytest.mark.parametrize("in_place", (False, True))
@pytest.mark.parametrize("name, value, message", CASES, ids=lambda v: v if type(v) is str else "")
def test_bad_argument_is_named(name, value, message, in_place):
    with pytest.raises(ValueError, match=message) as caught:
        call({name: value}, in_place)
    op = "gdn_layer_" if in_place else "gdn_layer"
    assert str(caught.value).startswith(f"mps_fusion::{op}: ")


@pytest.mark.parametrize("missing, given", [("conv_state", "recurrent_state"),
                                            ("recurrent_state", "conv_state")])  # fmt: skip
def test_one_state_without_the_other(missing, given):
    with pytest.raises(ValueError, match=f"{missing}: got None; .*both states or neither"):
        call({missing: None}, in_place=False)


@pytest.mark.parametrize("variant", ("packed", "core", "hybrid", "mega"))
def test_rows_do_not_serve_the_shader_variants(variant):
    message = f"variant '{variant}': weight_format 'rows' is not accepted on cpu; accepted: 'tiles"
    with pytest.raises(NotImplementedError, match=message):
        call({"variant": variant}, in_place=True)


def test_tensors_on_different_devices():
    with pytest.raises(ValueError, match="norm_weight: got device meta; accepted: device cpu"):
        call({"norm_weight": torch.zeros(32, device="meta")}, in_place=False)


def test_F2_unknown_keywords_are_rejected():
    with pytest.raises(RuntimeError, match="Unknown keyword argument 'cu_seqlens'"):
        call({"cu_seqlens": torch.tensor([0, 5])}, in_place=False)


def test_C3_head_map_has_no_default():
    layer = make_layer(SMALL, F32)
    del layer.keywords["head_map"]
    with pytest.raises(RuntimeError, match="head_map"):
        run_layer(layer, make_hidden(SMALL, 1, 2, F32))


def test_a_gradient_is_refused_not_dropped():
    layer, hidden = make_layer(SMALL, F32), make_hidden(SMALL, 1, 2, F32).requires_grad_()
    with pytest.raises(ValueError, match="hidden: got a tensor that requires grad"):
        run_layer(layer, hidden)
    with torch.no_grad():
        assert not run_layer(layer, hidden)[0].requires_grad


RULE_CASES = [
    (
        "q",
        zeros(2, 5, 3, 32),
        r"num_v_heads: got 4; accepted: a multiple of the 3 key heads|k: got",
    ),
    ("k", zeros(2, 5, 2, 31), r"k: got shape \[2, 5, 2, 31\]"),
    ("v", zeros(2, 4, 4, 32), r"v: got shape \[2, 4, 4, 32\]"),
    ("v", zeros(2, 5, 4, 32, dtype=BF16), r"v: got dtype bfloat16; accepted: dtype float32"),
    ("g", zeros(2, 5, 4, dtype=BF16), r"g: got dtype bfloat16; accepted: dtype float32"),
    ("beta", zeros(2, 5, 4, 1), r"beta: got shape \[2, 5, 4, 1\]"),
    ("beta", zeros(2, 5, 4, dtype=F64), r"beta: got dtype float64"),
    ("state", zeros(2, 4, 32, 32, dtype=BF16), r"state: got dtype bfloat16"),
]


@pytest.mark.parametrize("name, value, message", RULE_CASES)
def test_bad_argument_of_the_rule_is_named(name, value, message):
    arguments = {
        "q": zeros(2, 5, 2, 32), "k": zeros(2, 5, 2, 32), "v": zeros(2, 5, 4, 32),
        "g": zeros(2, 5, 4), "beta": zeros(2, 5, 4), "state": zeros(2, 4, 32, 32),
    }  # fmt: skip
    arguments[name] = value
    for op in (torch.ops.mps_fusion.gated_delta_rule, torch.ops.mps_fusion.gated_delta_rule_):
        with pytest.raises(ValueError, match=message):
            op(**arguments, head_map="block")


CONV_CASES = [
    ("x", zeros(2, 5), r"x: got shape \[2, 5\]; accepted: \(B, C, T\)"),
    ("weight", zeros(7, 4), r"weight: got shape \[7, 4\]; accepted: \(C, K\) = \[8, 4\]"),
    ("weight", zeros(8, 4, dtype=BF16), r"weight: got dtype bfloat16"),
    ("state", zeros(2, 8, 2), r"state: got shape \[2, 8, 2\]; .* W >= 3"),
    ("activation", "relu", r"activation: got 'relu'; accepted: None, 'silu' or 'swish'"),
    ("mask", zeros(2, 5, dtype=torch.bool), r"mask: got shape"),
]


@pytest.mark.parametrize("name, value, message", CONV_CASES)
def test_bad_argument_of_the_convolution_is_named(name, value, message):
    arguments = {"x": zeros(2, 8, 6), "weight": zeros(8, 4), "state": zeros(2, 8, 4)}
    arguments[name] = value
    for op in (torch.ops.mps_fusion.causal_conv1d, torch.ops.mps_fusion.causal_conv1d_):
        with pytest.raises(ValueError, match=message):
            op(**arguments)
