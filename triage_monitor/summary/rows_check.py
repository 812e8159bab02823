"""Looks at the frame of an Arrow IPC stream before Arrow does: complete, plain, and no larger than promised.

A stream is a schema message, record batches and an end marker. Arrow's reader takes a stream that stops between two
batches for a finished one, and allocates what a compressed buffer says it will expand to; here both are read from the
message headers (the flatbuffers of Arrow's Message.fbs) without touching the data. Nothing in the bytes is trusted:
every read is bounds-checked, and what does not parse is refused. What a sender can have many of at no cost to itself
(batches, rows without tokens, columns) is bounded too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from triage_monitor.errors import InputError

END_MARKER = b"\xff\xff\xff\xff\x00\x00\x00\x00"
SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3
# Two float64 log-probs, a mask, a float64 advantage and an int64 version are 33 bytes a position.
BYTES_PER_TOKEN, BYTES_PER_ROW, BYTES_FREE = 40, 1024, 1 << 20
MAX_ROWS, MAX_BATCHES, MAX_SCHEMA_BYTES = 1 << 20, 1 << 14, 1 << 20


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the schema message ends and what the batches declare; `inflated` is the size of what is compressed, once
    it is not."""

    schema_end: int
    rows: int
    batches: int
    inflated: int = 0


@dataclass(frozen=True, slots=True)
class _Message:
    kind: int
    header: _Table
    body_start: int
    body_length: int


def check_frame(body: memoryview, *, max_tokens: int | None, plain: bool = True) -> Frame:
    """Raises InputError for a stream that is cut or declares too many positions; `plain` refuses dictionaries."""
    if len(body) == 0:
        raise InputError("empty_body", "the body is empty; an Arrow IPC stream was expected")
    schema_end, rows, tokens, batches, expanded, inflated = 0, 0, 0, 0, 0, 0
    try:
        for end, message in _messages(body):
            if schema_end == 0:
                if message.kind != SCHEMA:
                    raise InputError("damaged_stream", "the Arrow stream does not begin with a schema")
                schema_end = end
                if max_tokens is not None and end > MAX_SCHEMA_BYTES:
                    raise InputError("too_large", f"has a schema of {end} bytes; at most {MAX_SCHEMA_BYTES} are taken")
                continue
            if message.kind == DICTIONARY_BATCH and not plain:
                continue
            if message.kind != RECORD_BATCH:
                raise InputError("dictionary", "the Arrow stream holds dictionaries; send plain columns")
            batch_rows, longest, size, more = _batch_sizes(body, message)
            rows, tokens, batches = rows + batch_rows, tokens + longest, batches + 1
            expanded, inflated = expanded + size, inflated + more
            if max_tokens is not None:
                _check_counts(rows, batches)
                _check_size(rows, tokens, expanded, max_tokens)
    except (struct.error, OverflowError) as error:
        raise InputError("damaged_stream", "the Arrow stream is damaged: a message header does not parse") from error
    if schema_end == 0:
        raise InputError("damaged_stream", "the Arrow stream holds no schema")
    return Frame(schema_end, rows, batches, inflated)


def _check_counts(rows: int, batches: int) -> None:
    for what, count, limit in (("rows", rows, MAX_ROWS), ("batches", batches, MAX_BATCHES)):
        if count > limit:
            raise InputError("too_large", f"holds {count} {what}; one body may hold {limit}")


def _check_size(rows: int, tokens: int, expanded: int, max_tokens: int) -> None:
    if max(rows, tokens) > max_tokens:
        raise InputError("too_large", f"declares {max(rows, tokens)} positions; one body may hold {max_tokens}")
    if expanded > BYTES_PER_TOKEN * tokens + BYTES_PER_ROW * rows + BYTES_FREE:
        raise InputError("too_large", f"expands to {expanded} bytes; too many for {tokens} positions")


