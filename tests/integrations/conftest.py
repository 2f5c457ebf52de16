"""Small seeded models of each family, and the comparison of two ways to run one."""

import warnings

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is a test extra")
