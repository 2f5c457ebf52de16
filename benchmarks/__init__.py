"""Timings with a correctness gate: ``python -m benchmarks --help``."""
