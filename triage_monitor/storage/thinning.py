"""Compaction: what a run no longer needs of its old updates is given back, and what its history shows stays.

    shards      of closed updates from `shards_from` to before `shards_before`: summary and groups go; key, digest and
                times stay, so that the same shard again is still a duplicate and other content still a conflict
    symptoms    of the same updates: go, and what is left of the sides' halves (their keys and digests stay)
    summaries   (merged, what windows are made of) before `summaries_before`: go, and with them the worst responses
    updates, transitions, parameters, actions: stay for good

An update with a stored shard that is not judged yet keeps everything. The file does not shrink: freed pages are used
again. One call looks at `LOOK` updates and changes at most `LIMIT` rows of a kind, so that writers wait a moment and
not a minute: a process that begins looks through the whole run once, whatever its length.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace

from triage_monitor.errors import StoreCorrupt
from triage_monitor.storage.records import (
    HalfContentRow,
    Record,
    ShardRow,
    SummaryRow,
    SymptomRow,
    UpdateRow,
    WorstRow,
)
from triage_monitor.storage.rowcodec import decode_row, encode_row

LIMIT = 256
LOOK = 256
THINNED = b""


@dataclass(frozen=True, slots=True)
class Thinned:
    """What one call did. The next one goes on with `shards_from`; None once nothing is left to do."""

    rows: int
    shards_from: int | None


def is_thinned(row: ShardRow) -> bool:
    return row.summary == THINNED


def thin_rows(
    db: sqlite3.Connection, run: str, shards_from: int, shards_before: int, summaries_before: int
) -> tuple[Thinned, int]:
    """What was done, and how many rows are gone by it; within the caller's transaction."""
    until = _some_updates_on(db, run, shards_from, shards_before)
    at = {name: place for place, name in enumerate(ShardRow.columns())}
    thinned = 0
    for rowid, row in list(_full_shards(db, run, shards_from, until)):
        *cells, checksum = encode_row(replace(row, summary=THINNED, groups=None))
        db.execute(
            f"UPDATE {ShardRow.TABLE} SET summary = ?, groups = NULL, checksum = ? WHERE rowid = ?",
            (cells[at["summary"]], checksum, rowid),
        )
        thinned += 1
    gone = _drop_summaries(db, run, summaries_before)
    for kind in (SymptomRow, HalfContentRow):
        gone += _drop(kind, db, run, shards_from, until)
    if thinned + gone:
        return Thinned(thinned + gone, shards_from), gone
    return Thinned(0, until if until < shards_before else None), 0


def _some_updates_on(db: sqlite3.Connection, run: str, first: int, before: int) -> int:
    """The step, at most `before`, by which `LOOK` updates from `first` on are passed."""
    sql = f"SELECT step FROM {UpdateRow.TABLE} WHERE run = ? AND step >= ? AND step < ? ORDER BY step LIMIT 1 OFFSET ?"
    row = db.execute(sql, (run, first, before, LOOK)).fetchone()
    return before if row is None else max(int(row[0]), first + 1)


# From the index of updates by step: a long run is not gone through again for every few updates. The plus keeps SQLite
# from taking the bounds of `u.step` for `s.step` too: it would look up the whole range for each update.
_OLD = (
    f"FROM {UpdateRow.TABLE} AS u INDEXED BY {UpdateRow.TABLE}_in_order CROSS JOIN {{table}} AS s"
    " ON s.run = u.run AND s.attempt = u.attempt AND s.step = +u.step WHERE u.run = ? AND u.step >= ? AND u.step < ?"
)


def _full_shards(db: sqlite3.Connection, run: str, first: int, before: int) -> Iterator[tuple[int, ShardRow]]:
    sql = (
        f"SELECT s.rowid, s.* {_OLD.format(table=ShardRow.TABLE)}"
        " AND length(s.summary) > 0 AND u.shards - u.missing_shards >="
        f" (SELECT count(*) FROM {ShardRow.TABLE} AS o"
        " WHERE o.run = s.run AND o.attempt = s.attempt AND o.step = s.step) LIMIT ?"
    )
    for rowid, *cells in db.execute(sql, (run, first, before, LIMIT)):
        try:
            yield rowid, decode_row(ShardRow, cells)
        except StoreCorrupt:
            continue  # counted when it is read; damaged content is not sealed anew


def _drop(kind: type[Record], db: sqlite3.Connection, run: str, first: int, before: int) -> int:
    inner = f"SELECT s.rowid {_OLD.format(table=kind.TABLE)} LIMIT ?"
    sql = f"DELETE FROM {kind.TABLE} WHERE rowid IN ({inner})"
    return db.execute(sql, (run, first, before, LIMIT)).rowcount


def _drop_summaries(db: sqlite3.Connection, run: str, before: int) -> int:
    """And the worst responses of the same updates."""
    inner = f"SELECT rowid, attempt, step FROM {SummaryRow.TABLE} WHERE run = ? AND step < ? LIMIT ?"
    gone = 0
    for rowid, attempt, step in db.execute(inner, (run, before, LIMIT)).fetchall():
        db.execute(f"DELETE FROM {SummaryRow.TABLE} WHERE rowid = ?", (rowid,))
        worst = f"DELETE FROM {WorstRow.TABLE} WHERE run = ? AND attempt = ? AND step = ?"
        gone += 1 + db.execute(worst, (run, attempt, step)).rowcount
    return gone
