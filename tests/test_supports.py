"""``supports`` answers exactly what runs."""

import itertools

import pytest
import torch
from cases import Shape, make_hidden, make_layer
from compare import run_layer

from torch_mps_fusion import VARIANTS, supports

DIMS = (1, 8, 16, 32, 48, 64, 96, 128, 256, 512)


def answer(shape: Shape, variant: str, device="cpu", dtype=torch.float32):
    return supports(
        variant,
        device=device,
        dtype=dtype,
        num_k_heads=shape.num_k_heads,
        num_v_heads=shape.num_v_heads,
        head_k_dim=shape.head_k_dim,
        head_v_dim=shape.head_v_dim,
        conv_width=shape.conv_width,
        head_map=shape.head_map,
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("width", (1, 2, 3, 4, 5))
def test_B2_the_answer_equals_what_runs(width, variant):
    for dk, dv in itertools.product(DIMS, DIMS):
        shape = Shape(8, 1, 1, dk, dv, conv_width=width)
        found = answer(shape, variant)
        layer, hidden = make_layer(shape, torch.float32), make_hidden(shape, 1, 1, torch.float32)
        if found:
            assert found.reason == ""
            run_layer(layer, hidden, variant=variant)
        else:
            with pytest.raises(NotImplementedError) as refusal:
                run_layer(layer, hidden, variant=variant)
            assert found.reason in str(refusal.value)


def test_reasons_name_what_is_not_supported():
    shape = Shape()
    assert "runs on cpu only" in answer(shape, "native", device="mps").reason
    assert "float64" in answer(shape, "stock", dtype=torch.float64).reason
    assert "head_k_dim 48" in answer(Shape(head_k_dim=48), "native").reason
    assert "width 5" in answer(Shape(conv_width=5), "native").reason
    assert "multiple" in answer(Shape(num_k_heads=3), "stock").reason
    assert "xpu" in answer(shape, "stock", device="xpu").reason
    assert answer(shape, "stock", device="mps") and answer(shape, "auto", device="cuda:1")


def test_unknown_names_are_errors():
    with pytest.raises(ValueError, match="variant: got 'fast'"):
        answer(Shape(), "fast")
    with pytest.raises(ValueError, match="head_map: got 'x'"):
        answer(Shape(head_map="x"), "stock")
