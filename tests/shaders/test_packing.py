"""Packed operands: index maps, golden bytes, round trips, refusals, memory."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peak import peak_bytes

from torch_mps_fusion import packing

LANES = packing.LANE_MAPS
DTYPES = packing.DTYPES


def grid(n, k):
    rows, cols = torch.meshgrid(torch.arange(n), torch.arange(k), indexing="ij")
    return rows.reshape(-1), cols.reshape(-1)


@pytest.mark.parametrize("lanes", LANES)
def test_lane_map_is_a_bijection_of_a_block(lanes):
    n, k = grid(16, 32)
    tile, lane, value = packing.lane_value(n, k, lanes)
    places = sorted(zip(tile.tolist(), lane.tolist(), value.tolist(), strict=True))
    assert places == [(t, i, v) for t in range(2) for i in range(32) for v in range(8)]
    back = packing.lane_place(tile, lane, value, lanes)
    assert torch.equal(back[0], n) and torch.equal(back[1], k)


@pytest.mark.parametrize("lanes", LANES)
def test_a_lane_holds_the_k_of_its_eight_activations(lanes):
    """The pairs of fragments 0..3 that meet at one lane pair are eight adjacent k, in order."""
    for pair in range(4):
        for fragment in range(4):
            for e in range(2):
                k = 8 * pair + 2 * fragment + e
                tile, lane, value = packing.lane_value(5, k, lanes)
                assert (tile, value // 4) == (fragment // 2, fragment % 2)
                # position 2 pair + e of the fragment: a row of the operand on Apple, a k pair here
                if lanes == "nvidia":
                    assert (lane % 4, value % 2) == (pair, e)
                else:
                    assert ((lane >> 2) & 4) + ((lane >> 1) & 3) == 2 * pair + e


@pytest.mark.parametrize(
    ("lanes", "expected"),
    [
        # (n, k) of the eight values of lanes 0, 1, 2, 8 and 16 of tile 0, counted by hand from
        # the 8x8 fragment: lane 1 is columns 2 and 3, lane 2 row 1, lane 8 column 4, lane 16 row 4
        (
            "apple",
            {
                0: [(0, 0), (1, 0), (8, 0), (9, 0), (0, 2), (1, 2), (8, 2), (9, 2)],
                1: [(2, 0), (3, 0), (10, 0), (11, 0), (2, 2), (3, 2), (10, 2), (11, 2)],
                2: [(0, 1), (1, 1), (8, 1), (9, 1), (0, 3), (1, 3), (8, 3), (9, 3)],
                8: [(4, 0), (5, 0), (12, 0), (13, 0), (4, 2), (5, 2), (12, 2), (13, 2)],
                16: [(0, 16), (1, 16), (8, 16), (9, 16), (0, 18), (1, 18), (8, 18), (9, 18)],
            },
        ),
        # the registers of the left operand of m16n8k16: row lane / 4, k pair lane % 4
        (
            "nvidia",
            {
                0: [(0, 0), (0, 1), (8, 0), (8, 1), (0, 2), (0, 3), (8, 2), (8, 3)],
                1: [(0, 8), (0, 9), (8, 8), (8, 9), (0, 10), (0, 11), (8, 10), (8, 11)],
                4: [(1, 0), (1, 1), (9, 0), (9, 1), (1, 2), (1, 3), (9, 2), (9, 3)],
                31: [(7, 24), (7, 25), (15, 24), (15, 25), (7, 26), (7, 27), (15, 26), (15, 27)],
            },
        ),
    ],
)
def test_golden_lanes(lanes, expected):
    for lane, places in expected.items():
        assert [packing.lane_place(0, lane, v, lanes) for v in range(8)] == places


@pytest.mark.parametrize(
    ("lanes", "itemsize", "head", "tail"),
    [
        ("apple", 2, [0, 32, 256, 288, 2, 34, 258, 290, 64, 96], [479, 511]),
        ("apple", 4, [0, 32, 256, 288, 64, 96, 320, 352, 1, 33], [479, 511]),
        ("nvidia", 2, [0, 1, 256, 257, 2, 3, 258, 259, 8, 9], [510, 511]),
        ("nvidia", 4, [0, 1, 256, 257, 8, 9, 264, 265, 16, 17], [510, 511]),
    ],
)
def test_golden_order_of_a_block(lanes, itemsize, head, tail):
    """Row-major places, 32 n + k, in packed order: a word of 16 bytes a lane, lanes adjacent."""
    n, k = packing.logical_index(np.arange(512), 32, itemsize, lanes)
    order = (32 * n + k).tolist()
    assert order[:10] == head and order[-2:] == tail


def test_golden_bytes():
    weight = torch.arange(16 * 32, dtype=torch.int32).view(16, 32).float()
    packed = packing.pack(weight.half(), "tiles16-apple")
    head = packed[:8].view(torch.int16).numpy().tobytes().hex()
    # 0, 32, 256, 288, 2, 34, 258, 290 as little-endian halves
    assert head == "00000050005c805c0040405008 5c885c".replace(" ", "")


def test_nvidia_order_is_the_operand_of_its_matrix_instruction():
    """m16n8k16 spelled out by registers: weights left, a lane's eight activations right."""
    weight = torch.randint(-8, 8, (16, 32)).half()
    x = torch.randint(-8, 8, (8, 32)).half()
    lanes = packing.pack(weight, "tiles16-nvidia").view(2, 32, 8)
    product = torch.zeros(16, 8)
    for half in range(2):
        left, right = torch.zeros(16, 16), torch.zeros(16, 8)
        for lane in range(32):
            group, pair = lane // 4, lane % 4
            k, values = 2 * pair, x[group, 8 * pair : 8 * pair + 8]
            for i, (row, column) in enumerate(((0, 0), (8, 0), (0, 8), (8, 8))):
                register = lanes[half, lane, 2 * i : 2 * i + 2]
                left[group + row, k + column : k + column + 2] = register.float()
            right[k : k + 2, group] = values[4 * half : 4 * half + 2].float()
            right[k + 8 : k + 10, group] = values[4 * half + 2 : 4 * half + 4].float()
        product += left @ right
    assert torch.equal(product, weight.float() @ x.float().T)


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 70),
    steps=st.integers(1, 6),
    lanes=st.sampled_from(LANES),
    itemsize=st.sampled_from((2, 4)),
)
def test_index_maps_are_inverse(n, steps, lanes, itemsize):
    k = 32 * steps
    rows, cols = grid(packing.padded_rows(n), k)
    at = packing.packed_index(rows, cols, k, itemsize, lanes)
    assert torch.equal(at.sort().values, torch.arange(packing.packed_numel(n, k)))
    back = packing.logical_index(at, k, itemsize, lanes)
    assert torch.equal(back[0], rows) and torch.equal(back[1], cols)


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    steps=st.integers(1, 5),
    lanes=st.sampled_from(LANES),
    dtype=st.sampled_from(DTYPES),
    chunk=st.sampled_from((1, 3000, 1 << 20)),
)
def test_round_trip_and_index_map(counts, steps, lanes, dtype, chunk):
    """Several weights are one operand; padded rows are zero; chunks do not matter."""
    k, n, fmt = 32 * steps, sum(counts), packing.format_name(lanes)
    weights = [torch.randn(c, k).to(dtype) for c in counts]
    kept, packing.CHUNK = packing.CHUNK, chunk
    try:
        packed = packing.pack(weights, fmt)
        whole = packing.unpack(packed, fmt, n, k)
    finally:
        packing.CHUNK = kept
    assert packed.shape == (packing.packed_numel(n, k),) and packed.dtype == dtype
    assert torch.equal(whole, torch.cat(weights))
    rows, cols = grid(packing.padded_rows(n), k)
    padded = torch.zeros(packing.padded_rows(n), k, dtype=dtype)
    padded[:n] = whole
    at = packing.packed_index(rows, cols, k, packed.element_size(), lanes)
    assert torch.equal(packed[at], padded.reshape(-1))


