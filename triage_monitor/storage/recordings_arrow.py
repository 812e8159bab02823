"""Batches of rows from Arrow IPC and Parquet files, none of them larger than a set number of bytes.

Arrow files are mapped, not read: uncompressed columns stay views of the file, and pages already gone through are given
back to the system, so a file with a single 2 GB batch needs no 2 GB. A compressed Arrow batch is expanded whole, there
is no smaller unit. Parquet is decoded a slice of a row group at a time. Every reader first gives an empty table with
all columns of the file, then its rows with the wanted columns only.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from triage_monitor.errors import InputError
from triage_monitor.storage.recordings_seal import refuse_damaged, seal_holds
from triage_monitor.summary.rows_check import check_frame

BATCH_BYTES = 32 << 20


def read_parquet(path: Path, wanted: tuple[str, ...]) -> Iterator[pa.Table]:
    refuse_damaged(path)
    with (
        _damage_named(path),
        pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True) as file,
    ):
        schema = file.schema_arrow
        if not seal_holds(schema, file.metadata.num_rows):
            raise InputError("damaged_file", "is damaged: its columns or settings do not match its seal")
        columns = [name for name in schema.names if name in wanted]
        yield _header(schema)
        for index in range(file.num_row_groups):
            group = file.metadata.row_group(index)
            values = sum(
                group.column(number).num_values
                for number in range(group.num_columns)
                if group.column(number).path_in_schema.split(".")[0] in columns
            )
            rows = max(1, group.num_rows * BATCH_BYTES // max(8 * values, 1))
            for batch in file.iter_batches(rows, row_groups=[index], columns=columns, use_threads=False):
                yield _checked(pa.Table.from_batches([batch]).replace_schema_metadata(schema.metadata))


def read_arrow_file(path: Path, wanted: tuple[str, ...]) -> Iterator[pa.Table]:
    with _damage_named(path), _mapped(path) as mapped:
        file = pa.ipc.open_file(pa.py_buffer(mapped))
        yield _header(file.schema)
        for index in range(file.num_record_batches):
            yield from _slices(file.get_batch(index), wanted, mapped)


def read_arrow_stream(path: Path, wanted: tuple[str, ...]) -> Iterator[pa.Table]:
    with _damage_named(path), _mapped(path) as mapped:
        check_frame(memoryview(mapped), max_tokens=None, plain=False)
        stream = pa.ipc.open_stream(pa.py_buffer(mapped))
        yield _header(stream.schema)
        for batch in stream:
            yield from _slices(batch, wanted, mapped)


def _header(schema: pa.Schema) -> pa.Table:
    """Every column, no row; fails here and not in the caller when a name is no text."""
    assert all(isinstance(name, str) for name in schema.names)
    return schema.empty_table()


def _slices(batch: pa.RecordBatch, wanted: tuple[str, ...], mapped: mmap.mmap) -> Iterator[pa.Table]:
    table = _checked(pa.Table.from_batches([batch]).select([name for name in batch.schema.names if name in wanted]))
    rows = max(1, len(table) * BATCH_BYTES // max(table.nbytes, 1))
    for start in range(0, len(table), rows):
        yield table.slice(start, rows)
        mapped.madvise(mmap.MADV_DONTNEED)


def _checked(table: pa.Table) -> pa.Table:
    table.validate(full=True)
    return table


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    """The mapping lives as long as an array looks into it."""
    with path.open("rb") as file:
        yield mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@contextmanager
def _damage_named(path: Path) -> Iterator[Any]:
    try:
        yield
    except InputError as error:
        raise (error if error.path else error.at(path=str(path))) from error.__cause__
    except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise InputError("damaged_file", f"is damaged or unreadable: {line}", path=str(path)) from error
