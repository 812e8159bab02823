"""The store on disk: one SQLite file in WAL mode with synchronous=FULL, one writer thread, separate readers.

The writer takes every call that is waiting, applies each under its own savepoint, commits them together (one sync),
and only then resolves their futures: that is the group commit and the durability promise of `base`. A failed commit
fails all calls of its group and keeps none. A lock file lets one process at a time open a data directory.

Left out: compaction and export; the WAL is checkpointed by SQLite itself.
"""

from __future__ import annotations

import fcntl
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from triage_monitor.errors import ConfigError, ConflictError, StoreCorrupt, StoreFull, TriageError
from triage_monitor.storage.records import Outcome, Record, Rule, RunRow, ShardRow, UpdateRow
from triage_monitor.storage.rowcodec import Cell, decode_row, encode_row
from triage_monitor.storage.rules import admit
from triage_monitor.storage.schema import prepare

R = TypeVar("R", bound=Record)
GROUP_LIMIT = 256
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class _Call:
    """One `write`: what to apply, and who waits for it."""

    __slots__ = ("future", "outcomes", "rows")

    def __init__(self, rows: list[tuple[Record, tuple[Cell, ...]]]) -> None:
        self.rows = rows
        self.outcomes: tuple[Outcome, ...] = ()
        self.future: Future[tuple[Outcome, ...]] = Future()


class SqliteStore:
    """Store in `directory/triage.db`; see `base.Store`. Raises ConfigError when the directory is in use or too new."""

    durable = True

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "triage.db"
        self._lock_file = _claim(directory)
        self._corrupt_lock = threading.Lock()
        self.corrupt_rows = 0
        self._readers: queue.SimpleQueue[sqlite3.Connection] = queue.SimpleQueue()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        try:
            self._writer_db = _open(self._path)
            self.epoch = prepare(self._writer_db, epoch=int(time.time()))
        except sqlite3.Error as error:
            os.close(self._lock_file)
            raise _translated(error) from error
        except BaseException:
            os.close(self._lock_file)
            raise
        self._closed = False
        self._thread = threading.Thread(target=self._write_loop, name="store-writer", daemon=True)
        self._thread.start()

    def write(self, *records: Record) -> Future[tuple[Outcome, ...]]:
        if self._closed:
            raise StoreFull("the store is closed")
        call = _Call([(record, encode_row(record)) for record in records])
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
            db.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            answers = [(call, _translated(error)) for call in group]
        for call, refusal in answers:
            if refusal is None:
                call.future.set_result(call.outcomes)
            else:
                call.future.set_exception(refusal)

    def _apply(self, call: _Call) -> TriageError | None:
        db = self._writer_db
        db.execute("SAVEPOINT one_call")
        try:
            call.outcomes = tuple(self._put(record, row) for record, row in call.rows)
        except ConflictError as error:
            db.execute("ROLLBACK TO one_call")
            db.execute("RELEASE one_call")
            return error
        db.execute("RELEASE one_call")
        return None

    def _put(self, record: Record, row: tuple[Cell, ...]) -> Outcome:
        kind, db = type(record), self._writer_db
        before = None
        if kind.RULE is not Rule.NEXT:
            before = self._one(db, kind, record.key)
        outcome = admit(record, before, lambda: _top(db, kind, record.run))
        if outcome is not Outcome.DUPLICATE:
            db.execute(f"INSERT OR REPLACE INTO {kind.TABLE} VALUES ({', '.join('?' * len(row))})", row)
        return outcome

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

    def count(self, kind: type[Record], run: str, *, attempt: int | None = None, last_step: int | None = None) -> int:
        where, values = _conditions(run, attempt, None, last_step)
        with self._reading() as db:
            return int(db.execute(f"SELECT count(*) FROM {kind.TABLE} WHERE {where}", values).fetchone()[0])

    def get(self, kind: type[R], *key: object) -> R | None:
        with self._reading() as db:
            return self._one(db, kind, key)

    def _one(self, db: sqlite3.Connection, kind: type[R], key: tuple[object, ...]) -> R | None:
        where = " AND ".join(f"{name} = ?" for name in kind.KEY)
        cells = db.execute(f"SELECT * FROM {kind.TABLE} WHERE {where}", key).fetchone()
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
            f"SELECT s.attempt, s.step FROM (SELECT attempt, step, count(*) AS stored FROM {ShardRow.TABLE}"
            f" WHERE run = :run GROUP BY attempt, step) AS s LEFT JOIN {UpdateRow.TABLE} AS u"
            " ON u.run = :run AND u.attempt = s.attempt AND u.step = s.step"
            " WHERE u.step IS NULL OR s.stored > u.shards - u.missing_shards ORDER BY s.attempt, s.step"
        )
        with self._reading() as db:
            return [(attempt, step) for attempt, step in db.execute(sql, {"run": run})]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._calls.put(None)
        self._thread.join()
        with suppress(queue.Empty):
            while (late := self._calls.get_nowait()) is not None:
                late.future.set_exception(StoreFull("the store is closed"))
        with suppress(queue.Empty):
            while True:
                self._readers.get_nowait().close()
        self._writer_db.close()
        os.close(self._lock_file)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            db = self._readers.get_nowait()
        except queue.Empty:
            db = _open(self._path, read_only=True)
        try:
            yield db
        except sqlite3.Error as error:
            db.close()
            raise _translated(error) from error
        self._readers.put(db)

    def _decoded(self, kind: type[R], cells: tuple[Cell, ...]) -> R | None:
        try:
            return decode_row(kind, cells)
        except StoreCorrupt:
            with self._corrupt_lock:
                self.corrupt_rows += 1
            return None


def _conditions(
    run: str, attempt: int | None, first_step: int | None, last_step: int | None
) -> tuple[str, tuple[object, ...]]:
    bounds = {"run =": run, "attempt =": attempt, "step >=": first_step, "step <=": last_step}
    given = {condition: value for condition, value in bounds.items() if value is not None}
    return " AND ".join(f"{condition} ?" for condition in given), tuple(given.values())


def _top(db: sqlite3.Connection, kind: type[Record], run: str) -> int:
    (top,) = db.execute(f"SELECT max({kind.KEY[-1]}) FROM {kind.TABLE} WHERE run = ?", (run,)).fetchone()
    return 0 if top is None else int(top)


def _claim(directory: Path) -> int:
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise ConfigError(f"the data directory {directory} is in use by another process (pid {holder})") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _open(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    mode = "ro" if read_only else "rwc"
    db = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False, timeout=30
    )
    if not read_only:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
    return db


def _translated(error: sqlite3.Error) -> TriageError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _CORRUPT:
        return StoreCorrupt(f"the store's file is damaged: {error}")
    return StoreFull(f"the store cannot be written or read now: {error}")
