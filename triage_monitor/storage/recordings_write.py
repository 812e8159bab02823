"""RecordingWriter: a run's updates as Parquet parts that `analyze`, `replay`, polars or anything else can read.

One row per response, one row group per update, zstd. A part appears under its name only when it is whole and on disk
(written beside, synced, renamed), so a killed trainer leaves nothing half-written. The newest (attempt, step) is in the
file names: a writer opened on a directory with parts goes on after it. An update without responses leaves no row.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from triage_monitor.errors import ConflictError, InputError
from triage_monitor.storage.disk import synced
from triage_monitor.storage.recordings_seal import DIGEST, UNKNOWN_DIGEST, refuse_damaged, sealed, write_digest
from triage_monitor.summary.rows_arrow import COLUMNS, rows_from_table, table_from_rows
from triage_monitor.summary.rows_values import UpdateRows, rows_from_arrays

PART_BYTES = 64 << 20
_NAME = re.compile(r"a(\d+)-s(\d+)(?:-to(\d+))?(?:-shard(\d+))?\.parquet")


class RecordingWriter:
    """Appends updates of one run to `directory`; keys (attempt, step) only go up. One writer per directory and shard.

    With `updates_per_part` above 1 parts are larger and fewer, and a crash loses the updates not yet in one.
    """

    def __init__(self, directory: str | Path, *, run: str, shard: int | None = None, updates_per_part: int = 1) -> None:
        if updates_per_part < 1:
            raise InputError("updates_per_part", f"is {updates_per_part}; at least 1")
        self.directory = Path(directory)
        self.run = run
        self.shard = shard
        self.updates_per_part = updates_per_part
        self.directory.mkdir(parents=True, exist_ok=True)
        self.newest = self._resume()
        self._pending: list[tuple[int, int, pa.Table]] = []

    def append(
        self,
        step: int,
        attempt: int,
        rows: UpdateRows | pa.Table | Mapping[str, Any],
        *,
        extra: Mapping[str, float | int | str | None] | None = None,
    ) -> None:
        """`rows`: UpdateRows, the contract's table without step and attempt, or the arrays of `summarize` by name.

        `extra` becomes a column each (entropy, grad_norm, ..): readers of updates leave unknown columns alone.
        Raises InputError for wrong rows, ConflictError when (attempt, step) is not newer than what is recorded, OSError
        when the disk does not take it: then it counts as never given.
        """
        if self.newest is not None and (attempt, step) <= self.newest:
            newest = f"attempt {self.newest[0]}, step {self.newest[1]}"
            raise ConflictError(f"attempt {attempt}, step {step} is not after {newest}; a resumed run is a new attempt")
        table = self._keyed(_table(rows), step, attempt, extra or {})
        if self._pending and not self._pending[-1][2].schema.equals(table.schema):
            self.flush()
        before = self.newest
        self._pending.append((attempt, step, table))
        self.newest = (attempt, step)
        if len(self._pending) >= self.updates_per_part or sum(t.nbytes for *_, t in self._pending) >= PART_BYTES:
            try:
                self.flush()
            except BaseException:  # this one is refused, and may come again, with other content too
                self._pending.pop()
                self.newest = before
                raise

    def flush(self) -> None:
        """Puts every appended update on disk under its final name."""
        for attempt in sorted({attempt for attempt, _, _ in self._pending}):
            updates = [(step, table) for own, step, table in self._pending if own == attempt]
            self._write(self._name(attempt, updates[0][0], updates[-1][0]), [table for _, table in updates])
        self._pending = []

    def close(self) -> None:
        self.flush()

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keyed(
        self, table: pa.Table, step: int, attempt: int, extra: Mapping[str, float | int | str | None]
    ) -> pa.Table:
        columns: dict[str, Any] = {"step": _constant(step, len(table)), "attempt": _constant(attempt, len(table))}
        columns |= dict(zip(table.column_names, table.columns, strict=True))
        for name, value in extra.items():
            if name in columns or name in COLUMNS:
                raise InputError("duplicate_column", "is a column of the rows already", column=name)
            columns[name] = _constant(value, len(table))
        return pa.table(columns).replace_schema_metadata({**(table.schema.metadata or {}), b"run": self.run.encode()})

    def _name(self, attempt: int, first: int, last: int) -> str:
        until = f"-to{last:09d}" if last != first else ""
        shard = f"-shard{self.shard}" if self.shard is not None else ""
        return f"a{attempt:04d}-s{first:09d}{until}{shard}.parquet"

    def _write(self, name: str, tables: list[pa.Table]) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)  # somebody may have moved it away
        beside = self.directory / f".{name}.tmp"
        try:
            self._write_beside(beside, tables)
            beside.replace(self.directory / name)
        except BaseException:
            with suppress(OSError):
                beside.unlink()  # what a full disk took of it would keep the disk full
            raise
        synced(self.directory)

    def _write_beside(self, beside: Path, tables: list[pa.Table]) -> None:
        with beside.open("w+b") as file:
            schema = sealed(tables[0].schema, sum(map(len, tables)))
            with pq.ParquetWriter(
                file, schema, compression="zstd", compression_level=1, write_page_checksum=True
            ) as writer:
                for table in tables:
                    kept = table.replace_schema_metadata(schema.metadata)
                    writer.write_table(kept, row_group_size=max(len(table), 1))
                writer.add_key_value_metadata({DIGEST.decode(): UNKNOWN_DIGEST})
            write_digest(file)
            file.flush()
            os.fsync(file.fileno())

    def _resume(self) -> tuple[int, int] | None:
        newest: tuple[int, int] | None = None
        for path in self.directory.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is None or (match[4] is None) != (self.shard is None):
                continue
            if match[4] is not None and int(match[4]) != self.shard:
                continue
            key = (int(match[1]), int(match[3] or match[2]))
            if newest is None or key > newest:
                newest, newest_path = key, path
        if newest is not None:
            refuse_damaged(newest_path)
            try:
                run = (pq.read_schema(newest_path).metadata or {}).get(b"run", b"").decode("utf-8", "replace")
            except (pa.ArrowException, OSError) as error:
                raise InputError("damaged_file", f"is damaged: {error}", path=str(newest_path)) from error
            if run != self.run:
                raise InputError("run", f"holds run '{run}', not '{self.run}'", path=str(self.directory))
        return newest


def _table(rows: UpdateRows | pa.Table | Mapping[str, Any]) -> pa.Table:
    if isinstance(rows, pa.Table):
        rows_from_table(rows)
        return rows
    return table_from_rows(rows if isinstance(rows, UpdateRows) else rows_from_arrays(**rows))


def _constant(value: float | int | str | None, count: int) -> Any:
    kind = {int: pa.int64(), float: pa.float64(), str: pa.string()}.get(type(value), pa.float64())
    return pa.repeat(pa.scalar(value, type=kind), count)
