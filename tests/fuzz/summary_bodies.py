"""Encoded summaries and reports that no kernel made: damaged bytes, and sound bytes that say impossible things.

The second kind carries a right checksum, computed here from the documented form: an Arrow stream of one row whose
metadata hold a CRC-32 over the spec and every column; `TSYM`, a version, a CRC-32 and zlib-compressed JSON.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from fuzz.arrow_bodies import damaged, odd_array

from triage_monitor.summary.build import summarize
from triage_monitor.summary.codec import encode
from triage_monitor.summary.report import encode_report
from triage_monitor.summary.rows import rows_from_arrays
from triage_monitor.summary.symptoms_rows import symptoms_of

NAMES = ("counters", "totals", "minima", "maxima", "steps", "cells")
WHOLE = (0, 1, -1, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63))
REAL = (0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 5e-324)
SPECS = (
    "",
    "{}",
    "[]",
    "null",
    '{"segment": 1000000}',
    '{"segment": NaN}',
    "[" * 100_000,
    '{"segment": 64, "x": 1}',
    "\0",
)


def summary_body(rng: random.Random) -> bytes:
    body = rng.choice((*(_sound,) * 4, *(_forged,) * 8, *(_forged_report,) * 6, _bomb))(rng)
    return damaged(body, rng) if rng.random() < 0.3 else body


def _arrays(rng: random.Random) -> dict[str, Any]:
    lengths = [rng.randrange(1, 200) for _ in range(rng.randrange(1, 4))]
    gap = [np.float32([rng.gauss(0, 0.5) for _ in range(size)]) for size in lengths]
    return {"gap": gap, "advantages": np.float64([rng.gauss(0, 1) for _ in gap])}


def _sound(rng: random.Random) -> bytes:
    rows = rows_from_arrays(**_arrays(rng))
    return rng.choice((encode(rows.summarize()), encode_report(rows.summarize(), symptoms_of(rows))))


def columns_of(body: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    batch = pa.ipc.open_stream(body).read_next_batch()
    metadata = {key.decode(): value.decode() for key, value in batch.schema.metadata.items()}
    return {name: batch.column(name).values.to_numpy().copy() for name in NAMES}, metadata


def signed(columns: dict[str, Any], metadata: dict[str, str], more: dict[str, pa.Array] | None = None) -> bytes:
    """The columns under their own checksum; `more` replaces or adds whole Arrow columns."""
    crc = zlib.crc32(metadata["spec"].encode("utf-8", "surrogateescape"))
    for name, values in columns.items():
        crc = zlib.crc32(f"{name}:{values.dtype.str}:{values.size}".encode(), crc)
        crc = zlib.crc32(values.tobytes(), crc)
    arrays = {name: _one_row(values) for name, values in columns.items()} | (more or {})
    batch = pa.record_batch(arrays).replace_schema_metadata({**metadata, "crc32": str(crc)})
    sink = pa.BufferOutputStream()
    try:
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_batch(batch)
    except pa.ArrowException:  # lists too deep for this writer
        return b""
    return bytes(sink.getvalue())


def _one_row(values: Any) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), pa.array(values))


def _forged(rng: random.Random) -> bytes:
    columns, metadata = columns_of(encode(summarize(**_arrays(rng))))
    more: dict[str, pa.Array] = {}
    for _ in range(rng.randint(1, 2)):
        name = rng.choice(NAMES)
        kind = rng.randrange(8)
        if kind < 4 and len(columns[name]):
            columns[name] = _changed(columns[name], rng)
        elif kind == 4:
            columns[name] = rng.choice((columns[name][:-1], np.append(columns[name], columns[name][:1])))
        elif kind == 5:
            kinds = (np.float32, np.float64, np.int8, np.int64, np.uint64)
            with np.errstate(all="ignore"):
                columns[name] = columns[name].astype(rng.choice(kinds))
        elif kind == 6:
            more[rng.choice((name, "more"))] = odd_array(1, rng)
        else:
            field, value = rng.choice(
                (("spec", rng.choice(SPECS)), ("version", "9"), ("format", "x"), ("version", "1"))
            )
            metadata[field] = value
    return signed(columns, metadata, more)


def _changed(values: Any, rng: random.Random) -> Any:
    """Some entries become what no kernel gives."""
    pool = REAL if values.dtype.kind == "f" else WHOLE
    wide = values.astype(np.int64) if values.dtype.kind in "iu" else values.copy()
    with np.errstate(over="ignore"):
        for _ in range(rng.choice((1, 1, 3, len(wide)))):
            wide[rng.randrange(len(wide))] = rng.choice(pool)
    return wide


def _forged_report(rng: random.Random) -> bytes:
    rows = rows_from_arrays(**_arrays(rng))
    body = encode_report(rows.summarize(), symptoms_of(rows))
    (length,) = struct.unpack("<I", body[-8:-4])
    summary, symptoms = body[: -8 - length], body[-8 - length : -8]
    document = json.loads(zlib.decompress(symptoms[10:]))
    for _ in range(rng.randint(1, 3)):
        _forge_document(document, rng)
    if rng.random() < 0.1:
        text = b"[" * 1_000_000
    else:
        text = json.dumps(document).encode()
    packed = zlib.compress(text)
    made = struct.pack("<4sHI", b"TSYM", rng.choice((1, 1, 1, 1, 2)), zlib.crc32(packed)) + packed
    return summary + made + struct.pack("<I4s", rng.choice((len(made),) * 8 + (0, 2**32 - 1)), b"TSYE")


def _forge_document(document: dict[str, Any], rng: random.Random) -> None:
    name = rng.choice(list(document))
    value = document[name]
    pool: tuple[Any, ...] = (*WHOLE, *REAL, None, "x" * 1000, [], {}, "\udc00", True, 2**64, 10**400)
    kind = rng.randrange(4)
    if kind == 0:
        document[name] = rng.choice(pool)
    elif kind == 1 and isinstance(value, dict):
        value[rng.choice((*value, "x" * 500, "temperature", "\udc00", "rows", "gate_mean"))] = rng.choice(pool)
    elif kind == 1 and isinstance(value, list) and value:
        value[rng.randrange(len(value))] = rng.choice(pool)
    elif kind == 2 and name in ("settings", "examples"):
        document[name] = {key: [rng.choice(pool) for _ in range(rng.choice((1, 5000)))] for key in ("temperature", "a")}
    elif kind == 2 and isinstance(value, list) and value and isinstance(value[0], list) and value[0]:
        value[0][rng.randrange(len(value[0]))] = rng.choice(pool)
    else:
        document.pop(name)
        document.setdefault("counts", {"tokens": rng.choice(pool)})


def _bomb(rng: random.Random) -> bytes:
    columns, metadata = columns_of(encode(summarize(**_arrays(rng))))
    size = rng.choice((10_000, 10_000, 12_000_000))
    return signed({**columns, rng.choice(NAMES): np.zeros(size, np.int64)}, metadata)


KINDS: tuple[Callable[[random.Random], bytes], ...] = (_sound, _forged, _forged_report, _bomb)
