"""A long run stays bounded: in memory when its history is read, on disk when it is thinned. Synthetic rows."""

from __future__ import annotations

import os
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from storage.store_rows import run_row, shard_row, summary_row, update_row

from triage_monitor.storage.base import effective_count, effective_updates
from triage_monitor.storage.records import UpdateRow
from triage_monitor.storage.series import Scope, read_series
from triage_monitor.storage.sqlite import SqliteStore


def _update(step: int) -> UpdateRow:
    plain = update_row(step)
    return replace(plain, report={**plain.report, "window": {"indicators": {f"i{n}": n / 7 for n in range(100)}}})


def _write(store: SqliteStore, steps: range, summary: bytes = b"summary") -> None:
    calls = [store.write(replace(shard_row(step), summary=summary), _update(step), summary_row(step)) for step in steps]
    for call in calls:
        call.result()


def _peak_of_series(store: SqliteStore, steps: int) -> int:
    tracemalloc.start()
    (series,) = read_series(store, "run-a", ["rho_asym"], [Scope.UPDATE])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert series.steps == tuple(range(steps))
    assert series.values == tuple(step / 4 for step in range(steps))
    return peak


def _run_of(directory: Path, steps: int) -> None:
    store = SqliteStore(directory)
    try:
        store.write(run_row()).result()
        _write(store, range(600))
        few = _peak_of_series(store, 600)
        _write(store, range(600, steps))
        assert _peak_of_series(store, steps) < 2 * few + 200 * steps
        assert [row.step for row in effective_updates(store, "run-a", newest=25)] == list(range(steps - 25, steps))
        assert effective_count(store, "run-a") == steps
        assert store.corrupt_rows == 0
    finally:
        store.close()


def test_history_of_thousands_of_updates_is_read_in_bounded_memory(tmp_path: Path) -> None:
    _run_of(tmp_path, 1800)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_history_of_a_hundred_thousand_updates_is_read_in_bounded_memory(tmp_path: Path) -> None:
    _run_of(tmp_path, int(os.environ.get("TRIAGE_LONG_RUN", "100000")))


def test_thinned_shards_leave_room_for_the_next_ones(tmp_path: Path) -> None:
    sizes = {}
    for thinned in (True, False):
        store = SqliteStore(tmp_path / str(thinned))
        for first in range(0, 300, 30):
            _write(store, range(first, first + 30), summary=bytes(20_000))
            before = first if thinned else 0
            while store.thin("run-a", shards_before=before, summaries_before=before).result().rows:
                pass
        store.close()
        sizes[thinned] = (tmp_path / str(thinned) / "triage.db").stat().st_size
    assert sizes[True] < sizes[False] / 2
