"""An update whose closing raises by its own fault: tried a few times, then set aside, while all others go on.

The fault is a real one: group ids of a stored shard that are no whole numbers any more, under a checksum that holds.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import pytest
from service.live_server import STREAM, FakeClock, LiveServer, masses, serving

from triage_monitor.config import Settings
from triage_monitor.storage.records import HalfContentRow, Record, ShardRow
from triage_monitor.storage.rowcodec import encode_row
from triage_monitor.storage.sqlite import SqliteStore
from triage_monitor.summary.rows_halves import LEARNER, SAMPLER, half_of_arrays, half_to_bytes

R = TypeVar("R", bound=Record)
GRACE = {"server": {"port": 0}, "ingest": {"grace_seconds": 30.0}}
PAUSES = (1, 2, 4, 8)


@contextmanager
def _served(directory: Path, clock: FakeClock) -> Iterator[LiveServer]:
    store = SqliteStore(directory)
    try:
        with serving(Settings.from_dict(GRACE), store, clock.clock) as server:
            yield server
    finally:
        store.close()


def _put_in_place(directory: Path, row: Record) -> None:
    """Writes over the stored row of this key, sealed anew."""
    kind = type(row)
    with closing(sqlite3.connect(directory / "triage.db")) as db, db:
        columns = ", ".join(f"{name} = ?" for name in (*kind.columns(), "checksum"))
        where = " AND ".join(f"{name} = ?" for name in kind.KEY)
        statement = f"UPDATE {kind.TABLE} SET {columns} WHERE {where}"
        assert db.execute(statement, (*encode_row(row), *row.key)).rowcount == 1


def _stored(directory: Path, kind: type[R], *key: object) -> R:
    store = SqliteStore(directory)
    row = store.get(kind, *key)
    store.close()
    assert row is not None
    return row


def _with_groups(directory: Path, groups: bytes) -> bytes | None:
    """Puts other group ids into the stored shard 0 of run `faulty`'s update 1; returns those it had."""
    row = _stored(directory, ShardRow, "faulty", 0, 1, 0)
    _put_in_place(directory, replace(row, groups=groups))
    return row.groups


def _sent(directory: Path, clock: FakeClock) -> bytes:
    """Two of three shards of an update in either run and of a later one; then the first is damaged."""
    with _served(directory, clock) as server:
        for run, step in (("faulty", 1), ("faulty", 2), ("sound", 1)):
            for shard in range(2):
                assert server.put(run, step, masses(3, 2), shard=shard, shards=3).json()["update"] == "open"
    groups = _with_groups(directory, b"not whole numbers")
    assert groups is not None
    return groups


def _steps(server: LiveServer, run: str) -> list[tuple[int, str]]:
    updates = server.http.get(f"/v1/runs/{run}/updates").json()["updates"]
    return [(item["step"], item["status"]) for item in updates]


def test_update_that_cannot_be_closed_is_set_aside_and_tried_again_by_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    groups = _sent(tmp_path, clock)
    with caplog.at_level(logging.ERROR, "triage_monitor"), _served(tmp_path, clock) as server:
        clock.advance(31)
        assert server.close_overdue() == 2
        assert _steps(server, "sound") == [(1, "partial")]
        assert _steps(server, "faulty") == [(2, "partial")]
        assert server.put("faulty", 3, masses(3, 2)).json()["update"] == "complete"
        for number, pause in enumerate(PAUSES, start=1):
            assert server.sidecar.tally.rejected["close_failed"] == number
            assert server.run("faulty")["unclosable_updates"] == []
            clock.advance(pause - 0.1)
            assert server.close_overdue() == 0
            assert server.sidecar.tally.rejected["close_failed"] == number
            clock.advance(0.2)
            assert server.close_overdue() == 0
        clock.advance(3600)
        assert server.close_overdue() == 0
        assert server.sidecar.tally.rejected["close_failed"] == 5
        _is_told(server, [record.getMessage() for record in caplog.records])
        late = server.put("faulty", 1, masses(4, 2), shard=2, shards=3)
        assert (late.status_code, late.json()["update"], late.json()["shards_in"]) == (201, "unclosable", 3)
        again = server.put("faulty", 1, masses(4, 2), shard=2, shards=3)
        assert (again.status_code, again.json()["update"]) == (200, "unclosable")
        assert server.put("faulty", 1, masses(4, 2), shard=3, shards=4).status_code == 409
        assert server.put("faulty", 4, masses(3, 2)).json()["update"] == "complete"
        assert server.sidecar.tally.rejected["close_failed"] == 5
    _with_groups(tmp_path, groups)
    with _served(tmp_path, clock) as server:
        assert _steps(server, "faulty") == [(1, "complete"), (2, "partial"), (3, "complete"), (4, "complete")]
        [first, *_] = server.http.get("/v1/runs/faulty/updates").json()["updates"]
        assert first["masses"]["a_neg"] == 10.0
        assert server.http.get("/readyz").json()["unclosable_updates"] == []
        assert server.metrics()['triage_unclosable_updates{run="faulty"}'] == 0.0


