"""Checks the audit trail of a data directory, beside a running sidecar or after it; reads only.

Every link is computed anew, numbers must have no gap, what the witness saw must still be there, and the parameter sets
and actions that links speak of must be as they were. Changes from before the chain began (a store of schema version 1
or 2) are counted and not vouched for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from triage_monitor.errors import ConfigError, StoreCorrupt
from triage_monitor.storage.audit import Head, content_digest, first_head, link_of
from triage_monitor.storage.audit_witness import read_witness
from triage_monitor.storage.records import ActionRow, AuditRow, ParamsRow, Record
from triage_monitor.storage.rowcodec import decode_row
from triage_monitor.storage.schema import DATABASE_ERRORS

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class Trail:
    """One run as it was found: the newest link, what is wrong, and how many changes are older than the chain."""

    run: str
    head: Head
    faults: tuple[str, ...]
    before_the_chain: int


def verify(directory: Path, witness: Path, expected: dict[str, Head] | None = None) -> list[Trail]:
    """Every run's trail. ConfigError when there is no store, or one without a trail."""
    path = directory / "triage.db"
    if not path.is_file():
        raise ConfigError(f"{directory} holds no store (triage.db)")
    seen, damaged = read_witness(witness)
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30)) as db:
            names = {str(row[0]) for row in db.execute("SELECT run FROM runs UNION SELECT run FROM audit")}
            trails = [_trail(db, run, seen.get(run, {}), expected or {}) for run in sorted({*names, *seen})]
    except DATABASE_ERRORS as error:
        raise ConfigError(f"{path} has no audit trail that can be read: {error}") from None
    if damaged > 1:  # one line may have been cut short by a crash
        fault = f"{damaged} lines of the witness cannot be read"
        trails.append(Trail(str(witness), Head(0, ""), (fault,), 0))
    return trails


def _trail(db: sqlite3.Connection, run: str, seen: dict[int, Head], expected: dict[str, Head]) -> Trail:
    rows = dict(_rows(db, AuditRow, run, "number"))
    top = max(rows, default=0)
    links = {number: row.link for number, row in rows.items() if row is not None}
    faults = [*_broken(run, rows), *_unwitnessed(links, seen, top)]
    known = expected.get(run)
    if known is not None and links.get(known.number) != known.link:
        faults.append(f"entry {known.number} is not the expected one")
    params, actions = dict(_rows(db, ParamsRow, run, "version")), dict(_rows(db, ActionRow, run, "number"))
    audited = [row for row in rows.values() if row is not None]
    faults += _changed("parameter version", "version", audited, params)
    faults += _changed("action", "action", audited, actions)
    older = _older("version", audited, params) + _older("action", audited, actions)
    return Trail(run, Head(top, links.get(top, first_head(run).link)), tuple(faults), older)


def _rows(db: sqlite3.Connection, kind: type[R], run: str, number: str) -> Iterator[tuple[int, R | None]]:
    """Number -> row, None for one whose checksum does not hold."""
    place = kind.columns().index(number)
    for cells in db.execute(f"SELECT * FROM {kind.TABLE} WHERE run = ? ORDER BY {number}", (run,)):
        try:
            yield int(cells[place]), decode_row(kind, cells)
        except StoreCorrupt:
            yield int(cells[place]), None


def _broken(run: str, rows: dict[int, AuditRow | None]) -> Iterator[str]:
    previous: str | None = first_head(run).link
    for number in range(1, max(rows, default=0) + 1):
        row = rows.get(number)
        if row is None:
            yield f"entry {number} is {'damaged' if number in rows else 'missing'}"
            previous = None
            continue
        if link_of(row) != row.link:
            yield f"entry {number} was changed"
        if previous is not None and row.previous != previous:
            yield f"entry {number} does not follow entry {number - 1}"
        previous = row.link


def _unwitnessed(links: dict[int, str], seen: dict[int, Head], top: int) -> Iterator[str]:
    for number, head in sorted(seen.items()):
        if number > top:
            yield f"entry {number} was cut off: the witness has it and the store has not"
        elif number in links and links[number] != head.link:
            yield f"entry {number} is not the one that was witnessed"
    if top and not seen:
        yield "the witness knows nothing of this run"


def _changed(what: str, name: str, audited: list[AuditRow], found: dict[int, R | None]) -> Iterator[str]:
    """Rows that links speak of and that are no longer so, and rows newer than the first of them without a link."""
    told = {int(row.about[name]): str(row.about[f"{name}_digest"]) for row in audited if name in row.about}
    for number, digest in sorted(told.items()):
        row = found.get(number)
        if row is None:
            yield f"{what} {number} is {'damaged' if number in found else 'missing'}"
        elif content_digest(row) != digest:  # type: ignore[arg-type]  # the two kinds that are passed in
            yield f"{what} {number} was changed"
    for number in sorted(set(found) - set(told)):
        if told and number > min(told):
            yield f"{what} {number} has no entry"


def _older(name: str, audited: list[AuditRow], found: dict[int, R | None]) -> int:
    told = [int(row.about[name]) for row in audited if name in row.about]
    return sum(not told or number < min(told) for number in found)
