"""The rows of a SQLite file read page by page, past its header, its trees and its log's end: for damaged files only.

    database file + frames of the write-ahead log -> images of pages -> cells of table leaves -> values

Nothing here is trusted: whatever does not parse is skipped, and what parses still has to meet its row's checksum. A
frame whose own checksum holds replaces its page; one that fails is looked at besides, as its other rows may be whole.
Format: sqlite.org/fileformat2.html, sections 1.5, 1.6, 2.1 and 4.1. Files are mapped, not read.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

PAGE = 4096
_FRAME_HEAD = 24
_LEAF = 0x0D
_FIRST_PAGE_HEAD = 100
MAX_CELL_BYTES = 64 << 20
Value = int | float | str | bytes | None
_INT_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


class Pages:
    """The pages of one database as its file and its log hold them."""

    def __init__(self, path: Path, page_bytes: int = PAGE) -> None:
        self._size = page_bytes
        self._file = _mapped(path)
        self._log = _mapped(path.with_name(f"{path.name}-wal"))
        self._newest: dict[int, int] = {}
        self._doubtful: list[tuple[int, int]] = []
        self._read_log()
        self.count = max([-(-len(self._file) // self._size), *self._newest])

    def page(self, number: int) -> bytes:
        """Its newest image; empty when there is none."""
        offset = self._newest.get(number)
        if offset is not None:
            return bytes(self._log[offset : offset + self._size])
        return bytes(self._file[(number - 1) * self._size : number * self._size]) if number > 0 else b""

    def rows(self) -> Iterator[tuple[int, tuple[Value, ...]]]:
        """(row id, values) of every cell that parses, doubtful frames last."""
        for number in range(1, self.count + 1):
            yield from self._cells(number, self.page(number))
        for number, offset in self._doubtful:
            yield from self._cells(number, bytes(self._log[offset : offset + self._size]))

    def _cells(self, number: int, image: bytes) -> Iterator[tuple[int, tuple[Value, ...]]]:
        head = _FIRST_PAGE_HEAD if number == 1 else 0
        if len(image) < head + 8 or image[head] != _LEAF:
            return
        image = image.ljust(self._size, b"\0")
        (count,) = struct.unpack_from(">H", image, head + 3)
        for index in range(min(count, (self._size - head - 8) // 2)):
            try:
                (at,) = struct.unpack_from(">H", image, head + 8 + 2 * index)
                yield self._cell(image, at)
            except (IndexError, ValueError, struct.error):
                continue

    def _cell(self, image: bytes, at: int) -> tuple[int, tuple[Value, ...]]:
        size, at = _varint(image, at)
        rowid, at = _varint(image, at)
        if size > MAX_CELL_BYTES:
            raise ValueError("longer than any row")
        most, least = self._size - 35, (self._size - 12) * 32 // 255 - 23
        local = size
        if size > most:
            local = least + (size - least) % (self._size - 4)
            local = local if local <= most else least
        payload = bytearray(image[at : at + local])
        if size > local:
            (following,) = struct.unpack_from(">I", image, at + local)
            self._follow(payload, following, size)
        if len(payload) != size:
            raise ValueError("cut short")
        return rowid, _record(bytes(payload))

    def _follow(self, payload: bytearray, following: int, size: int) -> None:
        while len(payload) < size and following:
            page = self.page(following)
            if len(page) < self._size:
                raise ValueError("an overflow page is missing")
            (following,) = struct.unpack_from(">I", page)
            payload += page[4 : 4 + size - len(payload)]

    def _read_log(self) -> None:
        """Frames of the log's present generation up to its last commit; see sqlite.org/walformat.html."""
        log, step = self._log, _FRAME_HEAD + self._size
        frames = range(32, len(log) - step + 1, step)
        if not frames:
            return
        order = "<" if struct.unpack_from(">I", log)[0] == 0x377F0682 else ">"
        salts = log[16:24]
        if struct.unpack_from(">II", log, 24) != _sum(log[:24], (0, 0), order):
            salts = log[frames[0] + 8 : frames[0] + 16]
        frames = range(32, 32 + step * self._generation(frames, salts), step)
        last = max((at for at in frames if log[at + 4 : at + 8] != b"\0\0\0\0"), default=-1)
        before = struct.unpack_from(">II", log, 24)
        for at in frames:
            if at > last:
                break
            number = struct.unpack_from(">I", log, at)[0]
            known = struct.unpack_from(">II", log, at + 16)
            start = _sum(log[at : at + 8], before, order)
            if _sum(log[at + _FRAME_HEAD : at + step], start, order) == known:
                self._newest[number] = at + _FRAME_HEAD
            else:
                self._doubtful.append((number, at + _FRAME_HEAD))
            before = known

    def _generation(self, frames: range, salts: bytes) -> int:
        """How many frames from the first on belong to it: older ones may follow, a damaged one may stand between."""
        own = [index for index, at in enumerate(frames) if self._log[at + 8 : at + 16] == salts]
        return own[-1] + 1 if own else 0


def _sum(body: bytes, start: tuple[int, ...], order: str) -> tuple[int, int]:
    first, second = start
    for even, odd in struct.iter_unpack(f"{order}II", body):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def _varint(image: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(8):
        byte = image[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return value << 8 | image[at + 8], at + 9


def _record(payload: bytes) -> tuple[Value, ...]:
    head, at = _varint(payload, 0)
    kinds = []
    while at < head:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    if at != head:
        raise ValueError("the record's head does not end where it says")
    values: list[Value] = []
    for kind in kinds:
        value, at = _value(payload, at, kind)
        values.append(value)
    if at != len(payload):
        raise ValueError("the record does not end where its cell does")
    return tuple(values)


def _value(payload: bytes, at: int, kind: int) -> tuple[Value, int]:
    if kind in (0, 8, 9):
        return (None, 0, 1)[max(kind - 7, 0)], at
    if kind == 7:
        return struct.unpack_from(">d", payload, at)[0], at + 8
    if kind in _INT_BYTES:
        end = at + _INT_BYTES[kind]
        return int.from_bytes(payload[at:end], "big", signed=True), end
    if kind < 12:
        raise ValueError("no such type")
    end = at + (kind - 12) // 2
    return (payload[at:end].decode() if kind % 2 else payload[at:end]), end


def _mapped(path: Path) -> bytes | mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (FileNotFoundError, ValueError):
        return b""  # no file, or an empty one
