"""A store without a disk: for tests and for watching a run that nobody needs to remember.

It keeps every promise of `base` but durability (`durable` is False). Rows are held in their stored form, so that
whatever cannot be stored fails here as it would on a disk, and nothing handed in is shared with the caller.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from triage_monitor.errors import ConflictError, StoreCorrupt
from triage_monitor.storage.base import Damage
from triage_monitor.storage.fence import new_fence
from triage_monitor.storage.picking import Path, Picked, pick_from
from triage_monitor.storage.records import (
    ALL_KINDS,
    HalfContentRow,
    HalfRow,
    Outcome,
    Record,
    RunRow,
    ShardRow,
    SummaryRow,
    SymptomRow,
    UpdateRow,
    WorstRow,
)
from triage_monitor.storage.rowcodec import Cell, decode_row, encode_row
from triage_monitor.storage.rules import admit
from triage_monitor.storage.thinning import THINNED, Thinned, is_thinned

R = TypeVar("R", bound=Record)
Key = tuple[Any, ...]
Undo = list[tuple[type[Record], Key, tuple[Cell, ...] | None]]


class MemoryStore:
    """Store in dictionaries; see `base.Store`."""

    durable = False

    def __init__(self, epoch_above: int = 0) -> None:
        self.fence = new_fence(int(time.time()), epoch_above)
        self.corrupt_rows = 0
        self.damage = Damage()
        self.suspect: str | None = None
        self.scrubbed = True
        self._tables: dict[type[Record], dict[Key, tuple[Cell, ...]]] = {kind: {} for kind in ALL_KINDS}
        self._lock = threading.RLock()

    def write(self, *records: Record) -> Future[tuple[Outcome, ...]]:
        future: Future[tuple[Outcome, ...]] = Future()
        encoded = [(record, encode_row(record)) for record in records]
        undo: Undo = []
        with self._lock:
            try:
                future.set_result(tuple(self._apply(record, row, undo) for record, row in encoded))
            except ConflictError as error:
                for kind, key, before in reversed(undo):
                    self._restore(kind, key, before)
                future.set_exception(error)
        return future

    def probe(self) -> None:
        """There is no disk that could refuse."""

    def _apply(self, record: Record, row: tuple[Cell, ...], undo: Undo) -> Outcome:
        kind = type(record)
        before = self._tables[kind].get(record.key)
        readable = None if before is None else self._decoded(kind, before)
        outcome = admit(record, readable, lambda: self.top(kind, record.run))
        if outcome is not Outcome.DUPLICATE:
            undo.append((kind, record.key, before))
            self._tables[kind][record.key] = row
        return outcome

    def _restore(self, kind: type[Record], key: Key, before: tuple[Cell, ...] | None) -> None:
        if before is None:
            del self._tables[kind][key]
        else:
            self._tables[kind][key] = before

    def runs(self) -> list[str]:
        with self._lock:
            return sorted(str(key[0]) for key in self._tables[RunRow])

    def rows(
        self,
        kind: type[R],
        run: str,
        *,
        attempt: int | None = None,
        first_step: int | None = None,
        last_step: int | None = None,
        newest: int | None = None,
    ) -> list[R]:
        with self._lock:
            stored = [row for key, row in self._tables[kind].items() if key[0] == run]
        found = [row for row in (self._decoded(kind, row) for row in stored) if row is not None]
        if attempt is not None:
            found = [row for row in found if getattr(row, "attempt") == attempt]  # noqa: B009  not on every kind
        if first_step is not None:
            found = [row for row in found if getattr(row, "step") >= first_step]  # noqa: B009
        if last_step is not None:
            found = [row for row in found if getattr(row, "step") <= last_step]  # noqa: B009
        found.sort(key=lambda row: tuple(getattr(row, name) for name in kind.order()))
        return found if newest is None else found[len(found) - min(newest, len(found)) :]

    def picked(
        self, run: str, paths: Sequence[Path], *, attempt: int, first_step: int | None, last_step: int | None
    ) -> list[Picked]:
        rows = self.rows(UpdateRow, run, attempt=attempt, first_step=first_step, last_step=last_step)
        return [(row.step, [pick_from(row.report, path) for path in paths]) for row in rows]

    def count(self, kind: type[Record], run: str, *, attempt: int | None = None, last_step: int | None = None) -> int:
        return len(self.rows(kind, run, attempt=attempt, last_step=last_step))

    def get(self, kind: type[R], *key: object) -> R | None:
        with self._lock:
            row = self._tables[kind].get(key)
        return None if row is None else self._decoded(kind, row)

    def top(self, kind: type[Record], run: str) -> int:
        with self._lock:
            return max((int(key[-1]) for key in self._tables[kind] if key[0] == run), default=0)

    def first_steps(self, run: str) -> dict[int, int]:
        first: dict[int, int] = {}
        with self._lock:
            for name, attempt, step in self._tables[UpdateRow]:
                if name == run:
                    first[attempt] = min(step, first.get(attempt, step))
        return first

    def unclosed(self, run: str) -> list[tuple[int, int]]:
        stored: dict[tuple[int, int], int] = {}
        with self._lock:
            for name, attempt, step, *_ in (*self._tables[ShardRow], *self._tables[HalfRow]):
                if name == run:
                    stored[attempt, step] = stored.get((attempt, step), 0) + 1
        judged = {(row.attempt, row.step): row.shards - row.missing_shards for row in self.rows(UpdateRow, run)}
        return sorted(place for place, count in stored.items() if count > judged.get(place, 0))

    def thin(self, run: str, *, shards_before: int, summaries_before: int, shards_from: int = 0) -> Future[Thinned]:
        future: Future[Thinned] = Future()
        changed = 0
        with self._lock:
            waiting = set(self.unclosed(run))
            for row in self.rows(ShardRow, run, first_step=shards_from, last_step=shards_before - 1):
                place = (row.attempt, row.step)
                if not is_thinned(row) and place not in waiting and self.get(UpdateRow, run, *place) is not None:
                    thinned = replace(row, summary=THINNED, groups=None)
                    self._tables[ShardRow][row.key] = encode_row(thinned)
                    changed += 1
            symptoms = self.rows(SymptomRow, run, first_step=shards_from, last_step=shards_before - 1)
            merged = self.rows(SummaryRow, run, last_step=summaries_before - 1)
            worst = self.rows(WorstRow, run, last_step=summaries_before - 1)
            halves = self.rows(HalfContentRow, run, first_step=shards_from, last_step=shards_before - 1)
            closed = [half for half in halves if self.get(UpdateRow, run, half.attempt, half.step) is not None]
            old: list[Record] = [*symptoms, *merged, *worst, *closed]
            for gone in old:
                del self._tables[type(gone)][gone.key]
            changed += len(old)
        future.set_result(Thinned(changed, shards_from if changed else None))
        return future

    def close(self) -> None:
        """Nothing to finish."""

    def _decoded(self, kind: type[R], row: tuple[Cell, ...]) -> R | None:
        try:
            return decode_row(kind, row)
        except StoreCorrupt:
            self.corrupt_rows += 1
            return None