def test_permuting_rows_by_whole_tiles_commutes_with_packing():
    weight, fmt = torch.randn(64, 96), "tiles16-apple"
    order = torch.tensor([2, 0, 3, 1])
    moved = weight.view(4, 16, 96)[order].reshape(64, 96)
    tiles = packing.pack(weight, fmt).view(4, -1)
    assert torch.equal(packing.pack(moved, fmt).view(4, -1), tiles[order])


def test_packs_views_and_into_given_memory():
    wide = torch.randn(48, 130)
    weight = wide[1::2, 1:129:2].T.contiguous().T  # strided both ways
    assert not weight.is_contiguous()
    fmt = "tiles16-apple"
    buffer = torch.full((packing.packed_numel(24, 64) + 8,), 7.0)
    out = packing.pack(weight, fmt, out=buffer[4:-4])
    assert torch.equal(packing.unpack(out, fmt, 24, 64), weight)
    assert (buffer[:4] == 7).all() and (buffer[-4:] == 7).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_packs_in_place(dtype, monkeypatch):
    monkeypatch.setattr(packing, "CHUNK", 16 * 64)
    weight = torch.randn(80, 64).to(dtype)
    expected = packing.pack(weight.clone(), "tiles16-nvidia")
    packed = packing.pack(weight, "tiles16-nvidia", out=weight.view(-1))
    assert packed.data_ptr() == weight.data_ptr() and torch.equal(packed, expected)


