"""StepSummary <-> bytes: one Arrow IPC stream of one batch, zstd-compressed; the only file that knows them.

Small arrays travel whole; histograms as the distances between non-zero cells and their counts, in the narrowest integer
that holds them. The schema's metadata carries the format version, the spec, and a checksum over the spec and every
decoded value, so that a damaged message is refused, never half believed.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.summary.cells import Cells
from triage_monitor.summary.rows_check import MAX_SCHEMA_BYTES, check_frame
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.summary.step import COUNT_NAMES, MAX_NAMES, MIN_NAMES, SUM_NAMES, StepSummary, histogram_places

FORMAT = "triage-summary"
VERSION = 2
# Version 1 knew no gradient norm: its counters and totals are one shorter, at the end.
_GROWN = {"1": ("counters", "totals")}
MIME = "application/vnd.triage.summary"
MAX_ENCODED_BYTES = 4 << 20
MAX_DECODED_BYTES = 64 << 20  # all cells of the longest segments, each with its own distance, are 50
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"  # Arrow takes the end of the bytes for the end of the stream as well
# Six small buffers: handing each to another thread costs more than compressing it.
_WRITING = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
_READING = pa.ipc.IpcReadOptions(use_threads=False)

_SMALL = (
    ("counters", len(COUNT_NAMES), np.int64),
    ("totals", len(SUM_NAMES), np.float64),
    ("minima", len(MIN_NAMES), np.float64),
    ("maxima", len(MAX_NAMES), np.float64),
)


def encode(summary: StepSummary) -> bytes:
    cells = summary.cells
    columns: dict[str, NDArray[Any]] = {
        "counters": summary.counters,
        "totals": summary.totals,
        "minima": summary.minima,
        "maxima": summary.maxima,
        "steps": _narrow(np.diff(cells.places, prepend=np.int32(0))),
        "cells": _narrow(cells.counts),
    }
    spec = summary.spec.to_json()
    metadata = {"format": FORMAT, "version": str(VERSION), "spec": spec, "crc32": str(_checksum(spec, columns))}
    batch = pa.record_batch(
        [
            pa.ListArray.from_arrays(pa.array([0, column.size], pa.int32()), pa.array(column))
            for column in columns.values()
        ],
        names=list(columns),
    ).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_WRITING) as writer:
        writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def decode(body: bytes | memoryview) -> StepSummary:
    """Raises InputError when anything about the bytes is not as `encode` left it."""
    if len(body) > MAX_ENCODED_BYTES:
        raise InputError("summary_too_large", f"{len(body)} bytes; a summary has at most {MAX_ENCODED_BYTES}")
    _check_size(body)
    try:
        columns, metadata = _read(body)
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, MemoryError, OverflowError) as error:
        raise InputError("summary_damaged", f"not a readable summary ({error})") from None
    version = metadata.get("version", "")
    if metadata.get("format") != FORMAT or version not in (*_GROWN, str(VERSION)):
        raise InputError("summary_version", f"not a {FORMAT} of version {VERSION}")
    spec_json = metadata.get("spec", "")
    if metadata.get("crc32") != str(_checksum(spec_json, columns)):
        raise InputError("summary_damaged", "the checksum does not match the content")
    try:
        spec = SummarySpec.from_mapping(json.loads(spec_json))
    except (ConfigError, TypeError, ValueError, RecursionError) as error:
        raise InputError("summary_spec", f"its spec is not valid ({error})") from None
    for name in _GROWN.get(version, ()):
        columns[name] = np.append(columns[name], columns[name].dtype.type(0))
    return _assemble(spec, columns)


def _check_size(body: bytes | memoryview) -> None:
    """Refuses what would expand to more than any summary has, before anything is decompressed."""
    try:
        frame = check_frame(memoryview(body).cast("B"), max_tokens=None)
    except InputError as error:
        raise InputError("summary_damaged", f"not a readable summary ({error.detail})") from None
    if frame.inflated > MAX_DECODED_BYTES or frame.schema_end > MAX_SCHEMA_BYTES:
        size = max(frame.inflated, frame.schema_end)
        raise InputError("summary_too_large", f"expands to {size} bytes; no summary has so many")


def _read(body: bytes | memoryview) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    source = pa.BufferReader(body)
    with pa.ipc.open_stream(source, options=_READING) as reader:
        batch = next(iter(reader), None)
        if batch is None or any(True for _ in reader):
            raise ValueError("not exactly one batch")
    if source.tell() != len(body) or bytes(body[-len(END_OF_STREAM) :]) != END_OF_STREAM:
        raise ValueError("the stream does not end where the bytes do")
    batch.validate(full=True)
    if batch.num_rows != 1:
        raise ValueError(f"{batch.num_rows} rows instead of one")
    columns = {}
    for name in (*(name for name, _, _ in _SMALL), "steps", "cells"):
        if not pa.types.is_list(batch.schema.field(name).type):
            raise ValueError(f"{name} is no list")
        values = batch.column(name).flatten()
        if values.null_count or not pa.types.is_primitive(values.type):
            raise ValueError(f"{name} holds other values than numbers")
        columns[name] = values.to_numpy(zero_copy_only=True)
    metadata = {key.decode(): value.decode() for key, value in (batch.schema.metadata or {}).items()}
    return columns, metadata


def _assemble(spec: SummarySpec, columns: dict[str, NDArray[Any]]) -> StepSummary:
    for name, size, kind in _SMALL:
        if columns[name].dtype != kind or columns[name].size != size:
            raise InputError("summary_shape", f"{name} should be {size} values of {np.dtype(kind)}", column=name)
    for name in ("steps", "cells"):
        if columns[name].dtype.kind not in "iu":
            raise InputError("summary_shape", f"{name} should be whole numbers", column=name)
    size = histogram_places(spec)[1]
    if columns["cells"].size != columns["steps"].size or _is_outside(columns["steps"], size):
        raise InputError("summary_shape", "histogram cells lie outside the spec's histograms", column="steps")
    used = np.cumsum(columns["steps"].astype(np.int64))
    cells = Cells.at(used, columns["cells"].astype(np.int64), size)
    small = [columns[name].copy() for name, _, _ in _SMALL]
    return StepSummary(spec, small[0], small[1], small[2], small[3], cells)


def _is_outside(steps: NDArray[Any], size: int) -> bool:
    """Whether the places leave the histograms or do not rise."""
    return bool(steps.size and (steps[0] < 0 or steps[1:].min(initial=1) < 1 or steps.sum(dtype=float) >= size))


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


def _checksum(spec: str, columns: dict[str, NDArray[Any]]) -> int:
    crc = zlib.crc32(spec.encode())
    for name, column in columns.items():
        crc = zlib.crc32(f"{name}:{column.dtype.str}:{column.size}".encode(), crc)
        crc = zlib.crc32(column.tobytes(), crc)
    return crc
