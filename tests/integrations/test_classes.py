"""What the integration assumes of transformers, so that a new release that differs is seen."""

import ast
import importlib
import inspect
import re
import textwrap

import pytest
from torch import nn
from transformers.cache_utils import LinearAttentionLayer
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

from torch_mps_fusion.integrations.transformers import CLASSES, gdn_layers

MODULES = {
    "Qwen3_5MoeGatedDeltaNet": "qwen3_5_moe",
    "Qwen4ExpTextGatedDeltaNet": "qwen4_exp",
    "LaraMiniGatedDeltaNet": "lara_mini",
}


def forward_of(cls):
    """The statements of a class's forward, without comments and layout."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(cls.forward))))
    return re.sub(r"keywords=\[\]", "", ast.dump(tree.body[0]))


def test_each_class_has_a_test():
    assert set(CLASSES) == {"Qwen3_5GatedDeltaNet", "Qwen3NextGatedDeltaNet", *MODULES}


@pytest.mark.parametrize("name", MODULES)
def test_the_forward_is_that_of_qwen3_5(name):
    """These classes are fused because their forward is, statement for statement, the same."""
    where = f"transformers.models.{MODULES[name]}"
    try:
        module = importlib.import_module(f"{where}.modeling_{MODULES[name]}")
    except ModuleNotFoundError:
        pytest.skip(f"this transformers has no {where}")
    assert forward_of(getattr(module, name)) == forward_of(Qwen3_5GatedDeltaNet)


def test_what_is_touched_of_a_cache_layer():
    layer = LinearAttentionLayer()
    assert layer.conv_states == {0: None} and layer.recurrent_states == {0: None}
    assert layer.has_previous_state == {0: False} and layer.record_past is False


def test_a_subclass_is_not_taken_for_its_base():
    """It may have another forward."""

    class Mine(Qwen3_5GatedDeltaNet):
        def __init__(self):
            nn.Module.__init__(self)

    assert not list(gdn_layers(nn.ModuleList([Mine()])))