def _is_told(server: LiveServer, log: list[str]) -> None:
    ready = server.http.get("/readyz")
    assert (ready.status_code, ready.json()["store"]) == (200, "ok")
    [told] = ready.json()["unclosable_updates"]
    assert (told["run"], told["step"], told["attempt"], told["shards_in"], told["shards"]) == ("faulty", 1, 0, 2, 3)
    assert told["reason"].startswith("ValueError: buffer size")
    detail = server.run("faulty")
    assert detail["unclosable_updates"] == [{name: value for name, value in told.items() if name != "run"}]
    assert detail["open_updates"] == []
    metrics = server.metrics()
    assert metrics['triage_unclosable_updates{run="faulty"}'] == 1.0
    assert metrics['triage_unclosable_updates{run="sound"}'] == 0.0
    assert metrics['triage_ingest_rejected_total{reason="close_failed"}'] == 5.0
    assert metrics["triage_store_writable"] == 1.0
    about = [line for line in log if "update 1 of run faulty (attempt 0)" in line]
    assert ["is set aside" in line for line in about] == [False, True]
    assert "buffer size" in about[1]


def test_shard_that_completes_an_unclosable_update_is_acknowledged_and_kept(tmp_path: Path) -> None:
    clock = FakeClock()
    groups = _sent(tmp_path, clock)
    with _served(tmp_path, clock) as server:
        last = server.put("faulty", 1, masses(4, 2), shard=2, shards=3)
        assert (last.status_code, last.json()["update"]) == (201, "unclosable")
        assert server.put("faulty", 2, masses(4, 2), shard=2, shards=3).json()["update"] == "complete"
    _with_groups(tmp_path, groups)
    with _served(tmp_path, clock) as server:
        assert _steps(server, "faulty") == [(1, "complete"), (2, "complete")]


def test_run_with_an_update_set_aside_retires_like_another(tmp_path: Path) -> None:
    clock = FakeClock()
    _sent(tmp_path, clock)
    with _served(tmp_path, clock) as server:
        clock.advance(31)
        server.close_overdue()
        for pause in PAUSES:
            clock.advance(pause + 0.1)
            server.close_overdue()
        assert len(server.run("faulty")["unclosable_updates"]) == 1
        clock.advance(2 * 86400)
        server.close_overdue()
        assert "faulty" not in server.sidecar.runs


def _put_half(server: LiveServer, side: str, shard: int, shards: int, **arrays: Any) -> httpx.Response:
    body = half_to_bytes(half_of_arrays(side, {"offsets": np.array([0, 2]), **arrays}, {}))
    query = {"side": side, "shards": shards}
    return server.http.put(f"/v1/runs/faulty/updates/1/shards/{shard}", params=query, content=body, headers=STREAM)


def _put_learner(server: LiveServer, shard: int, shards: int = 2, value: float = -0.5) -> httpx.Response:
    arrays = {"learner_logprobs": np.full(2, value, np.float32), "advantages": np.ones(1)}
    return _put_half(server, LEARNER, shard, shards, response_ids=[f"r{shard}"], **arrays)


def test_update_of_two_sides_that_cannot_be_joined_is_set_aside_like_another(tmp_path: Path) -> None:
    clock = FakeClock()
    with _served(tmp_path, clock) as server:
        sampled = {"sampler_logprobs": np.full(4, -0.75, np.float32), "response_ids": ["r0", "r1"]}
        assert _put_half(server, SAMPLER, 0, 1, **sampled, offsets=np.array([0, 2, 4])).status_code == 201
        assert _put_learner(server, 0).json()["update"] == "open"
    whole = _stored(tmp_path, HalfContentRow, "faulty", 0, 1, SAMPLER, 0)
    _put_in_place(tmp_path, replace(whole, content=b"no rows"))
    with _served(tmp_path, clock) as server:
        clock.advance(31)
        server.close_overdue()
        for pause in PAUSES:
            assert server.run("faulty")["unclosable_updates"] == []
            clock.advance(pause + 0.1)
            server.close_overdue()
        [aside] = server.run("faulty")["unclosable_updates"]
        assert (aside["step"], aside["shards_in"], aside["shards"]) == (1, 2, 3)
        late = _put_learner(server, 1)
        assert (late.status_code, late.json()["update"], late.json()["shards_in"]) == (201, "unclosable", 3)
        again = _put_learner(server, 1)
        assert (again.status_code, again.json()["update"]) == (200, "unclosable")
        assert _put_learner(server, 1, value=-0.25).status_code == 409
        assert _put_learner(server, 2, shards=4).status_code == 409
        assert server.put("faulty", 2, masses(3, 2)).json()["update"] == "complete"
    _put_in_place(tmp_path, whole)
    with _served(tmp_path, clock) as server:
        assert _steps(server, "faulty") == [(1, "complete"), (2, "complete")]
        joined = server.run("faulty")["integrity"]
        assert joined["joined_rows"] == 2
        [first, _] = server.http.get("/v1/runs/faulty/updates").json()["updates"]
        assert first["masses"]["a_pos"] == 4.0  # four tokens above their sampler, each of advantage 1
