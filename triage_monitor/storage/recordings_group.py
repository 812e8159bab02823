"""Cuts a stream of row batches into updates: rows of one (attempt, step) that follow one another become one value.

An update may run over batches and files. One that comes back after other updates (a file per rank, shuffled rows) comes
out again as a further shard of the same key: summaries of the shards merge, so no reader has to hold more than one
update, and one above MAX_TOKENS positions comes out in pieces too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triage_monitor.errors import InputError
from triage_monitor.summary.rows_arrow import VALUE_COLUMNS, rows_from_table
from triage_monitor.summary.rows_columns import is_list, whole_column, without_text_views
from triage_monitor.summary.rows_values import Array, UpdateRows

MAX_TOKENS = 1 << 25


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one file, the first of them row `first_row` of that file; `sources`: all files they came from, where that
    is more than one."""

    path: Path
    run: str
    first_row: int
    table: pa.Table
    ignored_columns: tuple[str, ...] = ()
    sources: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedUpdate:
    """One shard of one update; `attempt_given` is False when the file numbers no attempts (then it is 1)."""

    run: str
    step: int
    attempt: int
    rows: UpdateRows
    path: Path
    first_row: int
    attempt_given: bool


@dataclass(slots=True)
class _Piece:
    batch: Batch
    table: pa.Table
    rows: Array
    attempt: int
    step: int

    @property
    def tokens(self) -> int:
        column = next((self.table[name] for name in VALUE_COLUMNS if name in self.table.column_names), None)
        return (pc.sum(pc.list_value_length(column)).as_py() or 0) if column is not None and is_list(column.type) else 0


@dataclass(slots=True)
class _Pending:
    pieces: list[_Piece] = field(default_factory=list)
    tokens: int = 0

    def takes(self, piece: _Piece, most: int) -> bool:
        last = self.pieces[-1] if self.pieces else None
        return last is None or (
            (last.attempt, last.step, last.batch.run) == (piece.attempt, piece.step, piece.batch.run)
            and last.table.schema.equals(piece.table.schema)
            and self.tokens + piece.tokens <= most
        )

    def add(self, piece: _Piece) -> None:
        self.pieces.append(piece)
        self.tokens += piece.tokens

    def update(self) -> RecordedUpdate:
        first = self.pieces[0]
        table = pa.concat_tables([piece.table for piece in self.pieces])
        try:
            rows = rows_from_table(table)
        except InputError as error:
            raise self._placed(error) from error.__cause__
        return RecordedUpdate(
            run=first.batch.run,
            step=first.step,
            attempt=first.attempt,
            rows=replace(rows, ignored_columns=first.batch.ignored_columns),
            path=first.batch.path,
            first_row=int(first.rows[0]),
            attempt_given="attempt" in table.column_names,
        )

    def _placed(self, error: InputError) -> InputError:
        row = error.row
        for piece in self.pieces:
            if row is None or row < len(piece.rows):
                path = str(piece.batch.path)
                return error.at(path=path) if row is None else error.at(path=path, row=int(piece.rows[row]))
            row -= len(piece.rows)
        raise error


def grouped(batches: Iterable[Batch], most: int = MAX_TOKENS) -> Iterator[RecordedUpdate]:
    """`most` positions in one value, where the batches are not larger."""
    return (pending.update() for pending in _cut(batches, most))


def grouped_keys(batches: Iterable[Batch]) -> Iterator[tuple[int, int]]:
    """(attempt, step) of each value `grouped` would give, without looking at the tokens."""
    return ((pending.pieces[0].attempt, pending.pieces[0].step) for pending in _cut(batches, MAX_TOKENS))


def _cut(batches: Iterable[Batch], most: int) -> Iterator[_Pending]:
    pending = _Pending()
    for batch in batches:
        for piece in _pieces(batch):
            if not pending.takes(piece, most):
                yield pending
                pending = _Pending()
            pending.add(piece)
    if pending.pieces:
        yield pending


def _pieces(batch: Batch) -> Iterator[_Piece]:
    if len(batch.table) == 0:
        return
    steps, attempts = _keys(batch)
    changes = np.flatnonzero((np.diff(steps) != 0) | (np.diff(attempts) != 0)) + 1
    table, order = batch.table, np.arange(len(steps))
    if len(changes) and len(changes) + 1 > len(set(zip(attempts.tolist(), steps.tolist(), strict=True))):
        order = np.lexsort((steps, attempts))
        table, steps, attempts = _in_order(batch, order), steps[order], attempts[order]
        changes = np.flatnonzero((np.diff(steps) != 0) | (np.diff(attempts) != 0)) + 1
    bounds = [0, *changes.tolist(), len(steps)]
    for start, end in pairwise(bounds):
        rows = batch.first_row + order[start:end]
        yield _Piece(batch, table.slice(start, end - start), rows, int(attempts[start]), int(steps[start]))


def _in_order(batch: Batch, order: Array) -> pa.Table:
    table = without_text_views(batch.table)
    columns = {}
    for name in table.column_names:
        try:
            columns[name] = table[name].take(pa.array(order))
        except pa.ArrowNotImplementedError as error:
            detail = f"holds {table[name].type}, whose rows cannot be put in order"
            raise InputError("wrong_type", detail, column=name, path=str(batch.path)) from error
    return pa.table(columns).replace_schema_metadata(table.schema.metadata)


def _keys(batch: Batch) -> tuple[Array, Array]:
    names = batch.table.column_names
    try:
        if "step" not in names:
            raise InputError("missing_column", "is not there", column="step")
        steps = whole_column("step", batch.table["step"])
        attempts = whole_column("attempt", batch.table["attempt"]) if "attempt" in names else np.ones_like(steps)
        for name, values in (("step", steps), ("attempt", attempts)):
            if len(values) and values.min() < 0:
                raise InputError("negative", "is negative", column=name, row=int(np.argmin(values)))
    except InputError as error:
        row = None if error.row is None else batch.first_row + error.row
        raise error.at(path=str(batch.path), row=row) from error.__cause__
    return steps, attempts
