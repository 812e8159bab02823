"""The witness: a file beside the store to which every new link of the audit trail is appended, one JSON line each.

    {"run": "my-run", "number": 3, "link": "ab12...", "at": 1767225600.0}

Lines are only ever added, each synced. One that was cut short by a crash is skipped; a link that the store has and the
file has not (a crash between the two) is added at the next start. Links that the file has and the store has not are
what it is for: they are counted in `missing` and left as they are.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from triage_monitor.storage.audit import Head, head_of
from triage_monitor.storage.base import Store
from triage_monitor.storage.records import AuditRow

logger = logging.getLogger("triage_monitor")


class Witness:
    """Threads may call. A line that cannot be written is counted and written at the next chance."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._late: list[AuditRow] = []
        self.failures = 0
        self.missing = 0

    def note(self, rows: Iterable[AuditRow]) -> None:
        """Appends their links. Never raises: the change itself is durable already."""
        with self._lock:
            self._late.extend(rows)
            lines = [
                json.dumps({"run": row.run, "number": row.number, "link": row.link, "at": row.at}) + "\n"
                for row in self._late
            ]
            try:
                self._append("".join(lines))
            except OSError as error:
                self.failures += 1
                logger.error("the audit witness cannot be written: %s", error.strerror)
                return
            self._late.clear()

    def _append(self, text: str) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                text = "\n" + text  # the line before was cut short
            left = text.encode()
            try:
                while left:  # a disk that fills up takes a part first, without a word
                    left = left[os.write(descriptor, left) :]
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)  # it is written again, whole
                raise
        finally:
            os.close(descriptor)

    def reconcile(self, store: Store) -> None:
        """At the start: adds what a crash kept from being added, counts what the store should have and has not. A file
        that cannot be read counts as a failure, like one that cannot be written."""
        try:
            witnessed = read_witness(self._path)[0]
        except OSError as error:
            self.failures += 1
            logger.error("the audit witness %s cannot be read: %s", self._path, error.strerror)
            return
        seen = {run: heads[max(heads)] for run, heads in witnessed.items()}
        for run in {*store.runs(), *seen}:
            stored, known = head_of(store, run), seen.get(run)
            if known is None or known.number < stored.number:
                first = 1 if known is None else known.number + 1
                self.note(row for row in store.rows(AuditRow, run) if row.number >= first)
            elif known != stored:
                self.missing += max(1, known.number - stored.number)
                logger.error("the audit trail of run %s is not the one that was witnessed; see `audit verify`", run)


def read_witness(path: Path) -> tuple[dict[str, dict[int, Head]], int]:
    """Run -> number -> what was witnessed, and how many lines cannot be read; empty without a file.

    Of two lines about one number the first counts.
    """
    heads: dict[str, dict[int, Head]] = {}
    damaged = 0
    if not path.exists():
        return heads, damaged
    for line in path.read_bytes().split(b"\n"):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            head = Head(int(item["number"]), str(item["link"]))
            heads.setdefault(str(item["run"]), {}).setdefault(head.number, head)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            damaged += 1
    return heads, damaged
