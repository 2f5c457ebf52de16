"""Gated DeltaNet layers for PyTorch on Apple GPUs.

Importing this package registers ``torch.ops.mps_fusion``. ``ops`` has the ops as typed functions,
``models`` the layer as a module, ``metal_host`` runs Metal shaders without a Mac.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

try:
    from . import ops
    from .ops import VARIANTS, Support, supports
except ImportError as error:
    # metal_host is usable where torch or the extension is missing; all else says what is missing.
    _import_error: ImportError | None = error
else:
    _import_error = None

_ON_USE = (
    "device",
    "host_kernels",
    "metal_host",
    "models",
    "packing",
    "plan",
    "reference",
    "state",
    "tolerances",
)

__all__ = ["Support", "VARIANTS", "__version__", "ops", "supports"]


def __getattr__(name: str) -> Any:
    if name in _ON_USE:
        return importlib.import_module(f"{__name__}.{name}")
    if name in __all__ and _import_error is not None:
        raise ImportError(
            f"torch_mps_fusion.{name} needs torch and the built extension: {_import_error}"
        ) from _import_error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
