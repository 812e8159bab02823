"""Reads every row once after a start, so that a damaged one is counted though nobody asks for it.

Slow on purpose: a batch, a pause, a batch. What it finds stands in the store's `corrupt_rows` like any other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from sqlite3 import Connection

from triage_monitor.errors import TriageError
from triage_monitor.storage.records import ALL_KINDS, Record
from triage_monitor.storage.rowcodec import Cell

BATCH = 64
PAUSE_SECONDS = 0.005
Reading = Callable[[], AbstractContextManager[Connection]]


class Scrub:
    """One pass over all rows in a thread of its own. `done` is set at its end, and stays unset if it broke off."""

    def __init__(self, reading: Reading, look: Callable[[type[Record], tuple[Cell, ...]], object]) -> None:
        self._reading = reading
        self._look = look
        self._stop = threading.Event()
        self.done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store-scrub", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for kind in ALL_KINDS:
                for cells in self._rows(kind):
                    self._look(kind, cells)
                if self._stop.is_set():
                    return
        except TriageError:
            return  # damaged structure: the store has noted it
        self.done.set()

    def _rows(self, kind: type[Record]) -> Iterator[tuple[Cell, ...]]:
        last = -1 << 63
        while not self._stop.wait(PAUSE_SECONDS):
            with self._reading() as db:
                found = db.execute(
                    f"SELECT rowid, * FROM {kind.TABLE} WHERE rowid > ? ORDER BY rowid LIMIT {BATCH}", (last,)
                ).fetchall()
            if not found:
                return
            last = found[-1][0]
            yield from (tuple(row[1:]) for row in found)
