"""A write that fails between two that do not: nothing is counted for it, and what was stored before it is not left out.

A disk cannot be made to fill at one given write, so the store here is the one in memory with a switch on its writes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
from service.live_server import LiveServer, masses, serving

from triage_monitor.config import Settings
from triage_monitor.errors import StoreFull
from triage_monitor.storage.memory import MemoryStore
from triage_monitor.storage.records import AckRow, Outcome, Record, RunRow, UpdateRow


class SwitchedStore(MemoryStore):
    """Takes no batch that begins with a row of the kind `refused`."""

    refused: type[Record] | None = None

    def write(self, *records: Record) -> Future[tuple[Outcome, ...]]:
        if self.refused is None or not isinstance(records[0], self.refused):
            return super().write(*records)
        future: Future[tuple[Outcome, ...]] = Future()
        future.set_exception(StoreFull("no room"))
        return future


@pytest.fixture(scope="module")
def store() -> SwitchedStore:
    return SwitchedStore()


@pytest.fixture(scope="module")
def server(store: SwitchedStore) -> Iterator[LiveServer]:
    with serving(store=store) as live:
        yield live


def test_refusal_that_was_not_stored_is_not_counted(server: LiveServer, store: SwitchedStore) -> None:
    server.put("ack", 1, masses(3, 2))
    told = {"version": 1, "step": 2, "refused": "outside my range"}
    store.refused = AckRow
    assert [server.http.post("/v1/runs/ack/params/ack", json=told).status_code for _ in range(3)] == [507] * 3
    store.refused = None
    assert server.run("ack")["integrity"]["refused_params"] == 0
    assert server.http.post("/v1/runs/ack/params/ack", json=told).status_code == 200
    assert server.run("ack")["integrity"]["refused_params"] == 1


@pytest.mark.parametrize("shards", [1, 2])
def test_shard_stored_before_the_failure_is_in_its_update_when_it_is_sent_again(
    server: LiveServer, store: SwitchedStore, shards: int
) -> None:
    run = f"retired-{shards}"
    server.put(run, 1, masses(3, 2))
    retire = {"json": {"kind": "retire", "reason": "over"}, "headers": {"Idempotency-Key": "k"}}
    assert server.http.post(f"/v1/runs/{run}/actions", **retire).status_code == 201
    store.refused = RunRow
    assert server.put(run, 2, masses(5, 1), shard=0, shards=shards).status_code == 507
    store.refused = None
    again = server.put(run, 2, masses(5, 1), shard=0, shards=shards)
    assert (again.status_code, again.json()["shards_in"]) == (200, 1)
    if shards == 2:
        assert server.put(run, 2, masses(4, 2), shard=1, shards=2).json()["shards_in"] == 2
    newest = server.run(run)["last_update"]
    expected = {1: (2, "complete", 5.0), 2: (2, "complete", 3.0)}[shards]
    assert (newest["step"], newest["status"], newest["indicators"]["rho_asym"]) == expected


def test_update_that_cannot_be_closed_is_tried_again_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    store = SwitchedStore()
    quick = Settings.from_dict({"server": {"port": 0}, "ingest": {"grace_seconds": 0.05}})
    with serving(quick, store) as live:
        store.refused = UpdateRow
        assert live.put("stuck", 1, masses(3, 2), shard=0, shards=2).status_code == 201
        until = time.monotonic() + 60
        while live.application.sidecar.tally.rejected["close_failed"] < 3 and time.monotonic() < until:
            assert live.http.get("/healthz").status_code == 200
        told = [record for record in caplog.records if "could not be closed" in record.message]
        assert live.application.sidecar.tally.rejected["close_failed"] >= 3
        assert len(told) == 1
        store.refused = None
        while live.run("stuck")["last_update"] is None and time.monotonic() < until:
            assert live.http.get("/healthz").status_code == 200
        assert live.run("stuck")["last_update"]["status"] == "partial"
