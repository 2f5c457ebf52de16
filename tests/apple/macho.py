"""Reads what the checks need of arm64 Mach-O files: symbols, libraries, Objective-C protocols."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

CPU_ARM64 = 0x0100000C
LC_SYMTAB, LC_SEGMENT_64, LC_CHAINED_FIXUPS = 0x2, 0x19, 0x80000034
LC_DYLIBS = (0xC, 0x80000018, 0x8000001F)  # load, load weak, re-export
N_STAB, N_TYPE, N_EXT = 0xE0, 0x0E, 0x01


@dataclass
class Protocol:
    """Names of inherited protocols; type encoding by "+selector" or "-selector"."""

    inherited: list[str]
    methods: dict[str, str] = field(default_factory=dict)


class MachO:
    """An arm64 image. `libraries` are the install names it loads; `exports` what it defines for
    others; `imports` the install name each undefined symbol is bound to ("" if to none)."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.data = _arm64_slice(self.path.read_bytes())
        self.libraries: list[str] = []
        self.exports: set[str] = set()
        self.imports: dict[str, str] = {}
        self.sections: dict[str, tuple[int, int]] = {}  # name: address, size
        self._segments: list[tuple[int, int, int]] = []  # address, file offset, file size
        self._chained = False
        symtab = None
        for command, at in self._commands():
            if command == LC_SEGMENT_64:
                self._segment(at)
            elif command in LC_DYLIBS:
                self.libraries.append(
                    self._text(at + struct.unpack_from("<I", self.data, at + 8)[0])
                )
            elif command == LC_SYMTAB:
                symtab = struct.unpack_from("<4I", self.data, at + 8)
            elif command == LC_CHAINED_FIXUPS:
                self._chained = True
        if symtab is not None:
            self._symbols(*symtab)

    def _commands(self) -> list[tuple[int, int]]:
        count = struct.unpack_from("<I", self.data, 16)[0]
        found, at = [], 32
        for _ in range(count):
            command, size = struct.unpack_from("<II", self.data, at)
            found.append((command, at))
            at += size
        return found

    def _segment(self, at: int) -> None:
        address, _, offset, size, _, _, sections = struct.unpack_from(
            "<QQQQiiI", self.data, at + 24
        )
        self._segments.append((address, offset, size))
        for i in range(sections):
            p = at + 72 + 80 * i
            name = self.data[p : p + 16].split(b"\0")[0].decode()
            self.sections.setdefault(name, struct.unpack_from("<QQ", self.data, p + 32))

    def _symbols(self, offset: int, count: int, strings: int, _size: int) -> None:
        for strx, kind, _, desc, _ in struct.iter_unpack(
            "<IBBHQ", self.data[offset : offset + 16 * count]
        ):
            if kind & N_STAB or not kind & N_EXT:
                continue
            name = self._text(strings + strx)
            if kind & N_TYPE:
                self.exports.add(name)
            else:
                ordinal = desc >> 8
                known = 1 <= ordinal <= len(self.libraries)
                self.imports[name] = self.libraries[ordinal - 1] if known else ""

    def _text(self, offset: int) -> str:
        return self.data[offset : self.data.index(b"\0", offset)].decode()

    # ---- data by address

    def _offset(self, address: int) -> int:
        for start, offset, size in self._segments:
            if start <= address < start + size:
                return offset + address - start
        raise KeyError(hex(address))

    def _pointer(self, address: int) -> int:
        value = struct.unpack_from("<Q", self.data, self._offset(address))[0]
        if not self._chained:
            return value
        if value >> 63:
            return 0  # bound to another image
        value &= 0xFFFFFFFFF
        base = min(start for start, _, size in self._segments if size)
        return value + base if value and value < base else value

    def _string_at(self, address: int) -> str:
        return self._text(self._offset(address))

    def _methods(self, address: int) -> list[tuple[str, str]]:
        """Selector and type encoding of each entry of a method list, in both of its layouts."""
        if not address:
            return []
        entry, count = struct.unpack_from("<II", self.data, self._offset(address))
        found = []
        for i in range(count):
            if entry & 0x80000000:  # offsets relative to their own place
                p = address + 8 + 12 * i
                name, types, _ = struct.unpack_from("<iii", self.data, self._offset(p))
                selector = self._string_at(self._pointer(p + name))
                found.append((selector, self._string_at(p + 4 + types)))
            else:
                p = address + 8 + (entry & 0xFFFC) * i
                selector, types = self._pointer(p), self._pointer(p + 8)
                found.append((self._string_at(selector), self._string_at(types)))
        return found

    def protocols(self) -> dict[str, Protocol]:
        """Every protocol that the image describes, by name."""
        start, size = self.sections["__objc_protolist"]
        found = {}
        for i in range(size // 8):
            p = self._pointer(start + 8 * i)
            inherited, several = [], self._pointer(p + 16)
            if several:
                count = struct.unpack_from("<Q", self.data, self._offset(several))[0]
                ancestors = [self._pointer(several + 8 + 8 * k) for k in range(count)]
                inherited = [self._string_at(self._pointer(a + 8)) for a in ancestors if a]
            methods = {
                sign + selector: types
                for k, sign in enumerate("-+-+")
                for selector, types in self._methods(self._pointer(p + 24 + 8 * k))
            }
            found[self._string_at(self._pointer(p + 8))] = Protocol(inherited, methods)
        return found

    def classes(self) -> dict[str, dict[str, str]]:
        """Type encoding by "+selector" or "-selector" of every class that the image implements."""
        start, size = self.sections["__objc_classlist"]
        found = {}
        for i in range(size // 8):
            instance = self._pointer(start + 8 * i)
            methods = {}
            for sign, described in (("-", instance), ("+", self._pointer(instance))):
                data = self._pointer(described + 32) & ~7
                name = self._string_at(self._pointer(data + 24))
                for selector, types in self._methods(self._pointer(data + 32)):
                    methods[sign + selector] = types
            found[name] = methods
        return found

    def strings(self, section: str) -> set[str]:
        """The strings of a section of C strings."""
        start, size = self.sections[section]
        at = self._offset(start)
        return {s.decode(errors="replace") for s in self.data[at : at + size].split(b"\0")}


def _arm64_slice(data: bytes) -> bytes:
    magic = struct.unpack_from(">I", data)[0]
    if magic != 0xCAFEBABE:
        return data
    for i in range(struct.unpack_from(">I", data, 4)[0]):
        cpu, _, offset, size, _ = struct.unpack_from(">iiIII", data, 8 + 20 * i)
        if cpu == CPU_ARM64:
            return data[offset : offset + size]
    raise ValueError("no arm64 slice")
