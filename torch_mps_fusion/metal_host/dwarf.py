"""Line tables (DWARF 4) of an ELF library: which place in the text an address came from.

A reader of its own, because the compiler that comes with pip brings no symbolizer.
"""

from __future__ import annotations

import bisect
import posixpath
import struct
from pathlib import Path

from .errors import Location


class LineTable:
    """Addresses to places. Empty (every look-up is None) if the file has no such table."""

    def __init__(self, path: Path):
        rows: list[tuple[int, Location | None]] = []
        data = path.read_bytes()
        section = _section(data, b".debug_line")
        at = 0
        while section is not None and at < len(section):
            at = _unit(section, at, rows)
        rows.sort(key=lambda row: row[0])
        self._addresses = [address for address, _ in rows]
        self._places = [place for _, place in rows]

    def find(self, address: int) -> Location | None:
        i = bisect.bisect_right(self._addresses, address) - 1
        return self._places[i] if i >= 0 else None


def _section(data: bytes, wanted: bytes) -> bytes | None:
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    table = struct.unpack_from("<Q", data, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)

    def header(i: int) -> tuple[int, int, int]:
        name, _, _, _, offset, length = struct.unpack_from("<IIQQQQ", data, table + i * size)
        return name, offset, length

    strings = header(names)[1]
    for i in range(count):
        name, offset, length = header(i)
        end = data.index(b"\0", strings + name)
        if data[strings + name : end] == wanted:
            return data[offset : offset + length]
    return None


class _Reader:
    def __init__(self, data: bytes, at: int):
        self.data, self.at = data, at

    def take(self, form: str) -> int:
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize("<" + form)
        return value

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.take("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def sleb(self) -> int:
        start = self.at
        value = self.uleb()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) & 1 else value

    def string(self) -> str:
        end = self.data.index(b"\0", self.at)
        text = self.data[self.at : end].decode(errors="replace")
        self.at = end + 1
        return text


def _unit(section: bytes, at: int, rows: list[tuple[int, Location | None]]) -> int:
    r = _Reader(section, at)
    length = r.take("I")
    end = r.at + length
    version = r.take("H")
    if length == 0xFFFFFFFF or version not in (2, 3, 4):
        return end
    program = r.take("I") + r.at
    step, _ops = r.take("B"), r.take("B") if version >= 4 else 1
    r.take("B")  # default_is_stmt
    line_base, line_range, opcode_base = r.take("b"), r.take("B"), r.take("B")
    lengths = [r.take("B") for _ in range(opcode_base - 1)]
    folders = [""]  # the first is where the compiler ran: names below it stay as they were given
    while folder := r.string():
        folders.append(folder)
    files = [""]
    while name := r.string():
        where = r.uleb()
        files.append(posixpath.join(folders[where] if where < len(folders) else "", name))
        r.uleb(), r.uleb()
    r.at = program
    _run(r, end, rows, files, step, line_base, line_range, opcode_base, lengths)
    return end


def _run(
    r: _Reader,
    end: int,
    rows: list[tuple[int, Location | None]],
    files: list[str],
    step: int,
    line_base: int,
    line_range: int,
    opcode_base: int,
    lengths: list[int],
) -> None:
    address, file, line, known = 0, 1, 1, 0

    def emit() -> None:
        nonlocal known
        # Line 0 is code of no line of its own: it belongs to the one before.
        known = line or known
        name = files[file] if file < len(files) else ""
        rows.append((address, Location(name, known) if known else None))

    while r.at < end:
        op = r.take("B")
        if op >= opcode_base:
            address += (op - opcode_base) // line_range * step
            line += line_base + (op - opcode_base) % line_range
            emit()
        elif op == 0:
            length = r.uleb()
            after = r.at + length
            sub = r.take("B")
            if sub == 1:  # end of a sequence
                rows.append((address, None))
                address, file, line, known = 0, 1, 1, 0
            elif sub == 2:
                address = r.take("Q")
            r.at = after
        elif op == 1:
            emit()
        elif op == 2:
            address += r.uleb() * step
        elif op == 3:
            line += r.sleb()
        elif op == 4:
            file = r.uleb()
        elif op == 8:
            address += (255 - opcode_base) // line_range * step
        elif op == 9:
            address += r.take("H")
        else:
            for _ in range(lengths[op - 1]):
                r.uleb()
