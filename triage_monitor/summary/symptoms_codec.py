"""Symptoms <-> bytes: `TSYM`, a version, a CRC-32, then zlib-compressed JSON of what is not zero; some kilobytes.

Only what this package wrote is read back: anything else, of another version too, is refused as InputError. A store
without readable symptoms only lacks named causes, never a verdict.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import numpy as np

from triage_monitor.errors import InputError
from triage_monitor.summary.symptoms import (
    BITMAPS,
    COUNT_INDEX,
    COUNT_NAMES,
    ENGINE_BINS,
    GAP_BINS,
    GAP_ROWS,
    WORDS,
    Counts,
    Symptoms,
)

MAGIC, VERSION = b"TSYM", 1
_HEAD = struct.Struct("<4sHI")
MAX_DECODED_BYTES = 4 << 20


def encode_symptoms(symptoms: Symptoms) -> bytes:
    document = {
        "counts": {name: int(value) for name, value in zip(COUNT_NAMES, symptoms.counts, strict=True) if value},
        "gaps": _sparse(symptoms.gaps.ravel()),
        "seen": [[int(word) for word in row] for row in symptoms.seen],
        "engines": {name: _sparse(bins) for name, bins in symptoms.engines.items()},
        "examples": {name: list(values) for name, values in symptoms.examples.items()},
        "settings": {name: list(values) for name, values in symptoms.settings.items()},
        "objective": dict(symptoms.objective),
    }
    body = zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 6)
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
    except (zlib.error, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
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
        _dense(document["gaps"], GAP_ROWS * GAP_BINS).reshape(GAP_ROWS, GAP_BINS),
        seen,
        {name: _dense(bins, ENGINE_BINS) for name, bins in document["engines"].items()},
        {name: tuple(values) for name, values in document["examples"].items()},
        {name: tuple(values) for name, values in document["settings"].items()},
        {name: int(units) for name, units in document.get("objective", {}).items()},
    )


def _sparse(cells: Counts) -> list[list[int]]:
    """Distances between cells that are not 0, and these."""
    used = np.flatnonzero(cells)
    return [np.diff(used, prepend=0).tolist(), cells[used].tolist()]


def _dense(parts: list[list[int]], size: int) -> Counts:
    cells = np.zeros(size, np.int64)
    used = np.cumsum(np.array(parts[0], np.int64))
    if len(used) != len(parts[1]) or (len(used) and (used[0] < 0 or used[-1] >= size)):
        raise ValueError("cells outside the histogram")
    cells[used] = parts[1]
    return cells
