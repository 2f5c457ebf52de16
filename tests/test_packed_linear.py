"""`packed_linear`: one packed weight, any leading dims, any number of rows."""

import pytest
import torch
from cases import DTYPES, strided_view
from torch.library import opcheck

from torch_mps_fusion import packing, tolerances
from torch_mps_fusion.ops import packed_linear

FORMAT = "tiles16-apple"


def make(n, k, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight = (torch.randn(n, k, generator=generator) * k**-0.5).to(dtype)
    return weight, [packing.pack(weight, FORMAT)]


def make_x(*size, dtype):
    return torch.randn(*size, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "size", [(), (1,), (8,), (2, 3), (2, 1, 5), (32,), (33,), (7, 11)], ids=str
)
def test_against_float64(size, dtype):
    weight, packed = make(44, 96, dtype)
    x = make_x(*size, 96, dtype=dtype)
    y = packed_linear(x, packed, out_features=44, weight_format=FORMAT)
    assert y.shape == (*size, 44) and y.dtype == dtype and y.is_contiguous()
    expected = x.double() @ weight.double().t()
    assert tolerances.error(y, expected) <= tolerances.tolerance("output", dtype).rms


def test_rows_do_not_see_each_other():
    _, packed = make(48, 64, torch.bfloat16)
    x = make_x(20, 64, dtype=torch.bfloat16)
    together = packed_linear(x, packed, out_features=48, weight_format=FORMAT)
    for i in range(20):
        alone = packed_linear(x[i], packed, out_features=48, weight_format=FORMAT)
        assert torch.equal(alone, together[i])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_and_empty(dtype):
    _, packed = make(16, 32, dtype)
    x = make_x(3, 5, 32, dtype=dtype)
    expected = packed_linear(x, packed, out_features=16, weight_format=FORMAT)
    for view in (strided_view(x), x.transpose(0, 1).contiguous().transpose(0, 1)):
        found = packed_linear(view, packed, out_features=16, weight_format=FORMAT)
        assert torch.equal(found, expected)
    empty = packed_linear(x[:0], packed, out_features=16, weight_format=FORMAT)
    assert empty.shape == (0, 5, 16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [2, 40])
def test_opcheck(rows, dtype):
    _, packed = make(20, 32, dtype)
    keywords = {"out_features": 20, "weight_format": FORMAT}
    for x in (make_x(rows, 32, dtype=dtype), strided_view(make_x(rows, 2, 32, dtype=dtype))):
        opcheck(torch.ops.mps_fusion.packed_linear.default, (x, packed), keywords)


def test_refusals():
    _, packed = make(20, 32, torch.float32)
    x = make_x(2, 32, dtype=torch.float32)
    good = {"out_features": 20, "weight_format": FORMAT}
    for arguments, message in (
        ((x, packed, {**good, "weight_format": "rows"}), "weight_format: got 'rows'; accepted: 't"),
        ((x, packed, {**good, "out_features": 0}), "out_features: got 0"),
        ((x, packed, {**good, "out_features": 64}), r"weight\[0\]: got shape"),
        ((x[:, :16], packed, good), "x: got shape .*multiple of 32"),
        ((x.double(), packed, good), "x: got dtype float64"),
        ((x, packed * 2, good), "weight: got a list of 2 tensors"),
        ((x, [packed[0].half()], good), r"weight\[0\]: got dtype float16"),
        ((x.clone().requires_grad_(), packed, good), "x: got a tensor that requires grad"),
    ):
        x_, w, keywords = arguments
        with pytest.raises(ValueError, match=message):
            packed_linear(x_, w, **keywords)
    other = packing.pack(make(20, 32, torch.float32)[0], "tiles16-nvidia")
    with pytest.raises(NotImplementedError, match="'tiles16-nvidia' is not accepted on cpu"):
        packed_linear(x, [other], out_features=20, weight_format="tiles16-nvidia")
