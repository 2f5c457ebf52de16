"""The structures of runtime/abi.h, for ctypes."""

from __future__ import annotations

import ctypes as C
from typing import Any

U32, U64 = C.c_uint32, C.c_uint64
VERSION = 2


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class Options(C.Structure):
    _fields_ = [
        ("seed", U64),
        *_fields(
            U32, "policy order residency preempt stale lost lost_within threads check spin_limit"
        ),
        *_fields(U32, "time_limit_ms threadgroup_limit stack_kb allow_simdgroup_spin"),
        ("allow_inactive_lanes", U32),
    ]


class Buffer(C.Structure):
    _fields_ = [("data", C.c_void_p), ("bytes", U64), ("name", C.c_char_p), ("poison", U32)]


class Launch(C.Structure):
    _fields_ = [
        ("entry", C.c_void_p),
        ("code", C.c_void_p),
        ("grid", U32 * 3),
        ("group", U32 * 3),
        ("threads", U32 * 3),
        ("buffer_count", U32),
        ("buffers", C.POINTER(Buffer)),
        ("local_count", U32),
        ("local_bytes", C.POINTER(U32)),
        ("options", Options),
    ]


class Counts(C.Structure):
    _fields_ = [
        *_fields(U64, "trace switches barriers simd_barriers simd_ops atomics fences spins"),
        *_fields(U64, "accesses threadgroup_bytes threadgroup_read threadgroup_written"),
        *_fields(U64, "started finished lost"),
    ]


class BufferCounts(C.Structure):
    _fields_ = _fields(U64, "read written read_distinct written_distinct atomics")
