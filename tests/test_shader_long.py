"""Minutes: python -m pytest -m long tests/test_shader_long.py

The checking build over schedules and residencies, and at the real shapes.
"""

from dataclasses import replace

import pytest
import torch
from cases import DTYPES, HEAD_MAPS, REAL, make_hidden, make_layer, make_states, pack_layer
from compare import assert_close, assert_equal, reference_layer, run_layer
from settings import BLOCK, RAGGED, TILED, Setting, make_case

from torch_mps_fusion import host_kernels

pytestmark = pytest.mark.long
VARIANTS = ("packed", "core")
STATES = Setting(BLOCK, masked=True)
CASES = [
    (STATES, torch.bfloat16, (2, 5)),
    (
        Setting(TILED, masked=True, width=0, input_norm=False, float_gates=True),
        torch.float16,
        (2, 5),
    ),
    (Setting(RAGGED, masked=True, width=2, keys_adjacent=False), torch.float32, (2, 5)),
    # above the row threshold: the row norm and the conv state are dispatches of their own
    (STATES, torch.bfloat16, (1, 36)),
]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("setting", "dtype", "rows"), CASES, ids=["block", "tiled", "ragged", "many"]
)
def test_fifty_seeds(setting, dtype, rows, variant):
    """Under random schedules, one, two and all threadgroups in flight: no fault, the same bits."""
    case = make_case(setting, dtype, *rows)
    layer = pack_layer(case.layer)
    given = case.hidden, case.states or (None, None), case.mask
    expected = run_layer(layer, *given, variant=variant)
    for seed in range(50):
        for residency in (0, 1, 2):
            way = {"seed": seed, "schedule": "random", "residency": residency}
            with host_kernels.running(checked=True, **way):
                assert_equal(run_layer(layer, *given, variant=variant), expected)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("name", REAL)
def test_checked_at_real_shapes(name, rows, variant):
    """In a random order, two threadgroups in flight: no fault, the bits of a plain run."""
    shape = REAL[name]
    layer = pack_layer(make_layer(shape, torch.bfloat16, input_norm=True))
    hidden = make_hidden(shape, 1, rows, torch.bfloat16)
    states = make_states(shape, 1, torch.bfloat16)
    expected = run_layer(layer, hidden, states, variant=variant)
    way = {"seed": 1, "schedule": "random", "residency": 2}
    with host_kernels.running(checked=True, **way):
        assert_equal(run_layer(layer, hidden, states, variant=variant), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_map", HEAD_MAPS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("width", [0, 4])
def test_every_combination(width, masked, head_map, dtype):
    """Rows {1, 3, 8} of {1, 3} sequences: the variants agree bit for bit and with float64."""
    setting = Setting(replace(BLOCK, head_map=head_map), masked=masked, width=width)
    for batch in (1, 3):
        for tokens in (1, 3, 8):
            case = make_case(setting, dtype, batch, tokens)
            layer = pack_layer(case.layer)
            given = case.hidden, case.states or (None, None), case.mask
            packed, core = (run_layer(layer, *given, variant=v) for v in VARIANTS)
            assert_equal(packed, core)
            assert_close(core, reference_layer(case.layer, *given), dtype)
