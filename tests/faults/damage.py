"""A data directory with known content, and ways to damage its files. The rows are synthetic."""

from __future__ import annotations

import random
import shutil
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

from storage.store_rows import params_row, run_row, shard_row, summary_row

from triage_monitor.storage.pages import PAGE
from triage_monitor.storage.records import (
    ParamsRow,
    Record,
    RunRow,
    ShardRow,
    SummaryRow,
    SymptomRow,
    UpdateRow,
    WorstRow,
)
from triage_monitor.storage.sqlite import SqliteStore

STEPS = 40
WORST = zlib.compress(b"worst", 6)
Damage = Callable[[bytes, random.Random], bytes]


def long_update_row(step: int) -> UpdateRow:
    """Longer than a page, so that overflow pages are damaged too."""
    report = {"update": {"indicators": {"rho_asym": step / 4}, "more": [step] * 2000}}
    return UpdateRow("run-a", 0, step, 0, "complete", 1, 0, 3.5, "healthy", report)


def content() -> list[Record]:
    rows: list[Record] = [run_row()]
    for step in range(STEPS):
        rows += [shard_row(step), long_update_row(step), summary_row(step)]
        rows += [SymptomRow("run-a", 0, step, 0, b"TSYM%d" % step), WorstRow("run-a", 0, step, 0, WORST + b"%d" % step)]
    return rows + [params_row(version) for version in range(1, 12)]


def killed_store(directory: Path, copy: Path, writes: Iterable[tuple[Record, ...]], *, page_bytes: int = PAGE) -> None:
    """`copy` is what a kill would have left of a store of these writes: part of it only in the log."""
    store = SqliteStore(directory, page_bytes=page_bytes)
    for rows in writes:
        store.write(*rows).result()
    shutil.copytree(directory, copy)
    store.close()


def flipped(body: bytes, rng: random.Random) -> bytes:
    at, bit = rng.randrange(len(body)), rng.randrange(8)
    return body[:at] + bytes([body[at] ^ 1 << bit]) + body[at + 1 :]


def cut(body: bytes, rng: random.Random) -> bytes:
    return body[: rng.randrange(len(body))]


def verdict(
    directory: Path, rows: list[Record], older: Iterable[Record] = (), *, page_bytes: int = PAGE
) -> tuple[int, int, int]:
    """(rows gone, rows wrong, losses the store knows of) after opening what is left.

    A row that stands as it was before it was replaced (`older`) is one whose newer self is gone.
    """
    store = SqliteStore(directory, page_bytes=page_bytes)
    try:
        kinds = (RunRow, ShardRow, UpdateRow, SummaryRow, SymptomRow, WorstRow, ParamsRow)
        found = {(kind, row.key): row for kind in kinds for row in store.rows(kind, "run-a")}
        for row in older:
            if found.get((type(row), row.key)) == row:
                del found[type(row), row.key]
        gone = sum((type(row), row.key) not in found for row in rows)
        wrong = sum(found.get((type(row), row.key), row) != row for row in rows) + max(0, len(found) + gone - len(rows))
        return gone, wrong, store.corrupt_rows + store.damage.lost_writes
    finally:
        store.close()
