"""Every command, as small as it gets, and the figures that some must print exactly."""

from __future__ import annotations

import re

import pytest
import torch
from bench_receipts import options

from benchmarks import facts, models, receipts
from benchmarks.__main__ import COMMANDS, LAST, main, title
from benchmarks.commands import candidate, counters, gaps, price, projection, speculation, timeline
from benchmarks.commands.layer import memory
from benchmarks.layers import SHAPES, Layer, Ours
from benchmarks.numeric_classes import CLASSES, bf16_ulps, histogram, keeps, kl, strongest
from torch_mps_fusion import device as devices
from torch_mps_fusion import plan

NO_TIME = (
    "audit",
    "price",
    "contract",
    "numerics",
    "candidate",
    "stream",
    "projection",
    "ksplit",
    "gaps",
    "counters",
    "timeline",
    "registers",
    "replay",
    "traffic",
    "staging",
    "speculation",
)


def smoke(name: str, folder, *more: str) -> list[dict]:
    assert main([name, "--smoke", "--device", "cpu", "--out", str(folder), *more]) == 0
    return receipts.load_all(folder)


@pytest.mark.parametrize("name", COMMANDS)
def test_smoke(name, tmp_path, capsys):
    found = smoke(name, tmp_path)
    assert found and {r["command"] for r in found} == {name}
    printed = capsys.readouterr().out
    if name in NO_TIME:
        assert all(r["backend"] in ("arithmetic", "cpu-emulation") for r in found)
        assert not re.search(r"\d\s*(us|µs|GB/s)\b", printed.replace("570 GB/s", ""))
    assert all(r["backend"] != "mps" for r in found)


