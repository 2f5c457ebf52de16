"""The README's own example, run as it stands."""

import re
from pathlib import Path

import torch_mps_fusion.metal_host as metal_host

README = (Path(metal_host.__file__).parent / "README.md").read_text()


def test_the_worked_example_prints_what_the_readme_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("total.metal").write_text(re.search(r"```metal\n(.*?)```", README, re.S)[1])
    names = {}
    blocks = re.findall(r"```python\n(.*?)```\n\n((?: {4}[^\n]*\n)+)", README, re.S)
    assert len(blocks) == README.count("```python") == 4
    for code, printed in blocks:
        exec(compile(code, "README.md", "exec"), names)
        assert capsys.readouterr().out == re.sub(r"^ {4}", "", printed, flags=re.M)


def test_tables_name_every_option_schedule_and_fault():
    options = set(metal_host.Options.__dataclass_fields__)
    named = set(re.findall(r"`(\w[\w-]*)`", README))
    assert not (options | set(metal_host.SCHEDULES) | set(metal_host.FAULT_KINDS)) - named
