"""The README's example of transformers, run as it stands."""

import re
from pathlib import Path

import torch
from small_models import make

from torch_mps_fusion.integrations.transformers import fused_layers

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_example(tmp_path, monkeypatch):
    section = re.search(r"## Use it from transformers\n(.*?)\n## ", README, re.S)[1]
    [code] = re.findall(r"```python\n(.*?)```", section, re.S)
    model = make("qwen3_5", torch.bfloat16)
    model.save_pretrained(tmp_path / "model_dir")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["tokens"].shape == (1, 11) and not fused_layers(names["model"])
    assert type(names["model"]) is type(model)
