"""A run of 100,000 updates from outside: sent, opened again, listed, exported, imported, compacted on the way.

Every value is known beforehand. An update costs at the end what it cost at the beginning: the medians of the first and
the last tenth are compared, within one run. `TRIAGE_LONG_RUN` is the long form's count. Synthetic updates.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import pytest
from faults.load import lost_and_wrong, parts
from service.live_server import STREAM, masses
from service.served_process import ServedProcess, served

from triage_monitor.storage.records import ShardRow, SummaryRow, UpdateRow
from triage_monitor.storage.series import Scope, read_series
from triage_monitor.storage.sqlite import SqliteStore
from triage_monitor.storage.thinning import is_thinned
from triage_monitor.storage.transfer import export_run, import_run

RUN = "run"
KEEP_SHARDS, KEEP_SUMMARIES = 50, 60
THINNED_LATE = 64 + 1  # thinning comes every 64 closed updates
ENV = {"TRIAGE_STORE__KEEP_SHARDS": str(KEEP_SHARDS), "TRIAGE_STORE__KEEP_SUMMARIES": str(KEEP_SUMMARIES)}


def _send(server: ServedProcess, updates: int) -> tuple[float, float]:
    """Seconds an update takes: the first tenth's median and the last one's."""
    bodies = {parts(step): masses(*parts(step)) for step in range(35)}
    took = []
    for step in range(updates):
        began = time.perf_counter()
        answer = server.http.put(f"/v1/runs/{RUN}/updates/{step}/shards/0", content=bodies[parts(step)], headers=STREAM)
        took.append(time.perf_counter() - began)
        assert (answer.status_code, answer.json()["update"]) == (201, "complete")
    tenth = updates // 10
    return statistics.median(took[:tenth]), statistics.median(took[-tenth:])


def _listed(server: ServedProcess, updates: int) -> list[float]:
    """rho_asym of every update, by pages of the list."""
    values: list[float] = []
    for first in range(0, updates, 1000):
        page = server.http.get(f"/v1/runs/{RUN}/updates", params={"from": first, "to": first + 999, "limit": 1000})
        reports = page.json()["updates"]
        assert [item["step"] for item in reports] == list(range(first, min(first + 1000, updates)))
        values += [item["indicators"]["rho_asym"] for item in reports]
    return values


def _is_whole(directory: Path, updates: int, expected: list[float]) -> None:
    store = SqliteStore(directory)
    try:
        (series,) = read_series(store, RUN, ["rho_asym"], [Scope.UPDATE])
        assert list(series.values) == expected
        assert store.count(UpdateRow, RUN) == store.count(ShardRow, RUN) == updates
        assert store.count(SummaryRow, RUN) <= KEEP_SUMMARIES + THINNED_LATE
        thinned = [is_thinned(row) for row in store.rows(ShardRow, RUN, first_step=updates - 2 * THINNED_LATE - 150)]
        assert thinned == sorted(thinned, reverse=True)
        assert KEEP_SHARDS <= thinned.count(False) <= KEEP_SHARDS + THINNED_LATE
        assert (store.corrupt_rows, store.damage.times) == (0, 0)
    finally:
        store.close()


def _long_run(home: Path, updates: int, most: float) -> None:
    with served(home / "data", ENV) as server:
        first, last = _send(server, updates)
        print(
            f"{updates} updates: {first * 1000:.2f} ms each at first, {last / first:.2f} times that in the last tenth"
        )
        assert last < most * first
        assert server.end() == 0
    with served(home / "data", ENV) as server:
        expected = [parts(step)[0] / parts(step)[1] for step in range(updates)]
        assert _listed(server, updates) == expected
        assert lost_and_wrong(server, set(range(updates))) == ([], [])
        began = time.monotonic()
        done = export_run(home / "data", RUN, home / "run.triage")  # while it is served
        print(f"exported in {time.monotonic() - began:.1f} s, {(home / 'run.triage').stat().st_size / 1e6:.1f} MB")
        assert (done.rows["updates"], done.damaged) == (updates, 0)
        assert server.http.get(f"/v1/runs/{RUN}").json()["window"]["updates"] == 25
        assert server.end() == 0
    assert import_run(home / "other", home / "run.triage").rows == done.rows
    for place in ("data", "other"):
        _is_whole(home / place, updates, expected)


def test_run_of_hundreds_of_updates_is_listed_exported_and_compacted(tmp_path: Path) -> None:
    _long_run(tmp_path, 300, most=4)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_run_of_a_hundred_thousand_updates_costs_the_same_at_its_end(tmp_path: Path) -> None:
    _long_run(tmp_path, int(os.environ.get("TRIAGE_LONG_RUN", "100000")), most=2)
