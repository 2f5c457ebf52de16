"""Calls of more rows than run at once, and in-place calls whose kernels fail midway."""

import subprocess
import sys
from pathlib import Path

import torch
from cases import Shape, make_hidden, make_layer, make_states, pack_layer
from compare import assert_close, assert_equal, run_layer, run_layer_in_place
from settings import make_mask

from torch_mps_fusion import host_kernels

SHAPE = Shape(32, 1, 2, 32, 32)
BROKEN = Path(__file__).parent / "shaders" / "broken_kernels.py"


def test_tokens_in_chunks():
    """Two sequences of 2,100 masked tokens: what the same calls by hand give, bit for bit."""
    layer = make_layer(SHAPE, torch.float32, input_norm=True)
    packed = pack_layer(layer)
    hidden, mask = make_hidden(SHAPE, 2, 2100, torch.float32), make_mask(2, 2100)
    states = make_states(SHAPE, 2, torch.float32)
    kept = [s.clone() for s in states]
    with host_kernels.running(threads=2) as launches:
        found = run_layer(packed, hidden, states, mask, variant="packed")
    assert sum(x.family == "rms_norm" for x in launches) == 4
    assert all(torch.equal(s, k) for s, k in zip(states, kept, strict=True))
    assert_close(found, run_layer(layer, hidden, states, mask, variant="native"), torch.float32)
    row, parts, after = slice(1, 2), [], tuple(s[1:] for s in states)
    for part in (slice(0, 1056), slice(1056, 2100)):
        output, *after = run_layer(
            packed, hidden[row, part], tuple(after), mask[row, part], variant="packed"
        )
        parts.append(output)
    assert_equal((torch.cat(parts, 1), *after), tuple(t[row] for t in found))
    output = run_layer_in_place(packed, hidden, states, mask, variant="core")
    assert_equal((output, *states), found)
    fresh = run_layer(packed, hidden[:1], variant="core")
    assert_close(fresh, run_layer(layer, hidden[:1], variant="native"), torch.float32)


def test_sequences_in_chunks():
    """2,100 sequences of one token, hidden with strides; the states of every one are moved on."""
    layer = make_layer(SHAPE, torch.float32, input_norm=True)
    packed = pack_layer(layer)
    hidden = make_hidden(SHAPE, 1, 2100, torch.float32).transpose(0, 1)
    states = make_states(SHAPE, 2100, torch.float32)
    found = run_layer(packed, hidden, states, variant="core")
    assert_close(found, run_layer(layer, hidden, states, variant="native"), torch.float32)
    states = make_states(SHAPE, 2100, torch.float32, dk_contiguous=False)
    output = run_layer_in_place(packed, hidden, states, variant="core")
    assert_equal((output, *states), found)


def test_a_call_that_fails_midway_leaves_the_states():
    """A kernel that faults when others have written, in a later chunk too, or does not compile."""
    done = subprocess.run([sys.executable, str(BROKEN)], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 8, done.stderr
    for line in lines:
        assert "states kept, mps_fusion: tmf_" in line
        assert ("crash: threadgroup" in line) != line.endswith("a kernel that does not compile")
