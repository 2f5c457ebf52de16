"""`explain` and the demo: what they print is what the planner says."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from torch_mps_fusion import device, explain
from torch_mps_fusion.__main__ import main
from torch_mps_fusion.models import KNOWN_SHAPES

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"


def printed(capsys, *arguments: str) -> str:
    assert main(["explain", *arguments]) == 0
    return capsys.readouterr().out


def test_core_at_9b(capsys):
    out = printed(capsys, "--shape", "9b", "--variant", "core", "--rows", "8", "--device", "M1 Max")
    lines = out.splitlines()
    stages = [line.split()[0] for line in lines[3:6]]
    assert stages == ["input_norm+in_proj", "core", "out_proj"]
    assert "32 cores, 400 GB/s" in lines[0] and "grid" in lines[2]
    weights = 2 * 4096 * (12352 + 4096)
    assert f"{(weights + 2 * (8192 * 4 + 128 + 4096 + 64)) / 1e6:.3f}" in out
    assert re.search(r"least possible: 139\.2\d\d MB, 348\.\d us", out)
    assert "auto on mps: stock:" in out and "not measured" in out


def test_times_follow_the_bandwidth(capsys):
    slow, fast = (
        printed(capsys, "--device", f"M1 Max;bandwidth={b}", "--variant", "packed")
        for b in (100, 800)
    )
    found = [float(re.search(r"least possible: \S+ MB, (\S+) us", o)[1]) for o in (slow, fast)]
    assert found[0] == pytest.approx(8 * found[1], rel=1e-2)


def test_above_the_row_threshold(capsys):
    out = printed(capsys, "--rows", "4096", "--device", "M5", "--variant", "packed")
    assert "2 chunks of at most 2048 rows, the first is shown" in out
    assert out.count("matrix product") == 2
    assert re.search(r"the first is shown: conv x \d+, qk_gates x \d+, rule x \d+", out)
    config = KNOWN_SHAPES["9b"]
    given = {"variant": "packed", "device": "M5", "tokens": 4096}
    call = explain.plan_call(config, torch.bfloat16, **given)
    assert f"{len(call.dispatches)} dispatches" in out and len(call.programs) == 2
    whole = explain.plan_config(config, torch.bfloat16, **given)
    assert call.minimum_bytes == whole.minimum_bytes
    assert len(call.dispatches) > len(whole.dispatches)


def test_cuda_and_host(capsys):
    assert "auto on cuda: stock" in printed(capsys, "--device", "h200", "--shape", "27b")
    assert "auto on cpu: native" in printed(capsys, "--device", "host", "--shape", "0.8b")


def choices():
    return [line.split("\t") for line in torch.ops.mps_fusion._choices().splitlines()]


def test_autos_table(capsys):
    """Rows of ours name a committed receipt; on an Apple chip there is none yet."""
    rows = choices()
    assert {device for device, *_ in rows} == {"cpu", "cuda", ""}
    for device_name, most, variant, receipt, reason in rows:
        assert reason and int(most) >= 0
        if variant != "stock":
            assert (RESULTS / receipt).is_file()
        if device_name not in ("cpu", "cuda"):
            assert variant == "stock" or "-mps" in receipt
    assert rows[-1][4] in printed(capsys, "--shape", "27b", "--device", "M5 Max")


def test_auto_says_why_it_is_not_the_first_row():
    odd = replace(KNOWN_SHAPES["9b"], head_k_dim=48)
    chosen, reason = explain.choose("cpu", "host", odd, torch.bfloat16, 1)
    assert chosen == "stock" and "no kernel for head_k_dim 48" in reason
    assert explain.choose("cpu", "host", KNOWN_SHAPES["9b"], torch.bfloat16, 1)[0] == "native"
    for name in device.names():
        for rows in (1, 8, 4096):
            assert explain.choose("mps", name, odd, torch.bfloat16, rows)[0] == "stock"


def test_bad_arguments(capsys):
    assert main(["explain", "--device", "M0"]) == 2
    assert "device: got 'M0'; accepted: M1," in capsys.readouterr().err
    assert main(["explain", "--geometry", ";core=r8"]) == 2
    assert "geometry: core: got 'r8'; accepted: r2, r4" in capsys.readouterr().err
    assert main(["explain", "--geometry", "tile=nt1u4"]) == 2
    assert "geometry: got 'tile=nt1u4'; accepted: changes that each begin with ';'" in (
        capsys.readouterr().err
    )
    with pytest.raises(SystemExit):
        main(["explain", "--rows", "0"])


def test_every_chip_and_shape_can_be_explained(capsys):
    for spec in device.table():
        for shape in KNOWN_SHAPES:
            assert "dispatches" in printed(capsys, "--device", spec.name, "--shape", shape)


def test_demo_shows_the_variants_side_by_side(capsys):
    assert main(["demo", "--tokens", "1", "--rounds", "1"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    found = {row[1]: row for row in rows if len(row) == 11 and row[0] == "1"}
    dispatches = {"packed": "6", "core": "3", "hybrid": "3", "mega": "2"}
    assert set(found) == {"stock", "native", *dispatches}
    for variant, count in dispatches.items():
        assert found[variant][6] == count
        # in place the persistent variants copy the states once more
        assert 1 <= float(found[variant][8]) < (1.15 if variant in ("hybrid", "mega") else 1.01)
        assert found[variant][9:] == ["emulated", "emulated"]
        assert found[variant][5] == "yes"
    assert float(found["native"][9]) > 0 and found["native"][6] == "-"
