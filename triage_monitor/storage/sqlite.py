"""The store on disk: one SQLite file in WAL mode with synchronous=FULL, one writer thread, separate readers.

The writer takes every call that is waiting, applies each under its own savepoint, commits them together (one sync),
and only then resolves their futures: that is the group commit and the durability promise of `base`. A failed commit
fails all calls of its group and keeps none. A lock file lets one process at a time open a data directory. What was
damaged while nobody looked is found when the store is opened (`mend`), what is damaged now when it is read or written.

The WAL is checkpointed by SQLite itself.
"""

from __future__ import annotations

import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from triage_monitor.errors import StoreCorrupt, StoreFull, TriageError
from triage_monitor.storage.base import Damage
from triage_monitor.storage.disk import require_room
from triage_monitor.storage.fence import next_fence
from triage_monitor.storage.ledger import Ledger, Mark, Mended, stored_ledger, transaction, write_ledger
from triage_monitor.storage.mend import SUSPECT_NAME, mend
from triage_monitor.storage.opening import claim, is_damage, open_database, translated
from triage_monitor.storage.pages import PAGE
from triage_monitor.storage.picking import Path as ReportPath
from triage_monitor.storage.picking import Picked, picked_rows
from triage_monitor.storage.records import HalfRow, Outcome, Record, Rule, RunRow, ShardRow, UpdateRow
from triage_monitor.storage.rowcodec import Cell, checksum, decode_row, encode_row
from triage_monitor.storage.rules import admit
from triage_monitor.storage.salvage import set_aside_count
from triage_monitor.storage.schema import DATABASE_ERRORS, prepare
from triage_monitor.storage.scrub import Scrub
from triage_monitor.storage.thinning import Thinned, thin_rows

R = TypeVar("R", bound=Record)
GROUP_LIMIT = 256
MAX_CORRUPT_KNOWN = 100_000


@dataclass(frozen=True, slots=True)
class _Done:
    """What one call did: its answer, and what the ledger is to know."""

    answer: Any
    written: int
    added: int


class _Call:
    """One change: what to do inside the group's transaction, and who waits for it."""

    __slots__ = ("done", "future", "work")

    def __init__(self, work: Callable[[], _Done]) -> None:
        self.work = work
        self.done: _Done | None = None
        self.future: Future[Any] = Future()


