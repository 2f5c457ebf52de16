"""``supports`` answers exactly what runs."""

import itertools
from dataclasses import replace

import pytest
import torch
from cases import Shape, make_hidden, make_layer, pack_layer
from compare import assert_close, reference_layer, run_layer

from torch_mps_fusion import VARIANTS, supports

SHADERS = ("packed", "core", "hybrid", "mega")
DIMS = (1, 8, 16, 32, 48, 64, 96, 128, 256, 512)


def answer(shape: Shape, variant: str, device="cpu", dtype=torch.float32, **keywords):
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
        **keywords,
    )


def check(found, call):
    """The call runs if the answer says so, else it is refused for the same reason."""
    if found:
        assert found.reason == ""
        call()
    else:
        with pytest.raises(NotImplementedError) as refusal:
            call()
        assert found.reason and found.reason in str(refusal.value)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("width", (1, 2, 3, 4, 5))
def test_B2_the_answer_equals_what_runs(width, variant):
    for dk, dv in itertools.product(DIMS, DIMS):
        shape = Shape(8, 1, 1, dk, dv, conv_width=width)
        found = answer(shape, variant)
        layer, hidden = make_layer(shape, torch.float32), make_hidden(shape, 1, 1, torch.float32)
        check(found, lambda layer=layer, x=hidden: run_layer(layer, x, variant=variant))


@pytest.mark.parametrize("weight_format", ("rows", "tiles16-apple", "tiles16-nvidia"))
@pytest.mark.parametrize("variant", VARIANTS)
def test_formats(variant, weight_format):
    """Every pair of variant and format: what the query says, the op does."""
    for hidden in (32, 64):
        shape = Shape(hidden, 1, 1, 32, 32)
        layer, x = make_layer(shape, torch.float32), make_hidden(shape, 1, 1, torch.float32)
        if weight_format != "rows":
            layer = pack_layer(layer, weight_format.removeprefix("tiles16-"))
        found = answer(shape, variant, weight_format=weight_format, hidden_size=hidden)
        shaders = variant in SHADERS and weight_format == "tiles16-apple"
        rows = variant in ("auto", "stock", "native") and weight_format == "rows"
        assert bool(found) == (shaders or rows)
        check(found, lambda layer=layer, x=x: run_layer(layer, x, variant=variant))


@pytest.mark.parametrize("variant", SHADERS)
@pytest.mark.parametrize("width", (1, 2, 3, 4, 5))
def test_B2_shader_dims(width, variant):
    """What is supported are the dims that the shaders list (test_B2_they_run runs some of them).
    What is not is refused by the op."""
    keywords = {"variant": variant, "weight_format": "tiles16-apple"}
    for dk, dv in itertools.product(DIMS, DIMS):
        shape = Shape(32, 1, 1, dk, dv, conv_width=width)
        found = answer(shape, variant, weight_format="tiles16-apple", hidden_size=32)
        assert bool(found) == ({dk, dv} <= {32, 64, 128} and width <= 4)
        if found:
            continue
        value = -(-(2 * dk + 2 * dv + 2) // 16) * 16
        layer = replace(
            make_layer(shape, torch.float32),
            in_proj=[torch.zeros(value * 32)],
            out_proj=[torch.zeros(32 * dv)],
        )
        hidden = make_hidden(shape, 1, 1, torch.float32)
        check(found, lambda layer=layer, hidden=hidden: run_layer(layer, hidden, **keywords))


@pytest.mark.parametrize("dims", [(32, 64), (64, 32), (128, 32), (64, 128)])
def test_B2_they_run(dims):
    shape = Shape(32, 1, 1, *dims, conv_width=1)
    layer, hidden = make_layer(shape, torch.float32), make_hidden(shape, 1, 2, torch.float32)
    for variant in SHADERS:
        actual = run_layer(pack_layer(layer), hidden, variant=variant)
        assert_close(actual, reference_layer(layer, hidden), torch.float32)


@pytest.mark.parametrize("hidden", (16, 48))
def test_hidden_sizes_that_are_no_multiple_of_32(hidden):
    shape = Shape(hidden, 1, 1, 32, 32)
    found = answer(shape, "core", weight_format="tiles16-apple", hidden_size=hidden)
    assert "multiple of 32" in found.reason
    layer = replace(
        make_layer(shape, torch.float32),
        in_proj=[torch.zeros(144 * hidden)],
        out_proj=[torch.zeros(-(-hidden // 16) * 16 * 32)],
    )
    x = make_hidden(shape, 1, 1, torch.float32)
    keywords = {"variant": "core", "weight_format": "tiles16-apple"}
    check(found, lambda: run_layer(layer, x, **keywords))


@pytest.mark.parametrize("variant", ("hybrid", "mega"))
@pytest.mark.parametrize("rows", (32, 33))
def test_rows_of_a_persistent_variant(rows, variant):
    shape = Shape(32, 1, 1, 32, 32)
    found = answer(shape, variant, weight_format="tiles16-apple", hidden_size=32, rows=rows)
    assert bool(found) == (rows <= 32)
    layer = pack_layer(make_layer(shape, torch.float32))
    x = make_hidden(shape, 1, rows, torch.float32)
    check(found, lambda: run_layer(layer, x, variant=variant))


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