def test_list_shows_every_command(capsys):
    assert main(["list"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == [*COMMANDS, *LAST]
    assert all(title(name) for name in (*COMMANDS, *LAST))


def test_all_writes_receipts_and_a_report(tmp_path, capsys):
    some = ["audit", "rule"]
    assert main(["all", "--smoke", "--device", "cpu", "--out", str(tmp_path), "--only", *some]) == 0
    assert {r["command"] for r in receipts.load_all(tmp_path)} == {*some, "all"}
    page = (tmp_path / "report.md").read_text()
    assert "There is no Apple receipt" in page and "14,434,467,840 B" in page
    figure = re.search(r"!\[.*\]\((.*\.svg)\)", page)
    assert figure and (tmp_path / figure[1]).read_text().startswith("<?xml")


def test_audit_prints_the_figures_of_the_study(capsys):
    assert main(["audit"]) == 0
    printed = capsys.readouterr().out
    for figure in ("14,434,467,840 B", "9,625,927,680 B", "15,757,885,440 B", "1,323,417,600 B"):
        assert figure in printed
    assert main(["audit", "--pad-rows", "1"]) == 0
    assert "14,412,349,440 B" in capsys.readouterr().out


def test_audit_is_derived_from_shapes():
    model, form = models.MODELS["qwen3.8-27b"], models.FORMATS["q4-affine-g64"]
    matrices = models.target(model, 256)
    size = models.payload(matrices, form)
    assert size["in_proj"] == 48 * 16640 * 5120 * 9 // 16
    bf16 = models.payload(matrices, models.FORMATS["bf16"])
    assert all(32 * size[n] == 9 * bf16[n] for n in size)


def test_an_alias_is_counted_once_and_needs_its_owner():
    form = models.FORMATS["bf16"]
    head = models.Matrix("draft", "head", "head", 8, 4)
    segment = models.Matrix("draft", "head", "segment", 2, 4, owner="head")
    assert models.payload([head, segment], form) == {"head": 64, "segment": 0}
    with pytest.raises(ValueError, match="owner 'head' is not counted"):
        models.payload([segment], form)
    with pytest.raises(ValueError, match="given twice"):
        models.payload([head, head], form)


def test_price_is_an_estimate(capsys, tmp_path):
    assert price.milliseconds(15757885440, 570) == pytest.approx(27.6454, abs=1e-4)
    (found,) = smoke("price", tmp_path)
    printed = capsys.readouterr().out
    assert "27.6454 ms" in printed and "estimate, not a bound" in printed
    assert set(found["results"]["provenance"]) == {"payload", "rate"}
    assert len(found["results"]["traffic_assumptions"]) == 6


GOOD = {
    "numerics": "bytes",
    "supported": "27B",
    "elsewhere": "an error",
    "breaking_case": "one head",
    "removes": {"kind": "intermediate", "what": "O", "bytes": 10, "region_bytes": 100},
    "baseline": {"primitive": "two kernels", "why_not_enough": "O", "same_packing_and_geometry": 1},
}


def test_a_candidate_needs_a_removal_a_baseline_and_a_class():
    assert candidate.verdict(GOOD) == []
    for name in GOOD:
        reasons = candidate.verdict({k: v for k, v in GOOD.items() if k != name})
        assert any(name in reason for reason in reasons)
    for change, word in (
        ({"kind": "dispatches"}, "removes.kind"),
        ({"bytes": 0}, "how much"),
        ({"region_bytes": 10**6}, "too little"),
        ({"kind": "scheduling_gap", "microseconds": 7.7}, "receipt"),
    ):
        reasons = candidate.verdict({**GOOD, "removes": {**GOOD["removes"], **change}})
        assert any(word in reason for reason in reasons), change


def test_a_refused_candidate_fails_the_command(tmp_path, capsys):
    bad = tmp_path / "bad.toml"
    bad.write_text('numerics = "bytes"\n')
    assert main(["candidate", "--device", "cpu", str(bad)]) == 1
    assert "bad: refused" in capsys.readouterr().out


def test_ksplit_rejects_a_deeper_split_where_bytes_are_required(capsys):
    words = ["ksplit", "--smoke", "--device", "cpu", "--shape", "gdn_out"]
    assert main([*words, "--require", "bytes", "--k-splits", "1", "4"]) == 1
    assert "split 4 moves bits" in capsys.readouterr().err
    assert main([*words, "--require", "bytes", "--k-splits", "1"]) == 0


def test_intervals_gaps_and_overlaps_add_up():
    found = gaps.account([("a", 0.0, 2.0), ("b", 3.0, 5.0), ("c", 4.0, 7.0), ("d", 4.5, 5.0)])
    assert (found.window, found.gaps) == (7.0, 1.0)
    assert found.balances(1e-12)
    with pytest.raises(ValueError, match="before it starts"):
        gaps.account([("a", 1.0, 0.0)])
    assert "removable" not in (gaps.NOTE + (gaps.__doc__ or ""))


def test_counters_come_together_or_not_at_all():
    assert counters.frame(None, None) is None
    assert counters.frame(15.5, 92.0) == {"occupancy": 15.5, "active_cores": 92.0}
    for pair in ((15.5, None), (None, 92.0), (-1.0, 2.0)):
        with pytest.raises(ValueError):
            counters.frame(*pair)


def test_idle_of_the_virtual_clock():
    program = Ours("packed").plan(SHAPES["small"], "cpu", 8, torch.bfloat16)
    one = timeline.schedule(program, 1)
    assert sum(s.idle for s in one) == pytest.approx(0, abs=1e-6)
    assert one[-1].end == pytest.approx(program.bytes)
    many = timeline.schedule(program, 1000)
    for stage, d in zip(many, program.dispatches, strict=True):
        assert stage.end - stage.start == pytest.approx(d.bytes / stage.groups)
        assert stage.waiting == 1000 - stage.groups


def test_waits_of_the_instrumented_build(tmp_path, capsys):
    """They are marked as its own."""
    pytest.importorskip("matplotlib", reason="matplotlib (extra `bench`) is not installed")
    picture = tmp_path / "mega.svg"
    more = ("--clock", "software", "--rows", "3", "--workers", "4", "--picture", str(picture))
    (receipt,) = smoke("timeline", tmp_path, *more)
    assert [(a["name"], a["instrumented"]) for a in receipt["arms"]] == [
        ("hybrid", True), ("mega", True),
    ]  # fmt: skip
    stages = [line["stage"] for line in receipt["results"]["waits"]["mega"]]
    assert stages == list(plan.TASK_STAGES)
    assert "an instrumented run" in picture.read_text()
    printed = capsys.readouterr().out
    assert "mega, small, 3 rows: ticks of an instrumented run (steps of" in printed
    assert printed.count("worker 0") == 2


def test_an_assumed_acceptance_is_a_projection():
    assert speculation.cost_per_useful_token(1.0, 4, measured=True) == (0.25, "measured")
    assert speculation.cost_per_useful_token(1.0, 4, measured=False)[1] == "projection"


def test_deferred_parts_say_why():
    assert main(["gaps", "--window", "ffn_to_gdn", "--device", "cpu"]) == 2


def test_classes():
    assert [keeps("tolerance", c) for c in CLASSES] == [False, True, True, True]
    assert not keeps(None, "task")
    assert strongest(True, {}, None) == "bytes"
    assert strongest(False, {"output": 0.9}, None) == "tolerance"
    assert strongest(False, {"output": 1.1}, 1e-6) == "distribution"
    assert strongest(False, {"output": 1.1}, 1.0) is None
    logits = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    assert kl(logits, logits) == pytest.approx(0, abs=1e-12) and kl(-logits, logits) > 0.1


def test_ulps():
    one = torch.tensor([1.0, -1.0, 0.0], dtype=torch.bfloat16)
    above = torch.tensor([1.0078125, -1.015625, -0.0], dtype=torch.bfloat16)
    assert bf16_ulps(one, above).tolist() == [1, 2, 0]
    assert histogram(bf16_ulps(one, above))["2"] == 1
    with pytest.raises(ValueError, match="bfloat16"):
        bf16_ulps(one.float(), above)


def test_shapes_of_the_projection_sweep():
    found = projection.shapes()
    assert found["gdn_in"] == (16480, 5120) and found["ffn_down"] == (5120, 17408)


def test_operands_cover_every_tensor_of_a_program():
    layer = Layer(SHAPES["small"], "cpu", 0)
    arm = Ours("core")
    program = arm.plan(layer.shape, "cpu", 2, torch.bfloat16)
    named = memory(arm, layer, layer.hidden(2))
    missing = {b.name for b in program.buffers if b.given and b.role != "unused"} - set(named)
    assert not missing


def test_hashes_are_of_contents():
    t = torch.arange(12, dtype=torch.float32).view(3, 4)
    assert facts.tensor_sha256([t]) == facts.tensor_sha256([t.t().contiguous().t()])
    assert facts.tensor_sha256([t]) != facts.tensor_sha256([t + 1])
    assert set(facts.source()["texts"]) == set(facts.FAMILIES)


def test_a_receipt_keeps_its_arguments():
    made = receipts.new(options("audit", rounds=3), "arithmetic")
    assert made["arguments"]["rounds"] == 3 and made["smoke"]


def test_a_variant_for_few_rows_leaves_long_prompts_to_packed():
    layer, arm = Layer(SHAPES["small"], "cpu", 0), Ours("mega")
    assert arm.for_rows(layer, 8) is arm
    most = devices.find("host").row_threshold
    assert arm.for_rows(layer, most + 1).variant == "packed"
    assert Ours("stock").for_rows(layer, most + 1).variant == "stock"


def test_a_report_of_no_folder_is_an_error(tmp_path, capsys):
    missing = tmp_path / "nowhere"
    assert main(["report", "--receipts", str(missing)]) == 1
    assert f"--receipts: got {missing}; accepted: a folder of receipts" in capsys.readouterr().err
    assert not missing.exists()
