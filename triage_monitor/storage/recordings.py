"""Recorded updates on disk: `iter_updates` reads the contract's forms, `RecordingWriter` writes Parquet.

Arrow IPC (file and stream), Parquet, JSONL and the frameworks' own dumps (`dumps`), told apart by content; files,
directories and glob patterns. Memory is bounded by one update, not by the recording. Messages count rows from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from triage_monitor.errors import InputError
from triage_monitor.storage.dumps import DUMP_FORMATS, Unit, unit_tables, units
from triage_monitor.storage.recordings_arrow import read_arrow_file, read_arrow_stream, read_parquet
from triage_monitor.storage.recordings_find import FORMATS, detect_format, find_files
from triage_monitor.storage.recordings_group import Batch, RecordedUpdate, grouped
from triage_monitor.storage.recordings_jsonl import read_jsonl
from triage_monitor.storage.recordings_write import RecordingWriter
from triage_monitor.summary.rows_arrow import COLUMNS, check_columns

__all__ = ["FORMATS", "RecordedUpdate", "RecordingWriter", "iter_updates", "read_batches", "read_units"]

Paths: TypeAlias = Iterable[str | Path] | str | Path

_READERS = {
    "arrow_file": read_arrow_file,
    "arrow_stream": read_arrow_stream,
    "parquet": read_parquet,
    "jsonl": read_jsonl,
}


def iter_updates(paths: Paths, *, format: str | None = None) -> Iterator[RecordedUpdate]:
    """The updates in the order of the files, and of the rows in them; an update may come in several shards.

    `format` (one of FORMATS) only checks what content says. All files must belong to one run. Raises
    InputError naming file, row and column; what was yielded before is sound.
    """
    return grouped(read_batches(paths, format=format))


def read_batches(paths: Paths, *, format: str | None = None) -> Iterator[Batch]:
    """Rows of every file in turn, a bounded number at a time; the first batch of a file has no row."""
    if format is not None and format not in FORMATS:
        raise InputError("format", f"format '{format}' is not known; known: {', '.join(FORMATS)}")
    files = find_files([paths] if isinstance(paths, (str, Path)) else paths)
    fallback = files[0].stem if len(files) == 1 else files[0].parent.name or files[0].stem
    return read_units(_sources(files, format), fallback)


def read_units(sources: Iterable[Unit], fallback: str = "") -> Iterator[Batch]:
    """The rows of each file, or of files that are read together; `fallback` names the run where none of them does."""
    named: tuple[str, Path] | None = None
    for source in sources:
        path = source.paths[0]
        first_row = 0
        ignored: tuple[str, ...] | None = None
        for table in unit_tables(source) if source.kind in DUMP_FORMATS else _READERS[source.kind](path, COLUMNS):
            ignored = _ignored(table, path) if ignored is None else ignored
            run = (table.schema.metadata or {}).get(b"run", b"").decode("utf-8", "replace")
            if run and named is not None and named[0] != run:
                detail = f"belongs to run '{run}' while {named[1]} belongs to '{named[0]}'; give one run at a time"
                raise InputError("run", detail, path=str(path))
            named = (run, path) if run and named is None else named
            yield Batch(path, named[0] if named else fallback, first_row, table, ignored, source.paths)
            first_row += len(table)


def _sources(files: list[Path], format: str | None) -> Iterator[Unit]:
    """Each file by itself, but the ranks of a miles rollout together."""
    kinds = []
    for path in files:
        kind = detect_format(path)
        if format is not None and not kind.startswith(format):
            raise InputError("format", f"is {kind.replace('_', ' ')}, not {format}", path=str(path))
        kinds.append((kind, path))
    return units(kinds)


def _ignored(header: pa.Table, path: Path) -> tuple[str, ...]:
    try:
        return check_columns(header.column_names)
    except InputError as error:
        raise error.at(path=str(path)) from None
