"""Shards shuffled, repeated, late, missing and in numbers that change mid-run end in the same history as in order."""

from __future__ import annotations

import random
from pathlib import Path

import httpx
from service.live_server import FakeClock, LiveServer, masses, serving

from triage_monitor.config import Settings
from triage_monitor.service.live import THIN_EVERY
from triage_monitor.service.thinning import thin_if_due
from triage_monitor.storage.records import ShardRow, SummaryRow, UpdateRow
from triage_monitor.storage.sqlite import SqliteStore
from triage_monitor.storage.thinning import is_thinned

STEPS = 12
SETTINGS = {"server": {"port": 0}, "store": {"keep_shards": 25, "keep_summaries": 30}}


def _plan() -> list[tuple[int, int, int]]:
    """(step, shard, shards): one shard at first, then two, then three."""
    counts = {step: 1 + step // 4 for step in range(STEPS)}
    return [(step, shard, shards) for step, shards in counts.items() for shard in range(shards)]


def _send(server: LiveServer, run: str, plan: list[tuple[int, int, int]]) -> list[int]:
    answers: list[httpx.Response] = [
        server.put(run, step, masses(step + shard + 1, shard + 2), shard=shard, shards=shards)
        for step, shard, shards in plan
    ]
    return [answer.status_code for answer in answers]


def _series(server: LiveServer, run: str) -> dict[str, list[object]]:
    found = server.http.get(f"/v1/runs/{run}/series", params={"name": "rho_asym"}).json()["series"][0]
    return {"steps": found["steps"], "values": found["values"]}


def test_shuffled_and_repeated_shards_of_a_changing_number_give_the_history_of_the_ordered_ones(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    try:
        with serving(Settings.from_dict(SETTINGS), store) as server:
            plan = _plan()
            assert set(_send(server, "ordered", plan)) == {201}
            shuffled = plan + plan[::3]
            random.Random(3).shuffle(shuffled)
            codes = _send(server, "shuffled", shuffled)
            assert (codes.count(201), codes.count(200)) == (len(plan), len(plan[::3]))
            assert _series(server, "shuffled") == _series(server, "ordered")
            conflict = server.put("shuffled", 11, masses(9, 9), shard=0, shards=3)
            other_count = server.put("shuffled", 11, masses(12, 2), shard=0, shards=4)
            assert (conflict.status_code, other_count.status_code) == (409, 409)
            assert _series(server, "shuffled") == _series(server, "ordered")
            # A window is judged at its newest update and sees what came late from the next one on.
            plan.append((STEPS, 0, 1))
            assert [_send(server, run, plan[-1:]) for run in ("ordered", "shuffled")] == [[201], [201]]
            window = [server.run(run)["window"]["indicators"]["rho_asym"] for run in ("ordered", "shuffled")]
            amplifying = [(step + shard + 1, shard + 2) for step, shard, _ in plan]
            expected = sum(pair[0] for pair in amplifying) / sum(pair[1] for pair in amplifying)
            assert window == [expected, expected]
    finally:
        store.close()


def test_resumed_attempt_replaces_from_its_first_step_and_a_missing_shard_is_said(tmp_path: Path) -> None:
    clock, store = FakeClock(), SqliteStore(tmp_path)
    try:
        with serving(Settings.from_dict(SETTINGS), store, clock.clock) as server:
            for step in range(6):
                assert server.put("run", step, masses(3, 2)).status_code == 201
            begun = server.http.post("/v1/runs/run/attempts", json={"from_step": 3, "launch_id": "second"}).json()
            assert begun["attempt"] == 1
            assert server.put("run", 3, masses(4, 2), shards=2, attempt=1).json()["update"] == "open"
            clock.advance(61)
            assert server.close_overdue() == 1
            assert server.put("run", 4, masses(5, 2), attempt=1).status_code == 201
            assert _series(server, "run") == {"steps": [0, 1, 2, 3, 4], "values": [1.5, 1.5, 1.5, 2.0, 2.5]}
            integrity = server.run("run")["integrity"]
            assert (integrity["partial_updates"], integrity["missing_shards"]) == (1, 1)
            late = server.put("run", 3, masses(2, 1), shard=1, shards=2, attempt=1)
            assert (late.status_code, late.json()["update"]) == (201, "complete")
            assert _series(server, "run")["values"][3] == 2.0
            assert server.run("run")["integrity"]["missing_shards"] == 0
    finally:
        store.close()


def test_old_shards_are_thinned_while_the_history_stays_and_a_shard_too_late_is_refused(tmp_path: Path) -> None:
    clock, store = FakeClock(), SqliteStore(tmp_path)
    settings = Settings.from_dict(SETTINGS)
    try:
        with serving(settings, store, clock.clock) as server:
            server.put("run", 0, masses(3, 2), shards=2)
            clock.advance(61)
            assert server.close_overdue() == 1
            for step in range(1, 36):
                assert server.put("run", step, masses(3, 2)).status_code == 201
            before = _series(server, "run")
            live = server.sidecar.runs["run"]
            live.closed_since_thinning = THIN_EVERY
            assert server.call(thin_if_due(live, settings.store)) > 0
            assert [row.step for row in store.rows(ShardRow, "run") if is_thinned(row)] == list(range(11))
            assert [row.step for row in store.rows(SummaryRow, "run")] == list(range(6, 36))
            assert len(store.rows(UpdateRow, "run")) == 36
            assert server.put("run", 5, masses(3, 2)).status_code == 200
            assert server.put("run", 5, masses(4, 2)).status_code == 409
            too_late = server.put("run", 0, masses(1, 1), shard=1, shards=2)
            assert too_late.status_code == 409
            assert "thinned" in too_late.json()["detail"]
            assert _series(server, "run") == before
            assert server.put("run", 36, masses(3, 2)).status_code == 201
            assert server.run("run")["window"]["updates"] == 25
    finally:
        store.close()


def test_restart_after_thinning_continues_with_the_same_window(tmp_path: Path) -> None:
    settings = Settings.from_dict(SETTINGS)
    windows = []
    for first in (0, 30):
        store = SqliteStore(tmp_path)
        with serving(settings, store) as server:
            for step in range(first, first + 30):
                assert server.put("run", step, masses(step + 1, 2)).status_code == 201
            live = server.sidecar.runs["run"]
            live.closed_since_thinning = THIN_EVERY
            server.call(thin_if_due(live, settings.store))
            windows.append(server.run("run")["window"]["indicators"]["rho_asym"])
        store.close()
    assert windows == [sum(range(6, 31)) / 50, sum(range(36, 61)) / 50]


def test_attempt_that_goes_back_behind_what_was_thinned_is_thinned_as_well(tmp_path: Path) -> None:
    settings, store = Settings.from_dict(SETTINGS), SqliteStore(tmp_path)
    try:
        with serving(settings, store) as server:
            for attempt, first in ((0, 0), (1, 3)):
                for step in range(first, 36):
                    assert server.put("run", step, masses(3, 2), attempt=attempt).status_code == 201
                live = server.sidecar.runs["run"]
                live.closed_since_thinning = THIN_EVERY
                server.call(thin_if_due(live, settings.store))
        thinned = [(row.attempt, row.step) for row in store.rows(ShardRow, "run") if is_thinned(row)]
        assert thinned == [*((0, step) for step in range(11)), *((1, step) for step in range(3, 11))]
    finally:
        store.close()
