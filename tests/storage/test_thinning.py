"""Compaction: what goes, what stays, and that a thinned shard still tells a duplicate from a conflict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from storage.store_rows import run_row, shard_row, summary_row, update_row

from triage_monitor.errors import ConflictError
from triage_monitor.storage.base import Store
from triage_monitor.storage.memory import MemoryStore
from triage_monitor.storage.records import Outcome, ShardRow, SummaryRow, SymptomRow, UpdateRow, WorstRow
from triage_monitor.storage.sqlite import SqliteStore
from triage_monitor.storage.thinning import LOOK, Thinned, is_thinned


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path)
    made.write(run_row()).result()
    for step in range(10):
        made.write(shard_row(step), update_row(step), summary_row(step), SymptomRow("run-a", 0, step, 0, b"s")).result()
        made.write(WorstRow("run-a", 0, step, 0, b"w")).result()
    yield made
    made.close()


def _thinned(store: Store) -> list[int]:
    return [row.step for row in store.rows(ShardRow, "run-a") if is_thinned(row)]


def test_old_shards_lose_their_summaries_and_series_stay(store: Store) -> None:
    assert store.thin("run-a", shards_before=6, summaries_before=2).result() == Thinned(6 + 6 + 2 * 2, 0)
    assert store.thin("run-a", shards_before=6, summaries_before=2).result() == Thinned(0, None)
    assert _thinned(store) == [0, 1, 2, 3, 4, 5]
    assert [row.step for row in store.rows(SymptomRow, "run-a")] == [6, 7, 8, 9]
    assert [row.step for row in store.rows(SummaryRow, "run-a")] == list(range(2, 10))
    assert [row.step for row in store.rows(WorstRow, "run-a")] == list(range(2, 10))
    assert store.rows(UpdateRow, "run-a") == [update_row(step) for step in range(10)]
    assert store.get(ShardRow, "run-a", 0, 6, 0) == shard_row(6)
    assert store.corrupt_rows == 0


def test_thinned_shard_is_still_a_duplicate_or_a_conflict(store: Store) -> None:
    store.thin("run-a", shards_before=6, summaries_before=2).result()
    assert store.write(shard_row(3)).result() == (Outcome.DUPLICATE,)
    with pytest.raises(ConflictError):
        store.write(shard_row(3, digest="other")).result()


def test_update_with_a_shard_that_is_not_judged_keeps_everything(store: Store) -> None:
    store.write(shard_row(20, 0, shards=2), update_row(20, shards=2, missing=1)).result()
    store.write(shard_row(20, 1, shards=2), shard_row(21)).result()
    store.thin("run-a", shards_before=100, summaries_before=0).result()
    assert _thinned(store) == list(range(10))


def test_other_runs_are_left_alone(store: Store) -> None:
    store.write(run_row("run-b"), shard_row(1, run="run-b"), update_row(1, run="run-b")).result()
    store.thin("run-a", shards_before=100, summaries_before=100).result()
    assert store.rows(ShardRow, "run-b") == [shard_row(1, run="run-b")]


def _looked_through(directory: Path, updates: int) -> list[int]:
    """SQLite's instructions, in hundreds, of each call of a new process, where so many updates are thinned already."""
    store = SqliteStore(directory)
    store.write(run_row()).result()
    for step in range(updates):
        store.write(shard_row(step), update_row(step), SymptomRow("run-a", 0, step, 0, b"s"))
    limits = {"shards_before": updates, "summaries_before": 0}
    first: int | None = 0
    while first is not None:
        first = store.thin("run-a", shards_from=first, **limits).result().shards_from
    assert _thinned(store) == list(range(updates))
    hundreds, calls = 0, []

    def count() -> int:
        nonlocal hundreds
        hundreds += 1
        return 0

    store._writer_db.set_progress_handler(count, 100)
    first = 0
    while first is not None:
        hundreds = 0
        first = store.thin("run-a", shards_from=first, **limits).result().shards_from
        calls.append(hundreds)
    store.close()
    return calls


def test_long_run_is_looked_through_in_calls_that_cost_no_more_than_a_short_ones(tmp_path: Path) -> None:
    """Each update once looked up the whole range of steps: minutes of a held writer after the restart of a long run."""
    short = _looked_through(tmp_path / "short", LOOK)
    long = _looked_through(tmp_path / "long", 8 * LOOK + 1)
    assert (len(short), len(long)) == (1, 9)
    assert max(long) <= 1.2 * max(short)
    assert max(short) < LOOK  # so many hundreds: no more than a hundred instructions an update
