"""UpdateRows <-> Arrow IPC stream: the body of one shard of one update (MIME application/vnd.apache.arrow.stream).

Our own streams carry `writer`, `rows` and `checksum` in the schema's metadata. The checksum is the CRC-32 of the whole
stream as it was before the checksum's own eight digits were filled in, so damage that leaves a sound stream, a flipped
bit in a gap, is refused too. Streams of other writers need none of the three; of them only the structure can be
verified. Decoding is zero-copy for uncompressed float32 and float64: the arrays are views of the body. Columns that
are not ours are neither decompressed nor looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from triage_monitor.errors import InputError
from triage_monitor.summary.checksum import stream_crc
from triage_monitor.summary.objective import to_text
from triage_monitor.summary.rows_arrow import (
    COLUMNS,
    OBJECTIVE_KEY,
    check_columns,
    check_names,
    rows_from_table,
    table_from_rows,
)
from triage_monitor.summary.rows_check import Frame, check_frame
from triage_monitor.summary.rows_columns import check_list_ends, check_view_sizes
from triage_monitor.summary.rows_halves import half_of_arrays
from triage_monitor.summary.rows_values import UpdateRows, checked_settings, rows_from_arrays

__all__ = [
    "STREAM_MIME",
    "SUMMARY_MIME",
    "UpdateRows",
    "checked_settings",
    "decode_stream",
    "encode_arrays",
    "encode_half",
    "encode_stream",
    "inflated_bytes",
    "rows_from_arrays",
    "rows_from_table",
    "table_from_rows",
]

STREAM_MIME = "application/vnd.apache.arrow.stream"
SUMMARY_MIME = "application/vnd.triage.summary"
WRITER = "triage-monitor"
UNSIGNED = "crc32-........"


def encode_arrays(*, gap_dtype: str = "float32", compression: str | None = None, **arrays: Any) -> bytes:
    """`rows_from_arrays` and `encode_stream` in one: the arrays of `summarize`, `settings`, ids and engines."""
    return encode_stream(rows_from_arrays(**arrays), gap_dtype=gap_dtype, compression=compression)


def encode_stream(rows: UpdateRows, *, gap_dtype: str = "float32", compression: str | None = None) -> bytes:
    """`gap_dtype` is float32 or float16 (log-probs keep their own type), `compression` None, 'zstd' or 'lz4'."""
    if compression not in (None, "zstd", "lz4"):
        raise InputError("compression", f"compression is '{compression}'; it must be None, 'zstd' or 'lz4'")
    table = table_from_rows(rows, gap_type=gap_dtype)
    told = {OBJECTIVE_KEY: to_text(rows.objective)} if rows.objective else {}
    return _signed(table, {**rows.settings, **told}, rows.responses, compression)


def encode_half(
    side: str, arrays: Mapping[str, Any], settings: Mapping[str, str], *, compression: str | None = None
) -> bytes:
    """One side's half of an update (see `rows_halves`), from its arrays and their `response_ids`."""
    table = half_of_arrays(side, arrays, settings)
    told = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    return _signed(table, told, len(table), compression)


def _signed(table: pa.Table, told: Mapping[str, str], rows: int, compression: str | None) -> bytes:
    metadata = {**told, "writer": WRITER, "rows": str(rows), "checksum": UNSIGNED}
    sink = pa.BufferOutputStream()
    schema = table.schema.with_metadata(metadata)
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for batch in table.to_batches():
            writer.write_batch(batch)
    stream = memoryview(sink.getvalue()).cast("B")
    head = stream[: check_frame(stream, max_tokens=None).schema_end].tobytes()
    return b"".join((head.replace(UNSIGNED.encode(), _signature(head, stream[len(head) :]), 1), stream[len(head) :]))


def decode_stream(body: bytes | memoryview, *, max_tokens: int, content_crc: int | None = None) -> UpdateRows:
    """Everything `rows_from_table` checks, of a whole and undamaged stream of at most `max_tokens` positions.

    `content_crc` is the CRC-32 of what follows the schema message, where the caller has it already.
    Raises InputError; no damage to the bytes ends in another error, a crash or an allocation the caller did not allow.
    """
    rows = rows_from_table(sound_table(body, max_tokens=max_tokens, content_crc=content_crc))
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        rows = replace(rows, ignored_columns=check_columns(reader.schema.names))
    if rows.tokens > max_tokens:
        raise InputError("too_large", f"holds {rows.tokens} positions; at most {max_tokens} are taken in one body")
    return rows


def sound_table(body: bytes | memoryview, *, max_tokens: int, content_crc: int | None = None) -> pa.Table:
    """Our columns of a whole and undamaged stream; what they mean is not looked at."""
    view = memoryview(body).cast("B")
    frame = check_frame(view, max_tokens=max_tokens)
    try:
        with pa.ipc.open_stream(pa.py_buffer(view)) as reader:
            _check_promises(reader.schema, view, frame, content_crc)
            names = reader.schema.names
            check_names(names)
            wanted = [place for place, name in enumerate(names) if name in COLUMNS]
        if not wanted:  # Arrow reads every column where none is asked for, and these are not to be looked at
            return pa.table({})
        with pa.ipc.open_stream(pa.py_buffer(view), options=pa.ipc.IpcReadOptions(included_fields=wanted)) as reader:
            table = reader.read_all()
        table.validate(full=True)
        check_list_ends(table)
        check_view_sizes(table, max_tokens)
    except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        raise InputError("damaged_stream", f"the Arrow stream is damaged: {_first_line(error)}") from error
    return table


def inflated_bytes(body: memoryview, *, max_tokens: int) -> int:
    """What reading a stream needs beside its body, in bytes; InputError when its frame is refused."""
    return check_frame(body, max_tokens=max_tokens).inflated


def _check_promises(schema: pa.Schema, view: memoryview, frame: Frame, content_crc: int | None) -> None:
    metadata = schema.metadata or {}
    declared = metadata.get(b"rows")
    if declared is not None and declared != str(frame.rows).encode():
        raise InputError("row_count", f"declares {declared.decode('utf-8', 'replace')} rows and holds {frame.rows}")
    signed = metadata.get(b"checksum")
    head = view[: frame.schema_end].tobytes()
    if signed is None:
        if WRITER.encode() in head:
            raise InputError("checksum", "the Arrow stream is damaged: its checksum is gone")
        return
    head = head.replace(signed, UNSIGNED.encode(), 1)
    if signed != _signature(head, view[frame.schema_end :], content_crc):
        raise InputError("checksum", "the Arrow stream is damaged: its bytes do not match its checksum")


def _signature(unsigned_head: bytes, content: memoryview, content_crc: int | None = None) -> bytes:
    return f"crc32-{stream_crc(unsigned_head, content, content_crc):08x}".encode()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
