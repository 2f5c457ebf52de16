"""Gated DeltaNet layers for PyTorch on Apple GPUs."""