def _messages(body: memoryview) -> Iterator[tuple[int, _Message]]:
    position = 0
    while True:
        if body[position : position + 8] == END_MARKER:
            if position + 8 != len(body):
                raise InputError("damaged_stream", "bytes follow the end of the Arrow stream")
            return
        if position + 8 > len(body):
            raise InputError("truncated_stream", f"the Arrow stream stops at byte {len(body)} without its end marker")
        marker, size = struct.unpack_from("<Ii", body, position)
        if marker != 0xFFFFFFFF or size <= 0 or size % 8:
            raise InputError("damaged_stream", f"no Arrow message begins at byte {position}")
        start = position + 8 + size
        if start > len(body):
            raise InputError("truncated_stream", f"the Arrow stream stops at byte {len(body)}, inside a message")
        root = _root(body[position + 8 : start])
        length = root.scalar(3, "<q", 0)
        header = root.table(2)
        if length < 0 or length % 8 or header is None:
            raise InputError("damaged_stream", f"the Arrow message at byte {position} has no sound header")
        if start + length > len(body):
            raise InputError("truncated_stream", f"the Arrow stream stops at byte {len(body)}, inside a batch")
        position = start + length
        yield position, _Message(root.scalar(1, "<B", 0), header, start, length)


def _batch_sizes(body: memoryview, message: _Message) -> tuple[int, int, int, int]:
    """Rows, entries of the longest field, bytes once decompressed, and how many of these are not in the body as they
    are."""
    rows = message.header.scalar(0, "<q", 0)
    lengths = [length for length, _ in message.header.structs(1)]
    buffers = message.header.structs(2)
    if rows < 0 or any(length < 0 for length in lengths):
        raise InputError("damaged_stream", "a batch declares a negative length")
    compressed = message.header.table(3) is not None
    size, inflated = 0, 0
    for offset, length in buffers:
        if offset < 0 or length < 0 or offset + length > message.body_length:
            raise InputError("damaged_stream", "a buffer lies outside its batch")
        declared = length
        if compressed and length >= 8:
            (declared,) = struct.unpack_from("<q", body, message.body_start + offset)
        if declared < -1:
            raise InputError("damaged_stream", "a compressed buffer declares a negative size")
        size += length if declared == -1 else declared
        inflated += declared if compressed and declared != -1 else 0
    return rows, max([rows, *lengths]), size, inflated


class _Table:
    """A flatbuffer table: fields by number, every access inside `buffer`."""

    __slots__ = ("buffer", "position", "vtable", "vtable_size")

    def __init__(self, buffer: memoryview, position: int) -> None:
        self.buffer = buffer
        self.position = position
        self.vtable = position - _read(buffer, "<i", position)
        self.vtable_size = _read(buffer, "<H", self.vtable)

    def _field(self, number: int) -> int | None:
        slot = 4 + 2 * number
        if slot + 2 > self.vtable_size:
            return None
        offset = _read(self.buffer, "<H", self.vtable + slot)
        return self.position + offset if offset else None

    def scalar(self, number: int, code: str, default: int) -> int:
        at = self._field(number)
        return default if at is None else _read(self.buffer, code, at)

    def table(self, number: int) -> _Table | None:
        at = self._field(number)
        return None if at is None else _Table(self.buffer, at + _read(self.buffer, "<I", at))

    def structs(self, number: int) -> list[tuple[int, int]]:
        """A vector of two-word structs (FieldNode and Buffer both are)."""
        at = self._field(number)
        if at is None:
            return []
        start = at + _read(self.buffer, "<I", at)
        count = _read(self.buffer, "<I", start)
        if start + 4 + 16 * count > len(self.buffer):
            raise struct.error("vector outside its message")
        return list(struct.iter_unpack("<qq", self.buffer[start + 4 : start + 4 + 16 * count]))


def _root(buffer: memoryview) -> _Table:
    return _Table(buffer, _read(buffer, "<I", 0))


def _read(buffer: memoryview, code: str, at: int) -> int:
    """One number; a negative place, which struct would count from the end, is damage too."""
    if at < 0:
        raise struct.error("place before the message")
    value: int = struct.unpack_from(code, buffer, at)[0]
    return value
