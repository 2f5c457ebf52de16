"""The fused layer through the package ``kernels``, which is transformers' own route."""

import inspect
import warnings

import pytest
import torch
from small_models import (
    FAMILIES,
    TEXT,
    assert_close_gradients,
    generate,
    gradients,
    layer_of,
    make,
)
from torch import nn
from transformers.integrations import hub_kernels
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

from torch_mps_fusion.integrations import transformers as integration
from torch_mps_fusion.integrations.gdn_forward import layer_class

needs_kernels = pytest.mark.skipif(
    not hub_kernels.is_kernels_available(),
    reason="transformers finds no version of kernels that it accepts",
)
HOOKED = [name for name in FAMILIES if name != "qwen3_next"]
X = torch.randn(2, 5, TEXT["hidden_size"], generator=torch.Generator().manual_seed(5))


def test_the_class_is_what_kernels_accepts():
    """Stateless, with nothing but the two flags, and the forward's arguments of the same kinds."""
    layer = layer_class("auto")
    assert layer.__init__ is nn.Module.__init__
    members = {name for name, _ in inspect.getmembers(layer)}
    base = {name for name, _ in inspect.getmembers(nn.Module)}
    assert members - base == {"can_torch_compile", "has_backward"}
    kinds = [
        [p.kind for p in inspect.signature(cls.forward).parameters.values()]
        for cls in (layer, Qwen3_5GatedDeltaNet)
    ]
    assert kinds[0] == kinds[1]


@pytest.fixture
def mapping():
    """Our mapping, for this test only; other layers keep their own forward on the CPU."""
    import kernels

    with kernels.use_kernel_mapping(integration.kernel_mapping(), inherit_mapping=False):
        yield


@needs_kernels
@pytest.mark.parametrize("family", HOOKED)
@torch.no_grad()
def test_set_use_kernels(family, mapping):
    model = make(family)
    layer = layer_of(model)
    expected, tokens = layer(X), generate(model).sequences
    model.set_use_kernels(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", integration.FallbackWarning)
        found = layer(X)
        assert torch.equal(generate(model).sequences, tokens)
    assert not torch.equal(found, expected) and torch.allclose(found, expected, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize("family", HOOKED)
def test_training_keeps_the_original(family, mapping):
    """The mapping is for inference: in training mode there is no layer of ours, and no warning."""
    model = make(family).train()
    expected = gradients(model, 9)
    model.set_use_kernels(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", integration.FallbackWarning)
        found = gradients(model, 9)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@needs_kernels
@pytest.mark.parametrize("family", HOOKED)
def test_a_training_step_after_inference(family, mapping):
    """Put in for inference, then trained: whichever forward runs, the gradients are right."""
    model = make(family)
    expected = gradients(model, 9)
    model.eval().set_use_kernels(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", integration.FallbackWarning)
        generate(model)
        assert_close_gradients(gradients(model, 9), expected)


@needs_kernels
def test_unknown_variant():
    with pytest.raises(ValueError, match="variant: got 'fast'"):
        integration.kernel_mapping("fast")
