"""Symptoms <-> bytes: `TSYM`, a version, a CRC-32, then zlib-compressed JSON of what is not zero; some kilobytes.

Only what this package wrote is read back: anything else, of another version too, is refused as InputError. A store
without readable symptoms only lacks named causes, never a verdict.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from triage_monitor.errors import InputError
from triage_monitor.summary.cells import Cells
from triage_monitor.summary.objective import SUMS
from triage_monitor.summary.rows_values import SETTING_NAMES
from triage_monitor.summary.symptoms import (
    BITMAPS,
    CLASSES,
    COUNT_INDEX,
    COUNT_NAMES,
    ENGINE_BINS,
    GAP_BINS,
    GAP_ROWS,
    MAX_EXAMPLES,
    MAX_VALUES,
    WORDS,
    Symptoms,
)

MAGIC, VERSION = b"TSYM", 1
_HEAD = struct.Struct("<4sHI")
MAX_DECODED_BYTES = 4 << 20
_EXAMPLES = frozenset({*CLASSES, *(f"{name}@engine" for name in CLASSES)})


def encode_symptoms(symptoms: Symptoms) -> bytes:
    document = {
        "counts": {name: int(value) for name, value in zip(COUNT_NAMES, symptoms.counts, strict=True) if value},
        "gaps": _sparse(symptoms.cells),
        "seen": [[int(word) for word in row] for row in symptoms.seen],
        "engines": {name: _sparse(Cells.of(bins)) for name, bins in symptoms.engines.items()},
        "examples": {name: list(values) for name, values in symptoms.examples.items()},
        "settings": {name: list(values) for name, values in symptoms.settings.items()},
        "objective": dict(symptoms.objective),
    }
    body = zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 3)
    return _HEAD.pack(MAGIC, VERSION, zlib.crc32(body)) + body


def decode_symptoms(encoded: bytes) -> Symptoms:
    """Raises InputError when anything about the bytes is not as `encode_symptoms` left it."""
    if len(encoded) < _HEAD.size:
        raise InputError("symptoms_damaged", "too short to be symptoms")
    magic, version, crc = _HEAD.unpack_from(encoded)
    body = encoded[_HEAD.size :]
    if magic != MAGIC or version != VERSION:
        raise InputError("symptoms_version", f"not symptoms of version {VERSION}")
    if zlib.crc32(body) != crc:
        raise InputError("symptoms_damaged", "the checksum does not match the content")
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(body, MAX_DECODED_BYTES)
        if stream.unconsumed_tail or not stream.eof:
            raise ValueError("too long")
        return _assembled(json.loads(text))
    except (zlib.error, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InputError("symptoms_damaged", f"not readable symptoms ({error})") from None


def _assembled(document: dict[str, Any]) -> Symptoms:
    counts = np.zeros(len(COUNT_NAMES), np.int64)
    for name, value in document["counts"].items():
        counts[COUNT_INDEX[name]] = value
    seen = np.array(document["seen"], np.uint64)
    if seen.shape != (len(BITMAPS), WORDS):
        raise ValueError("bitmaps of another size")
    return Symptoms(
        counts,
        _cells(document["gaps"], GAP_ROWS * GAP_BINS),
        seen,
        {_text(name): _cells(bins, ENGINE_BINS).dense() for name, bins in document["engines"].items()},
        _texts(document["examples"], _EXAMPLES, MAX_EXAMPLES),
        _texts(document["settings"], SETTING_NAMES, MAX_VALUES),
        {name: _units(name, units) for name, units in document.get("objective", {}).items()},
    )


def _texts(told: dict[str, Any], names: Iterable[str], most: int) -> dict[str, tuple[str, ...]]:
    if not told.keys() <= set(names) or any(len(values) > most for values in told.values()):
        raise ValueError("names that are not ours, or too many values")
    return {name: tuple(_text(value) for value in values) for name, values in told.items()}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a name is no text")
    value.encode()  # half a surrogate pair is no text
    return value


def _units(name: str, units: Any) -> int:
    if name not in SUMS or not isinstance(units, int) or units < 0:
        raise ValueError("a sum that the objective does not tell")
    return units


def _sparse(cells: Cells) -> list[list[int]]:
    """Distances between cells that are not 0, and these."""
    return [np.diff(cells.places, prepend=np.int32(0)).tolist(), cells.counts.tolist()]


def _cells(parts: list[list[int]], size: int) -> Cells:
    steps, counts = np.array(parts[0], np.int64), np.array(parts[1], np.int64)
    used = np.cumsum(steps)
    rising = not len(used) or (steps[0] >= 0 and steps[1:].min(initial=1) > 0 and used[-1] < size)
    if steps.shape != counts.shape or not rising or counts.min(initial=0) < 0:
        raise ValueError("cells outside the histogram, out of order, or below 0")
    return Cells.at(used, counts, size)
