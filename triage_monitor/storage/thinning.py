"""Compaction: what a run no longer needs of its old updates is given back, and what its history shows stays.

    shards      of closed updates from `shards_from` to before `shards_before`: summary and groups go; key, digest and
                times stay, so that the same shard again is still a duplicate and other content still a conflict
    symptoms    of the same updates: go, and what is left of the sides' halves (their keys and digests stay)
    summaries   (merged, what windows are made of) before `summaries_before`: go, and with them the worst responses
    updates, transitions, parameters, actions: stay for good

An update with a stored shard that is not judged yet keeps everything. The file does not shrink: freed pages are used
again. One call changes at most `LIMIT` rows of a kind, so that writers wait a moment and not a minute.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace

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
THINNED = b""


def is_thinned(row: ShardRow) -> bool:
    return row.summary == THINNED


def thin_rows(
    db: sqlite3.Connection, run: str, shards_from: int, shards_before: int, summaries_before: int
) -> tuple[int, int]:
    """(rows changed, how many of them are gone), within the caller's transaction."""
    at = {name: place for place, name in enumerate(ShardRow.columns())}
    thinned = 0
    for rowid, row in list(_full_shards(db, run, shards_from, shards_before)):
        *cells, checksum = encode_row(replace(row, summary=THINNED, groups=None))
        db.execute(
            f"UPDATE {ShardRow.TABLE} SET summary = ?, groups = NULL, checksum = ? WHERE rowid = ?",
            (cells[at["summary"]], checksum, rowid),
        )
        thinned += 1
    gone = _drop_summaries(db, run, summaries_before)
    for kind in (SymptomRow, HalfContentRow):
        gone += _drop(kind, db, run, shards_from, shards_before)
    return thinned + gone, gone


# From the index of updates by step: a long run is not gone through again for every few updates.
_OLD = (
    f"FROM {UpdateRow.TABLE} AS u INDEXED BY {UpdateRow.TABLE}_in_order CROSS JOIN {{table}} AS s"
    " ON s.run = u.run AND s.attempt = u.attempt AND s.step = u.step WHERE u.run = ? AND u.step >= ? AND u.step < ?"
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
