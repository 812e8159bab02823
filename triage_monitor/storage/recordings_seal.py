"""What guards a recorded part against damage: a seal over its schema, and a digest of all its bytes.

A flipped bit in a column's name, a setting or a row count would read as another recording, not as a broken one; one in
a page's header or in the footer as other values, or it ends the process inside Parquet's reader. So the digest is
compared before that reader sees the file. It stands in the footer, where its own digits count as dots, and is found
there without reading Parquet. Parts of other writers, and those from before there was a digest, have what they have.
"""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from triage_monitor.errors import InputError

SEAL = b"triage_seal"
DIGEST = b"triage_digest"
_NOT_SEALED = frozenset({SEAL, DIGEST, b"ARROW:schema"})
_DIGITS = 32
UNKNOWN_DIGEST = f"blake2b-{'.' * _DIGITS}"
# Between a name and its value Thrift writes a type and a length.
_PLACE = re.compile(DIGEST + rb".{1,8}?blake2b-([0-9a-f]{32}|\.{32})", re.DOTALL)
_FOOTER_BYTES = 16 << 20  # a larger footer has ten thousands of row groups
_PIECE_BYTES = 1 << 20


def sealed(schema: pa.Schema, rows: int) -> pa.Schema:
    return schema.with_metadata({**(schema.metadata or {}), SEAL: _seal(schema, rows)})


def seal_holds(schema: pa.Schema, rows: int) -> bool:
    stored = (schema.metadata or {}).get(SEAL)
    return stored is None or stored == _seal(schema, rows)


def _seal(schema: pa.Schema, rows: int) -> bytes:
    columns = list(schema.names)
    settings = sorted((name, value) for name, value in (schema.metadata or {}).items() if name not in _NOT_SEALED)
    return blake2b(repr((columns, settings, rows)).encode(), digest_size=16).hexdigest().encode()


def write_digest(file: BinaryIO) -> None:
    """Fills in UNKNOWN_DIGEST, which a whole file that can be read and written holds under DIGEST."""
    found = _digest_place(file)
    assert found is not None, "the writer was not given the digest's place"
    digits = _digest(file, found[0])
    file.seek(found[0])
    file.write(digits)


def refuse_damaged(path: Path) -> None:
    """Raises InputError when a file's bytes are not those that its digest was taken of."""
    with path.open("rb") as file:
        found = _digest_place(file)
        if found is not None and found[1] != _digest(file, found[0]):
            raise InputError("damaged_file", "is damaged: its bytes do not match its digest", path=str(path))


def _digest_place(file: BinaryIO) -> tuple[int, bytes] | None:
    """Where the last digest's digits begin, and what they are."""
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - _FOOTER_BYTES)
    file.seek(start)
    *_, found = (None, *_PLACE.finditer(file.read()))
    return None if found is None else (start + found.start(1), found[1])


def _digest(file: BinaryIO, place: int) -> bytes:
    """Of the whole file, with dots for the digits at `place`."""
    state = blake2b(digest_size=_DIGITS // 2)
    file.seek(0)
    begin = 0
    while piece := bytearray(file.read(_PIECE_BYTES)):
        first, last = max(place - begin, 0), min(place + _DIGITS - begin, len(piece))
        if first < last:
            piece[first:last] = b"." * (last - first)
        state.update(piece)
        begin += len(piece)
    return state.hexdigest().encode()
