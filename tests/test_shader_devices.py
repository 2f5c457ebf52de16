"""`packed` and `core` through the ops, on every device that has shaders here: one suite.

"cpu" runs the kernels in metal_host. "mps" is the real device where there is one; elsewhere, in
./dev apple, the fake one of tests/apple under the extension's own Objective-C++.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cases import Layer, Shape, make_hidden, make_layer, make_states, pack_layer
from compare import assert_close, assert_equal, reference_layer, run_layer, run_layer_in_place
from torch import Tensor

from torch_mps_fusion.device import current

VARIANTS = ("packed", "core")
TILED = Shape(head_map="tiled")
RAGGED = Shape(64, 2, 6, 64, 128, conv_width=3, head_map="tiled")
# shape, dtype, batch, tokens, input norm
CASES = (
    (Shape(), torch.bfloat16, 1, 1, True),
    (TILED, torch.float16, 3, 2, False),
    (RAGGED, torch.float32, 2, 5, True),
)
each_case = pytest.mark.parametrize("case", CASES, ids=lambda c: str(c[1]).removeprefix("torch."))


def moved(layer: Layer, device: str) -> Layer:
    """The layer's weights on a device, packed."""
    packed = pack_layer(layer, current(device).lanes)
    tensors = {
        name: value.to(device) for name, value in vars(packed).items() if isinstance(value, Tensor)
    }
    lists = {
        name: [t.to(device) for t in getattr(packed, name)] for name in ("in_proj", "out_proj")
    }
    return replace(packed, **tensors, **lists)


def on(device: str, tensors: tuple) -> tuple:
    """A copy on the device; strides are kept."""
    return tuple(
        None
        if t is None
        else torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device).copy_(t)
        for t in tensors
    )


def cpu(tensors: tuple) -> tuple:
    return tuple(t.cpu() for t in tensors)


def make(case: tuple) -> tuple[Layer, Tensor, tuple[Tensor, Tensor]]:
    shape, dtype, batch, tokens, norm = case
    layer = make_layer(shape, dtype, input_norm=norm)
    return layer, make_hidden(shape, batch, tokens, dtype), make_states(shape, batch, dtype)


@each_case
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("with_states", [False, True])
def test_agrees_with_float64(shader_device, variant, case, with_states) -> None:
    layer, hidden, states = make(case)
    states = states if with_states else (None, None)
    there = moved(layer, shader_device)
    got = run_layer(there, hidden.to(shader_device), on(shader_device, states), variant=variant)
    assert all(t.device.type == shader_device for t in got)
    assert_close(cpu(got), reference_layer(layer, hidden, states), hidden.dtype)


@each_case
def test_packed_and_core_give_the_same_bits(shader_device, case) -> None:
    layer, hidden, states = make(case)
    there = moved(layer, shader_device)
    packed, core = (
        cpu(run_layer(there, hidden.to(shader_device), on(shader_device, states), variant=v))
        for v in VARIANTS
    )
    assert_equal(packed, core)


@pytest.mark.parametrize("variant", VARIANTS)
def test_masked_tokens(shader_device, variant) -> None:
    layer, hidden, states = make(CASES[2])
    mask = torch.rand(hidden.shape[:2], generator=torch.Generator().manual_seed(5)) > 0.4
    got = run_layer(
        moved(layer, shader_device), hidden.to(shader_device), on(shader_device, states),
        mask.to(shader_device), variant=variant,
    )  # fmt: skip
    assert_close(cpu(got), reference_layer(layer, hidden, states, mask), hidden.dtype)


@pytest.mark.parametrize("variant", VARIANTS)
def test_in_place_equals_functional_also_where_value_heads_share_a_key_head(
    shader_device, variant
) -> None:
    layer, hidden, states = make(CASES[2])
    there, given = moved(layer, shader_device), on(shader_device, states)
    x = hidden.to(shader_device)
    expected = run_layer(there, x, given, variant=variant)
    written = on(shader_device, states)
    output = run_layer_in_place(there, x, written, variant=variant)
    assert_equal(cpu((output, *written)), cpu(expected))
    assert_equal((hidden, *cpu(given)), (hidden, *states))  # the functional op wrote no input


@pytest.mark.parametrize("variant", VARIANTS)
def test_A1_every_argument_as_a_view_with_an_offset(shader_device, variant) -> None:
    layer, hidden, states = make(CASES[0])
    there = moved(layer, shader_device)

    def shifted(t: Tensor) -> Tensor:
        """The same tensor 16 elements into a storage that holds NaN around it."""
        whole = torch.full((t.numel() + 32,), float("nan"), dtype=t.dtype, device=t.device)
        view = whole[16 : 16 + t.numel()]
        order = sorted(range(t.dim()), key=lambda d: -t.stride(d))
        flat = view.view([t.shape[d] for d in order])
        back = flat.permute([order.index(d) for d in range(t.dim())])
        back.copy_(t)
        return back

    x, given = hidden.to(shader_device), on(shader_device, states)
    expected = run_layer(there, x, given, variant=variant)
    names = ("conv_weight", "A_log", "dt_bias", "norm_weight", "input_norm_weight")
    views = replace(
        there,
        **{n: shifted(getattr(there, n)) for n in names},
        in_proj=[shifted(there.in_proj[0])],
        out_proj=[shifted(there.out_proj[0])],
    )
    got = run_layer(views, shifted(x), tuple(map(shifted, given)), variant=variant)
    assert_equal(cpu(got), cpu(expected))


def test_E1_a_sequence_in_two_calls(shader_device) -> None:
    layer, hidden, states = make(CASES[2])
    there, x = moved(layer, shader_device), hidden.to(shader_device)
    whole = run_layer(there, x, on(shader_device, states), variant="core")
    first = run_layer(there, x[:, :2], on(shader_device, states), variant="packed")
    second = run_layer(there, x[:, 2:], first[1:], variant="core")
    assert_equal(cpu((torch.cat([first[0], second[0]], 1), *second[1:])), cpu(whole))


def test_many_rows_use_products_of_aten(shader_device) -> None:
    shape = Shape()
    layer = make_layer(shape, torch.float32, input_norm=True)
    hidden = make_hidden(shape, 2, 40, torch.float32)
    got = run_layer(moved(layer, shader_device), hidden.to(shader_device), variant="core")
    assert_close(cpu(got), reference_layer(layer, hidden), hidden.dtype)


def test_G5_repeats_are_bit_identical_among_operators_of_torch(shader_device) -> None:
    """Between two operators, again and again, with and without waiting for the device."""
    layer, hidden, states = make(CASES[0])
    there, x = moved(layer, shader_device), hidden.to(shader_device)
    given = on(shader_device, states)
    first = cpu(run_layer(there, x, given, variant="core"))
    for _ in range(10):
        source = x.clone()
        got = run_layer(there, source, given, variant="core")
        source.zero_()
        assert_equal(cpu(tuple(t.clone() for t in got)), first)


def test_the_number_of_tokens_does_not_touch_the_bits(shader_device) -> None:
    """T from 1 to 24 of one sequence."""
    layer, hidden, _ = make((Shape(), torch.float32, 1, 24, False))
    there = moved(layer, shader_device)
    whole = None
    for tokens in range(24, 0, -1):
        got = run_layer(there, hidden[:, :tokens].to(shader_device), variant="core")[0].cpu()
        whole = got if whole is None else whole
        assert torch.equal(got, whole[:, :tokens])