def test_empty_sequences_and_bad_input_are_refused_by_name():
    good = torch.zeros(16, 64)
    cases = [
        (lambda: packing.pack([], "tiles16-apple"), "weights: an empty sequence"),
        (lambda: packing.pack(good, "tiles16-intel"), "weight_format: 'tiles16-intel'"),
        (lambda: packing.pack(good, "rows"), "weight_format: 'rows'"),
        (lambda: packing.format_name("intel"), "lanes: 'intel'"),
        (lambda: packing.pack(good[0], "tiles16-apple"), r"weights\[0\]: 1 dimensions"),
        (lambda: packing.pack(good[:, :48], "tiles16-apple"), r"weights\[0\]: 48 input features"),
        (lambda: packing.pack(good[:, :0], "tiles16-apple"), r"weights\[0\]: 0 input features"),
        (
            lambda: packing.pack(good.double(), "tiles16-apple"),
            r"weights\[0\]: dtype torch.float64",
        ),
        (lambda: packing.pack([good, good.half()], "tiles16-apple"), r"weights\[1\]: dtype"),
        (lambda: packing.pack([good, good[:, :32]], "tiles16-apple"), r"weights\[1\]: 32 input"),
        (lambda: packing.pack(good, "tiles16-apple", out=good[:8].view(-1)), "out: 512 elements"),
        (lambda: packing.pack(good, "tiles16-apple", out=good.half().view(-1)), "out: 1024"),
        (lambda: packing.unpack(good.view(-1), "tiles16-apple", 17, 64), "packed: 1024 elements"),
        (lambda: packing.unpack(good.view(-1), "tiles16-apple", 16, 40), "packed: 40 input"),
        (
            lambda: packing.unpack(good.view(-1), "tiles16-apple", 16, 64, out=good[:8]),
            r"out: \(8, 64\)",
        ),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_temporary_memory_is_bounded(monkeypatch):
    """Beyond the result, packing allocates a few chunks: well below a tenth of the weight."""
    weight = torch.zeros(4096, 2048, dtype=torch.bfloat16)
    monkeypatch.setattr(packing, "CHUNK", 1 << 16)
    peak = peak_bytes(lambda: packing.pack(weight, "tiles16-apple", out=weight.view(-1)))
    assert 0 < peak < weight.nbytes // 10
