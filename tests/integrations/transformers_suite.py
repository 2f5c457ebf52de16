"""transformers' own common model tests on small GDN models, as they are or fused, in one process.

    python tests/integrations/transformers_suite.py TESTS_FOLDER qwen3_5 [--fused] [-k NAME]

TESTS_FOLDER is the folder ``tests`` of transformers' sdist. Prints one JSON object: for each test
its outcome, the reason of a skip or failure, and what the GDN layers ran. The process is the
suite's alone: it patches classes of transformers, and so do the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
import types
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is downloaded

import small_models
import torch
import transformers

from torch_mps_fusion.integrations import gdn_forward
from torch_mps_fusion.integrations.transformers import fuse, gdn_layers

PACKAGE = "transformers_suite_tests"
# Modules that the common tests import and the sdist does not have, and the mixin of each.
ABSENT = {
    "exporters.test_export": "ExportTesterMixin",
    "generation.test_utils": "GenerationTesterMixin",
}
TEXT = {
    **small_models.TEXT,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 37,
}
FAMILIES = {
    "qwen3_5": (
        transformers.Qwen3_5TextConfig,
        TEXT,
        transformers.Qwen3_5TextModel,
        transformers.Qwen3_5ForCausalLM,
        transformers.Qwen3_5TextForSequenceClassification,
    ),
    "qwen3_5_moe": (
        transformers.Qwen3_5MoeTextConfig,
        {**TEXT, **small_models.MOE},
        transformers.Qwen3_5MoeTextModel,
        transformers.Qwen3_5MoeForCausalLM,
    ),
    "qwen3_next": (
        transformers.Qwen3NextConfig,
        {**TEXT, **small_models.MOE},
        transformers.Qwen3NextModel,
        transformers.Qwen3NextForCausalLM,
        transformers.Qwen3NextForSequenceClassification,
        transformers.Qwen3NextForTokenClassification,
        transformers.Qwen3NextForQuestionAnswering,
    ),
}


class ModelTester:
    """What the common tests ask of a model: its classes, a small config, a batch."""

    batch_size, seq_length = 7, 9
    is_training = True

    def __init__(self, family: str) -> None:
        self.config_class, self.settings, *classes = FAMILIES[family]
        self.classes = tuple(classes)
        self.base_model_class, self.causal_lm_class = classes[:2]
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
            setattr(self, name, self.settings[name])

    def get_config(self) -> Any:
        return self.config_class(**self.settings)

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, torch.Tensor]]:
        shape = self.batch_size, self.seq_length
        inputs = {
            "input_ids": torch.randint(2, self.settings["vocab_size"], shape),
            "attention_mask": torch.ones(shape, dtype=torch.long),
        }
        return self.get_config(), inputs


class Layers:
    """Counts what the GDN layers of this process run, and fuses every model if asked to."""

    def __init__(self, family: str) -> None:
        self.counts: Counter[str] = Counter()
        self.base: Any = FAMILIES[family][2].__mro__[1]  # the family's PreTrainedModel
        self._count_own_forwards(family)

    def _count_own_forwards(self, family: str) -> None:
        config, settings, model, *_ = FAMILIES[family]
        with torch.device("meta"):
            kinds = {type(layer) for _, layer in gdn_layers(model(config(**settings)))}
        for kind in kinds:
            kind.forward = self._counted(kind.forward, lambda *_: "transformers")

    def _counted(self, function: Any, key: Any) -> Any:
        def counted(*args: Any, **keywords: Any) -> Any:
            self.counts[key(*args)] += 1
            return function(*args, **keywords)

        return counted

    def fuse_every_model(self) -> None:
        """Where the weights are there: after their initialisation, or after loading."""
        for name in ("gdn_layer", "gdn_layer_"):
            op = getattr(torch.ops.mps_fusion, name)
            setattr(torch.ops.mps_fusion, name, self._counted(op, lambda *_: "ops"))
        gdn_forward.warn_once = self._counted(
            gdn_forward.warn_once, lambda _, __, reason: f"fallback: {reason}"
        )
        self._fuse_after_initialisation()
        self._fuse_after_loading()

    def _fuse_after_initialisation(self) -> None:
        original = self.base.init_weights

        def init_weights(model: Any) -> None:
            original(model)
            self._fuse(model)

        self.base.init_weights = init_weights

    def _fuse_after_loading(self) -> None:
        original = self.base.from_pretrained.__func__

        def from_pretrained(cls: Any, *args: Any, **keywords: Any) -> Any:
            loaded = original(cls, *args, **keywords)
            self._fuse(loaded[0] if isinstance(loaded, tuple) else loaded)
            return loaded

        self.base.from_pretrained = classmethod(from_pretrained)

    def _fuse(self, model: Any) -> None:
        layers = [layer for _, layer in gdn_layers(model)]
        # Without storage nothing can run: ``from_pretrained`` fills such a model, then fuses it.
        if layers and not any(p.is_meta for layer in layers for p in layer.parameters()):
            fuse(model)
            self.counts["fused models"] += 1


class Outcomes(unittest.TestResult):
    """The outcome of each test by its name, with the counts of the GDN layers in it."""

    def __init__(self, layers: Layers) -> None:
        super().__init__()
        self.layers = layers
        self.found: dict[str, dict[str, Any]] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.layers.counts.clear()
        self.found[self._name(test)] = {"outcome": "passed"}

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self.found[self._name(test)]["layers"] = dict(self.layers.counts)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._set(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._set(test, "failed", _last(self._exc_info_to_string(err, test)))

    addError = addFailure

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.addFailure(test, err)

    def _set(self, test: unittest.TestCase, outcome: str, reason: str) -> None:
        # A skip of one of several subtests hides no failure of another.
        if self.found[self._name(test)]["outcome"] != "failed":
            self.found[self._name(test)].update(outcome=outcome, reason=reason)

    @staticmethod
    def _name(test: Any) -> str:
        return getattr(test, "test_case", test)._testMethodName


def _last(trace: str) -> str:
    """The end of a traceback: where it was raised and the message."""
    return "\n".join(trace.strip().splitlines()[-12:])[-1500:]


def load(folder: Path) -> tuple[Any, Any]:
    """The modules of the common and of the training tests, in a package of their own name."""
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(folder)]
    sys.modules[PACKAGE] = package
    for path, mixin in ABSENT.items():
        parent, name = path.split(".")
        for full in (f"{PACKAGE}.{parent}", f"{PACKAGE}.{path}"):
            sys.modules[full] = types.ModuleType(full)
        setattr(sys.modules[f"{PACKAGE}.{path}"], mixin, type(mixin, (), {}))
    common = importlib.import_module(f"{PACKAGE}.test_modeling_common")
    return common, importlib.import_module(f"{PACKAGE}.test_training_mixin")


def suite_class(family: str, common: Any, training: Any) -> type[unittest.TestCase]:
    class Suite(common.ModelTesterMixin, training.TrainingTesterMixin, unittest.TestCase):
        model_tester = ModelTester(family)
        all_model_classes = model_tester.classes

        def setUp(self) -> None:
            transformers.set_seed(0)
            common.global_rng.seed(0)

    return Suite


def run(folder: Path, family: str, fused: bool, only: str = "") -> dict[str, dict[str, Any]]:
    suite = suite_class(family, *load(folder))
    layers = Layers(family)
    if fused:
        layers.fuse_every_model()
    outcomes = Outcomes(layers)
    for name in unittest.TestLoader().getTestCaseNames(suite):
        if only in name:
            suite(name).run(outcomes)
    return outcomes.found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tests_folder", type=Path)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("-k", default="", metavar="NAME", help="a part of the tests' names")
    args = parser.parse_args()
    with contextlib.redirect_stdout(io.StringIO()):
        found = run(args.tests_folder, args.family, args.fused, args.k)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
