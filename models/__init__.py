"""Qwen GDN layers from their checkpoints: config, weights, module."""

from torch_mps_fusion.models.checkpoint import CheckpointError
from torch_mps_fusion.models.config import KNOWN_SHAPES, ConfigError, GDNConfig
from torch_mps_fusion.models.layer import GatedDeltaNet
from torch_mps_fusion.models.loader import load_layer
from torch_mps_fusion.models.writer import write_model

__all__ = [
    "KNOWN_SHAPES",
    "CheckpointError",
    "ConfigError",
    "GDNConfig",
    "GatedDeltaNet",
    "load_layer",
    "write_model",
]