class SqliteStore:
    """Store in `directory/triage.db`; see `base.Store`. Raises ConfigError when the directory is in use or too new.

    The epoch becomes larger than `epoch_above`, which takes over from the monitor of that epoch (see `fence`).
    `page_bytes` (a power of two, 512 to 32,768) is settled when the file is made; a file of other pages is damaged.
    """

    durable = True

    def __init__(self, directory: Path, epoch_above: int = 0, *, page_bytes: int = PAGE) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = (directory / "triage.db").resolve()
        directory = self._path.parent  # SQLite's log is beside the file that a link leads to; so is all else
        self._lock_file = claim(directory)
        self._corrupt_lock = threading.Lock()
        self._corrupt: set[bytes] = set()
        self._scrub: Scrub | None = None
        self.suspect: str | None = None
        self._readers: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        try:
            now, is_new = int(time.time()), not self._path.exists()
            mended = mend(self._path, now, page_bytes)
            try:
                self._open(now, epoch_above, mended, is_new=is_new)
            except DATABASE_ERRORS as error:
                if not is_damage(error):
                    raise
                mended = mend(self._path, now, page_bytes, unusable=str(error))
                self._open(now, epoch_above, mended, is_new=is_new)
            self._lost_now = None if mended is None else mended.lost
            self._set_aside = set_aside_count(directory)
            self._mark = Mark(directory)
            self._mark.write(self._ledger)
        except DATABASE_ERRORS as error:
            os.close(self._lock_file)
            raise translated(error) from error
        except BaseException:
            os.close(self._lock_file)
            raise
        self._closed = False
        self._thread = threading.Thread(target=self._write_loop, name="store-writer", daemon=True)
        self._thread.start()

    def _open(self, now: int, epoch_above: int, mended: Mended | None, *, is_new: bool) -> None:
        db = open_database(self._path)
        try:
            made = prepare(db, epoch=now)
            self._ledger = stored_ledger(db, made) if mended is None else mended.ledger
            with transaction(db):
                write_ledger(db, self._ledger)
                self.fence = next_fence(db, now, epoch_above, made=None if is_new else made)
        except BaseException:
            db.close()
            raise
        self._writer_db = db

    def write(self, *records: Record) -> Future[tuple[Outcome, ...]]:
        rows = [(record, encode_row(record)) for record in records]
        return self._queue(lambda: self._put_all(rows))

    def probe(self) -> None:
        require_room(self._path.parent)
        self._queue(self._count_probe).result()

    def thin(self, run: str, *, shards_before: int, summaries_before: int, shards_from: int = 0) -> Future[Thinned]:
        """One step of compaction; see `thinning`."""
        return self._queue(lambda: self._thin(run, shards_from, shards_before, summaries_before))

    def adopt(self, rows: Iterable[tuple[type[Record], tuple[Cell, ...]]]) -> Future[int]:
        """Verified rows of a run that is not here, all or none; they are taken one by one while the call is applied."""
        return self._queue(lambda: self._adopt(rows))

    def _queue(self, work: Callable[[], _Done]) -> Future[Any]:
        if self._closed:
            raise StoreFull("the store is closed")
        call = _Call(work)
        self._calls.put(call)
        return call.future

    def _write_loop(self) -> None:
        while (first := self._calls.get()) is not None:
            group = [first]
            last = False
            with suppress(queue.Empty):
                while len(group) < GROUP_LIMIT and not last:
                    call = self._calls.get_nowait()
                    if call is None:
                        last = True
                    else:
                        group.append(call)
            self._commit(group)
            if last:
                return

    def _commit(self, group: list[_Call]) -> None:
        db = self._writer_db
        answers: list[tuple[_Call, TriageError | None]] = []
        try:
            db.execute("BEGIN IMMEDIATE")
            answers = [(call, self._apply(call)) for call in group]
            ledger = self._entered([call for call, refusal in answers if refusal is None])
            db.execute("COMMIT")
            self._ledger = ledger
            self._mark.write(ledger)
        except DATABASE_ERRORS as error:
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            answers = [(call, self._failed(error)) for call in group]
        for call, refusal in answers:
            if refusal is None:
                call.future.set_result(call.done.answer if call.done else None)
            else:
                call.future.set_exception(refusal)

    def _entered(self, kept: list[_Call]) -> Ledger:
        """The ledger after these calls, written into their transaction."""
        done = [call.done for call in kept if call.done is not None]
        written = sum(item.written for item in done)
        if not written:
            return self._ledger
        rows = self._ledger.rows + sum(item.added for item in done)
        ledger = replace(self._ledger, written=self._ledger.written + written, rows=rows)
        write_ledger(self._writer_db, ledger)
        return ledger

    def _apply(self, call: _Call) -> TriageError | None:
        db = self._writer_db
        db.execute("SAVEPOINT one_call")
        try:
            call.done = call.work()
        except TriageError as error:
            db.execute("ROLLBACK TO one_call")
            db.execute("RELEASE one_call")
            return error
        db.execute("RELEASE one_call")
        return None

    def _put_all(self, rows: list[tuple[Record, tuple[Cell, ...]]]) -> _Done:
        put = [self._put(record, row) for record, row in rows]
        outcomes = tuple(outcome for outcome, _ in put)
        written = sum(outcome is not Outcome.DUPLICATE for outcome in outcomes)
        return _Done(outcomes, written, sum(added for _, added in put))

    def _put(self, record: Record, row: tuple[Cell, ...]) -> tuple[Outcome, bool]:
        """What it meant, and whether there is a row more than before."""
        kind, db = type(record), self._writer_db
        stored = None if kind.RULE is Rule.NEXT else _cells(db, kind, record.key)
        before = None if stored is None else self._decoded(kind, stored)
        outcome = admit(record, before, lambda: _top(db, kind, record.run))
        if outcome is Outcome.DUPLICATE:
            return outcome, False
        db.execute(f"INSERT OR REPLACE INTO {kind.TABLE} VALUES ({', '.join('?' * len(row))})", row)
        return outcome, stored is None

    def _count_probe(self) -> _Done:
        """A value that changes: SQLite writes no page for one that stays."""
        self._writer_db.execute(
            "INSERT INTO meta VALUES ('probes', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1"
        )
        return _Done(None, 0, 0)

    def _thin(self, run: str, shards_from: int, shards_before: int, summaries_before: int) -> _Done:
        thinned, gone = thin_rows(self._writer_db, run, shards_from, shards_before, summaries_before)
        return _Done(thinned, thinned.rows, -gone)

    def _adopt(self, rows: Iterable[tuple[type[Record], tuple[Cell, ...]]]) -> _Done:
        taken = 0
        for kind, cells in rows:
            self._writer_db.execute(f"INSERT INTO {kind.TABLE} VALUES ({', '.join('?' * len(cells))})", cells)
            taken += 1
        return _Done(taken, taken, taken)

    @property
    def corrupt_rows(self) -> int:
        return len(self._corrupt)

    @property
    def scrubbed(self) -> bool:
        return self._scrub is not None and self._scrub.done.is_set()

    def begin_scrub(self) -> None:
        """Reads every row once, in the background."""
        self._scrub = self._scrub or Scrub(self._reading, self._decoded)

    @property
    def damage(self) -> Damage:
        with suppress(OSError):  # no descriptor is left, say: then as it was last seen
            self._set_aside = set_aside_count(self._path.parent)
        return Damage(self._ledger.damages, self._ledger.lost, self._set_aside, self._lost_now)

    def runs(self) -> list[str]:
        with self._reading() as db:
            return [str(name) for (name,) in db.execute(f"SELECT run FROM {RunRow.TABLE} ORDER BY run")]

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
        where, values = _conditions(run, attempt, first_step, last_step)
        order = ", ".join(f"{name} DESC" for name in kind.order())
        sql = f"SELECT * FROM {kind.TABLE} WHERE {where} ORDER BY {order} LIMIT ?"
        with self._reading() as db:
            stored = db.execute(sql, (*values, -1 if newest is None else newest)).fetchall()
        return [row for row in (self._decoded(kind, cells) for cells in reversed(stored)) if row is not None]

    def picked(
        self, run: str, paths: Sequence[ReportPath], *, attempt: int, first_step: int | None, last_step: int | None
    ) -> list[Picked]:
        where, values = _conditions(run, attempt, first_step, last_step)
        with self._reading() as db:
            return list(picked_rows(db, where, values, paths, lambda row: self._spoilt(UpdateRow, row)))

    def count(self, kind: type[Record], run: str, *, attempt: int | None = None, last_step: int | None = None) -> int:
        where, values = _conditions(run, attempt, None, last_step)
        with self._reading() as db:
            return int(db.execute(f"SELECT count(*) FROM {kind.TABLE} WHERE {where}", values).fetchone()[0])

    def get(self, kind: type[R], *key: object) -> R | None:
        with self._reading() as db:
            cells = _cells(db, kind, key)
        return None if cells is None else self._decoded(kind, cells)

    def top(self, kind: type[Record], run: str) -> int:
        with self._reading() as db:
            return _top(db, kind, run)

    def first_steps(self, run: str) -> dict[int, int]:
        sql = f"SELECT attempt, min(step) FROM {UpdateRow.TABLE} WHERE run = ? GROUP BY attempt"
        with self._reading() as db:
            return dict(db.execute(sql, (run,)).fetchall())

    def unclosed(self, run: str) -> list[tuple[int, int]]:
        sql = (
            f"SELECT s.attempt, s.step FROM (SELECT attempt, step, count(*) AS stored FROM"
            f" (SELECT attempt, step FROM {ShardRow.TABLE} WHERE run = :run UNION ALL"
            f" SELECT attempt, step FROM {HalfRow.TABLE} WHERE run = :run)"
            f" GROUP BY attempt, step) AS s LEFT JOIN {UpdateRow.TABLE} AS u"
            " ON u.run = :run AND u.attempt = s.attempt AND u.step = s.step"
            " WHERE u.step IS NULL OR s.stored > u.shards - u.missing_shards ORDER BY s.attempt, s.step"
        )
        with self._reading() as db:
            return [(attempt, step) for attempt, step in db.execute(sql, {"run": run})]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._scrub is not None:
            self._scrub.close()
        self._calls.put(None)
        self._thread.join()
        with suppress(queue.Empty):
            while (late := self._calls.get_nowait()) is not None:
                late.future.set_exception(StoreFull("the store is closed"))
        with suppress(queue.Empty):
            while True:
                self._readers.get_nowait().close()
        with suppress(sqlite3.Error):
            self._writer_db.close()
        self._mark.close()
        os.close(self._lock_file)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            db = self._readers.get_nowait()
        except queue.Empty:
            try:
                db = open_database(self._path, read_only=True)
            except DATABASE_ERRORS as error:
                raise self._failed(error) from error
        try:
            yield db
        except DATABASE_ERRORS as error:
            db.close()
            raise self._failed(error) from error
        self._readers.put(db)

    def _decoded(self, kind: type[R], cells: tuple[Cell, ...]) -> R | None:
        try:
            return decode_row(kind, cells)
        except StoreCorrupt:
            self._spoilt(kind, cells)
            return None

    def _spoilt(self, kind: type[Record], cells: tuple[Cell, ...]) -> None:
        with self._corrupt_lock:
            if len(self._corrupt) < MAX_CORRUPT_KNOWN:
                self._corrupt.add(kind.TABLE.encode() + checksum(cells))

    def _failed(self, error: Exception) -> TriageError:
        """What a caller is told; of a damaged file the next start is told as well, so that it looks at every page."""
        told = translated(error)
        if isinstance(told, StoreCorrupt) and self.suspect is None:
            self.suspect = str(error)
            with suppress(OSError):
                self._path.with_name(SUSPECT_NAME).touch()
        return told


def _conditions(
    run: str, attempt: int | None, first_step: int | None, last_step: int | None
) -> tuple[str, tuple[object, ...]]:
    bounds = {"run =": run, "attempt =": attempt, "step >=": first_step, "step <=": last_step}
    given = {condition: value for condition, value in bounds.items() if value is not None}
    return " AND ".join(f"{condition} ?" for condition in given), tuple(given.values())


def _cells(db: sqlite3.Connection, kind: type[Record], key: tuple[object, ...]) -> tuple[Cell, ...] | None:
    where = " AND ".join(f"{name} = ?" for name in kind.KEY)
    cells: tuple[Cell, ...] | None = db.execute(f"SELECT * FROM {kind.TABLE} WHERE {where}", key).fetchone()
    return cells


def _top(db: sqlite3.Connection, kind: type[Record], run: str) -> int:
    (top,) = db.execute(f"SELECT max({kind.KEY[-1]}) FROM {kind.TABLE} WHERE run = ?", (run,)).fetchone()
    return 0 if top is None else int(top)
