"""What `auto` runs, in processes of their own: TMF_AUTO is read once, and a failed launch stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BEGIN = """
import torch
from torch_mps_fusion.models import GatedDeltaNet, GDNConfig

def config_of(head_k_dim):
    return GDNConfig(
        model_type="qwen3_5_text", layer_types=("linear_attention",), hidden_size=64,
        num_k_heads=1, num_v_heads=2, head_k_dim=head_k_dim, head_v_dim=32,
        conv_kernel_size=4, rms_norm_eps=1e-6,
    )

layer = GatedDeltaNet.from_config(config_of(32), dtype=torch.float32, seed=0)
x = torch.randn(1, 3, 64, generator=torch.Generator().manual_seed(1))
CANCEL = 6  # a word of shaders/include/tasks.h

def blocks():
    return torch.ops.mps_fusion._task_blocks("cpu")

def cancel():
    for control in blocks()[0::2]:
        control[CANCEL] = 1

def same(a, b):
    assert torch.equal(a, b), (a - b).abs().max()
"""


def run(script, auto=None):
    environment = {k: v for k, v in os.environ.items() if k != "TMF_AUTO"}
    if auto is not None:
        environment["TMF_AUTO"] = auto
    return subprocess.run(
        [sys.executable, "-c", BEGIN + script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def passes(script, auto=None):
    """The script runs to its end; what it wrote on stderr."""
    done = run(script, auto)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def test_a_persistent_launch_that_failed_makes_auto_run_packed():
    said = passes(
        """
wanted = layer(x, variant="mega")
assert len(blocks()) == 2
same(layer(x), wanted)  # auto is mega
cancel()
try:
    layer(x)
except RuntimeError as error:
    assert "variant 'mega' failed, cancelled" in str(error), error
else:
    raise SystemExit("the cancelled launch did not fail")
ended = int(blocks()[1][0])
for _ in range(3):
    same(layer(x), wanted)  # packed has mega's bits
assert int(blocks()[1][0]) == ended, "auto still runs persistent launches"
same(layer(x, variant="mega"), wanted)  # by name it still runs
assert int(blocks()[1][0]) == ended + 1
""",
        auto="mega",
    )
    assert said.count("variant 'auto' runs 'packed' instead of 'mega' from now on") == 1, said


def test_it_is_asked_for_where_it_runs():
    """A module packs its weights for it; rows that are handed to the op, and a device or sizes that
    it has no kernel for, are left to the table."""
    passes(
        """
assert layer(x).equal(layer(x, variant="core"))
assert torch.ops.mps_fusion._choices().startswith("any\\t0\\tcore\\t")
long = torch.randn(1, 40, 64, generator=torch.Generator().manual_seed(2))
assert layer(long).equal(layer(long, variant="core"))
other = GatedDeltaNet.from_config(config_of(48), dtype=torch.float32, seed=0)
assert other(x).equal(other(x, variant="stock"))
""",
        auto="core",
    )


def test_more_rows_than_a_persistent_variant_takes():
    """The weights stay packed: `core` reads them too, and no variant that reads rows runs."""
    passes(
        """
layer(x)
packed = [p.data_ptr() for p in layer.parameters()]
long = torch.randn(1, 40, 64, generator=torch.Generator().manual_seed(2))
assert layer(long).equal(layer(long, variant="core"))
assert packed == [p.data_ptr() for p in layer.parameters()]
""",
        auto="hybrid",
    )


@pytest.mark.parametrize("auto", [None, "", "auto"])
def test_without_it_nothing_changes(auto):
    passes('assert layer(x).equal(layer(x, variant="native"))\nassert blocks() == []', auto)


def test_an_unknown_name_is_an_error():
    done = run("layer(x)", "fast")
    assert done.returncode != 0
    assert "TMF_AUTO: variant: got 'fast'; accepted: auto, stock, native, packed" in done.stderr
