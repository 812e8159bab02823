"""The wall clock jumps a week ahead and back: nothing retires, closes early, gets lost or changes."""

from __future__ import annotations

from pathlib import Path

from service.live_server import masses, serving

from triage_monitor.service.clock import Clock
from triage_monitor.storage.sqlite import SqliteStore

WEEK = 7 * 86_400.0


def test_wall_clock_jumping_both_ways_changes_no_update(tmp_path: Path) -> None:
    wall, running = [1_700_000_000.0], [0.0]
    store = SqliteStore(tmp_path)
    try:
        with serving(store=store, clock=Clock(lambda: wall[0], lambda: running[0])) as server:
            for step, jump in enumerate((0.0, WEEK, -2 * WEEK, WEEK, -WEEK)):
                wall[0] += jump
                running[0] += 1.0
                assert server.put("run", step, masses(3, 2)).status_code == 201
                assert server.put("run", 100 + step, masses(3, 0), shards=2).json()["update"] == "open"
                assert server.close_overdue() == 0
                assert 'triage_stage{run="run",stage="warming_up"}' in server.metrics()
            wall[0] -= 3 * WEEK
            assert [item["step"] for item in server.run("run")["open_updates"]] == [100, 101, 102, 103, 104]
            running[0] += 61.0
            assert server.close_overdue() == 5
            series = server.http.get("/v1/runs/run/series", params={"name": "rho_asym"}).json()["series"][0]
            assert series["steps"] == [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]
            assert series["values"][:5] == [1.5] * 5
    finally:
        store.close()
