"""Record <-> the plain values of one stored row, with a checksum over all of them.

JSON columns are strict (NaN refused). The checksum is 64 bits of
BLAKE2b over every column, tagged by type: it detects damage, it is no signature.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import fields
from hashlib import blake2b
from typing import Any, TypeVar

from triage_monitor.errors import StoreCorrupt
from triage_monitor.storage.records import BESIDE, KINDS, Record

R = TypeVar("R", bound=Record)
Cell = int | float | str | bytes | None


_TYPES = {kind: tuple(str(item.type).removesuffix(" | None") for item in fields(kind)) for kind in (*KINDS, *BESIDE)}
_INT64 = range(-(2**63), 2**63)


def encode_row(record: Record) -> tuple[Cell, ...]:
    """Column values in the record's order, checksum last."""
    kinds = _TYPES[type(record)]
    cells = [_cell(kind, getattr(record, name)) for kind, name in zip(kinds, record.columns(), strict=True)]
    return (*cells, checksum(cells))


def decode_row(kind: type[R], row: Sequence[Cell]) -> R:
    """The record, or StoreCorrupt when the checksum does not hold."""
    *cells, stored = row
    if checksum(cells) != stored:
        raise StoreCorrupt(f"a row of table '{kind.TABLE}' does not match its checksum")
    return kind(*(_value(of, cell) for of, cell in zip(_TYPES[kind], cells, strict=True)))


def checksum(cells: Iterable[Cell]) -> bytes:
    parts: list[bytes] = []
    for cell in cells:
        if isinstance(cell, bytes):
            tag, body = b"b", cell
        elif isinstance(cell, str):
            tag, body = b"s", cell.encode()
        elif isinstance(cell, float):
            tag, body = b"f", struct.pack("<d", cell)
        else:
            tag, body = b"i", str(cell).encode()
        parts += (b"%c%d:" % (tag, len(body)), body)
    return blake2b(b"".join(parts), digest_size=8).digest()


def _cell(kind: str, value: Any) -> Cell:
    if value is None:
        return None
    if kind.startswith("dict"):
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    if kind == "float":
        return float(value)
    if kind == "bool":
        return int(value)
    if kind == "int" and value not in _INT64:
        raise ValueError(f"{value} does not fit 64 bits")
    cell: Cell = value
    return cell


def _value(kind: str, cell: Cell) -> Any:
    if cell is None:
        return None
    if kind.startswith("dict"):
        return json.loads(str(cell))
    return bool(cell) if kind == "bool" else cell
