"""When updates close: all shards in, the grace period, late shards, attempts, groups over shards (C33, C34)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from service.live_server import FakeClock, LiveServer, arrow, masses, serving

from triage_monitor.config import Settings
from triage_monitor.storage.memory import MemoryStore
from triage_monitor.storage.records import Outcome, Record, ShardRow, UpdateRow
from triage_monitor.summary.build import summarize
from triage_monitor.summary.codec import encode
from triage_monitor.summary.rows import SUMMARY_MIME

CASES = Path(__file__).parents[1] / "cases" / "inputs"
GRACE = {"server": {"port": 0}, "ingest": {"grace_seconds": 30.0}}


@pytest.fixture(scope="module")
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="module")
def server(clock: FakeClock) -> Iterator[LiveServer]:
    with serving(Settings.from_dict(GRACE), clock=clock.clock) as live:
        yield live


def shard_of(a_neg: int, a_pos: int, valid: int) -> bytes:
    """One-token responses: those masses, and the rest of `valid` tokens in no amplifying region."""
    rest = valid - a_neg - a_pos
    gap = [[-0.1]] * a_neg + [[0.1]] * a_pos + [[0.1]] * rest
    return arrow(gap, [-1.0] * a_neg + [1.0] * a_pos + [-1.0] * rest)


FOUR = [(4, 2, 40), (3, 3, 38), (5, 1, 41)]
EMPTY = arrow([[0.3]], [1.0], mask=[np.zeros(1, dtype=bool)])


def test_update_closes_with_its_last_shard_an_empty_one_included(server: LiveServer) -> None:
    for shard, parts in enumerate(FOUR):
        answer = server.put("c33a", 1, shard_of(*parts), shard=shard, shards=4).json()
        assert (answer["update"], answer["shards_in"]) == ("open", shard + 1)
        assert server.run("c33a")["last_update"] is None
    assert server.put("c33a", 1, EMPTY, shard=3, shards=4).json()["update"] == "complete"
    newest = server.run("c33a")["last_update"]
    assert (newest["status"], newest["missing_shards"]) == ("complete", 0)
    assert newest["indicators"]["rho_asym"] == 2.0
    assert newest["counts"]["valid_tokens"] == 119


def test_silent_shard_delays_its_update_by_the_grace_period_only(server: LiveServer, clock: FakeClock) -> None:
    for shard, parts in enumerate(FOUR):
        server.put("c33b", 1, shard_of(*parts), shard=shard, shards=4)
    clock.advance(29.9)
    assert server.close_overdue() == 0
    assert server.run("c33b")["open_updates"] == [{"step": 1, "attempt": 0, "shards_in": 3, "shards": 4}]
    clock.advance(0.2)
    assert server.close_overdue() == 1
    detail = server.run("c33b")
    newest = detail["last_update"]
    assert (newest["status"], newest["missing_shards"]) == ("partial", 1)
    assert newest["indicators"]["rho_asym"] == 2.0
    assert newest["counts"]["valid_tokens"] == 119
    assert (detail["integrity"]["partial_updates"], detail["integrity"]["missing_shards"]) == (1, 1)


def test_update_that_still_grows_is_not_overdue_until_ten_graces_after_its_first_shard(
    server: LiveServer, clock: FakeClock
) -> None:
    for shard in range(12):
        server.put("grows", 1, masses(3, 2), shard=shard, shards=20)
        assert server.close_overdue() == 0
        clock.advance(25)
    assert server.run("grows")["open_updates"][0]["shards_in"] == 12
    clock.advance(0.5)  # 300.5 seconds since the first, 25.5 since the last
    assert server.close_overdue() == 1
    assert server.run("grows")["last_update"]["missing_shards"] == 8


def test_many_late_shards_make_the_update_that_all_at_once_would_have_made(
    server: LiveServer, clock: FakeClock
) -> None:
    parts = [masses(3 + shard, 2) for shard in range(12)]
    for shard, body in enumerate(parts):
        server.put("whole", 1, body, shard=shard, shards=12)
    for shard in (4, 0, 7):
        server.put("drips", 1, parts[shard], shard=shard, shards=12)
    clock.advance(31)
    server.close_overdue()
    server.put("other", 1, masses(1, 1), shard=0, shards=2)
    for number, shard in enumerate((9, 1, 2, 3, 11, 5, 6, 8, 10)):
        if number == 4:
            server.put("drips", 2, masses(1, 1))  # a later update closes between them
        answer = server.put("drips", 1, parts[shard], shard=shard, shards=12).json()
        assert (answer["update"], answer["shards_in"]) == ("partial" if number < 8 else "complete", 4 + number)
    [whole] = server.http.get("/v1/runs/whole/updates").json()["updates"]
    drips = server.http.get("/v1/runs/drips/updates").json()["updates"][0]
    assert drips["revision"] == 9
    assert drips["indicators"] == whole["indicators"]
    assert drips["counts"] == whole["counts"]
    assert server.run("drips")["integrity"]["late_shards"] == 9


class HeldStore(MemoryStore):
    """While `held` is a list, writes that begin with a shard wait in it."""

    held: list[tuple[Future[tuple[Outcome, ...]], tuple[Record, ...]]] | None = None

    def write(self, *records: Record) -> Future[tuple[Outcome, ...]]:
        if self.held is None or not isinstance(records[0], ShardRow):
            return super().write(*records)
        self.held.append((Future(), records))
        return self.held[-1][0]

    def release(self) -> None:
        held, self.held = self.held or [], None
        for future, records in held:
            future.set_result(self.write(*records).result())


def test_late_shards_that_come_at_once_are_one_revision_and_equal_all_at_once() -> None:
    parts, clock, store = [masses(3 + shard, 2) for shard in range(12)], FakeClock(), HeldStore()
    with serving(Settings.from_dict(GRACE), store, clock.clock) as server:
        for shard, body in enumerate(parts):
            server.put("wanted", 1, body, shard=shard, shards=12)
        for shard in range(4):
            server.put("flood", 1, parts[shard], shard=shard, shards=12)
        clock.advance(31)
        server.close_overdue()
        live, answers = server.sidecar.runs["flood"], []

        def send(shard: int) -> None:
            answers.append(server.put("flood", 1, parts[shard], shard=shard, shards=12).json())

        store.held = []
        threads = [threading.Thread(target=send, args=(shard,)) for shard in range(4, 12)]
        for thread in threads:
            thread.start()
        server.call(_until(lambda: len(store.held or ()) == 8))
        server.call(live.lock.acquire())
        store.release()
        server.call(_until(lambda: len(live.landings.at((0, 1))) == 8))
        server.call(_released(live.lock))
        for thread in threads:
            thread.join()
        assert [(item["update"], item["shards_in"]) for item in answers] == [("complete", 12)] * 8
        [wanted] = server.http.get("/v1/runs/wanted/updates").json()["updates"]
        [flood] = server.http.get("/v1/runs/flood/updates").json()["updates"]
        assert flood["revision"] == 1
        told = ("indicators", "counts", "masses", "quantiles")
        assert [flood[name] for name in told] == [wanted[name] for name in told]
        assert server.run("flood")["window"]["indicators"] == server.run("wanted")["window"]["indicators"]
        assert server.run("flood")["integrity"]["late_shards"] == 8
        assert live.landings.at((0, 1)) == []


def test_run_that_is_retired_is_not_forgotten_while_a_late_shard_of_it_is_written() -> None:
    """Another object of the same run would be loaded beside it, and never hear of the shard."""
    clock, store = FakeClock(), HeldStore()
    with serving(Settings.from_dict(GRACE), store, clock.clock) as server:
        server.put("over", 1, masses(3, 2), shard=0, shards=2)
        clock.advance(31)
        server.close_overdue()
        retire = {"json": {"kind": "retire"}, "headers": {"Idempotency-Key": "k"}}
        server.http.post("/v1/runs/over/actions", **retire).raise_for_status()
        store.held = []
        thread = threading.Thread(target=server.put, args=("over", 1, masses(5, 2)), kwargs={"shard": 1, "shards": 2})
        thread.start()
        server.call(_until(lambda: len(store.held or ()) == 1))
        server.close_overdue()
        assert server.run("over")["last_update"]["missing_shards"] == 1
        store.release()
        thread.join()
        detail = server.run("over")
    assert (detail["last_update"]["missing_shards"], detail["retired"]) == (0, False)


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


async def _released(lock: asyncio.Lock) -> None:
    lock.release()


def test_late_shard_completes_its_partial_update_in_its_own_place(server: LiveServer, clock: FakeClock) -> None:
    server.put("late", 1, masses(3, 2), shard=0, shards=2)
    clock.advance(31)
    server.close_overdue()
    server.put("late", 2, masses(1, 1))
    answer = server.put("late", 1, masses(5, 2), shard=1, shards=2)
    assert (answer.status_code, answer.json()["update"]) == (201, "complete")
    updates = server.http.get("/v1/runs/late/updates").json()["updates"]
    assert [(item["step"], item["status"], item["revision"]) for item in updates] == [
        (1, "complete", 1),
        (2, "complete", 0),
    ]
    assert updates[0]["indicators"]["rho_asym"] == 2.0
    detail = server.run("late")
    assert detail["last_update"]["step"] == 2
    assert detail["integrity"]["updates"] == 2
    assert detail["integrity"]["partial_updates"] == detail["integrity"]["missing_shards"] == 0
    assert detail["integrity"]["late_shards"] == 1
    server.put("late", 3, masses(1, 1))
    window = server.run("late")["window"]
    assert (window["updates"], window["indicators"]["rho_asym"]) == (3, 10 / 6)


def test_late_first_closing_gets_a_window_that_ends_at_its_own_step(server: LiveServer, clock: FakeClock) -> None:
    server.put("behind", 1, masses(1, 1))
    server.put("behind", 2, masses(4, 1), shard=0, shards=2)
    server.put("behind", 3, masses(9, 1))
    clock.advance(31)
    server.close_overdue()
    windows = server.http.get("/v1/runs/behind/updates", params={"scope": "window"}).json()["windows"]
    assert [(item["step"], item["first_step"], item["updates"]) for item in windows] == [
        (1, 1, 1),
        (2, 1, 2),
        (3, 1, 2),
    ]
    assert windows[1]["indicators"]["rho_asym"] == 5 / 2


def test_other_shard_count_within_one_update_is_refused(server: LiveServer) -> None:
    server.put("counts", 1, masses(1, 1), shard=0, shards=2)
    refused = server.put("counts", 1, masses(1, 1), shard=1, shards=3)
    assert refused.status_code == 409
    assert "begun with 2 shards, not 3" in refused.json()["detail"]
    assert server.put("counts", 1, masses(1, 1), shard=1, shards=2).json()["update"] == "complete"
    assert server.put("counts", 2, masses(1, 1), shard=0, shards=1).json()["update"] == "complete"
    again = server.put("counts", 1, masses(1, 1), shard=2, shards=3)
    assert again.status_code == 409


def test_shards_of_one_update_may_come_at_once_and_in_any_order(server: LiveServer) -> None:
    order = np.random.default_rng(3).permutation(32)
    answers: list[str] = []

    def send(shards: list[int]) -> None:
        for shard in shards:
            answers.append(server.put("many", 1, masses(2, 1), shard=shard, shards=32).json()["update"])

    threads = [threading.Thread(target=send, args=(order[index::8].tolist(),)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["complete"] + ["open"] * 31
    newest = server.run("many")["last_update"]
    assert (newest["masses"]["a_neg"], newest["masses"]["a_pos"]) == (64.0, 32.0)


def test_resumed_attempt_replaces_from_its_first_step_on(server: LiveServer) -> None:
    case = json.loads((CASES / "C34.json").read_text())
    for item in case["input"]["in_order_of_arrival"]:
        body = masses(int(item["M_minus"]), int(item["M_plus"]))
        assert server.put("c34", item["step"], body, attempt=item["attempt"]).status_code == 201
    expected = case["expected"]
    detail = server.run("c34")
    window = detail["window"]
    assert [window["first_step"], window["step"]] == expected["window_steps"]
    assert window["updates"] == expected["window_updates"]
    assert window["indicators"]["rho_asym"] == pytest.approx(expected["rho_window"], rel=1e-12)
    assert detail["integrity"]["superseded_updates"] == expected["superseded_updates"]
    assert detail["attempt"] == 2
    first = server.http.get("/v1/runs/c34/series", params={"name": "rho_asym", "scope": "window", "from": 21, "to": 21})
    # At step 21 the resumed run looks back on steps 1 to 20 of the older attempt: (20 x 2 + 1) / 21.
    assert first.json()["series"][0]["values"] == [pytest.approx(41 / 21)]


def test_late_shard_of_a_superseded_attempt_gets_that_attempts_window_and_names_no_cause_of_the_newer(
    server: LiveServer, clock: FakeClock
) -> None:
    for step, parts in ((1, (1, 1)), (2, (2, 1))):
        server.put("older", step, masses(*parts))
    server.put("older", 3, masses(3, 1), shard=0, shards=2)
    clock.advance(31)
    server.close_overdue()
    for step in (2, 3, 4):
        server.put("older", step, masses(9, 1), attempt=1)
    before = server.run("older")
    late = arrow([[-0.1]] * 4 + [[np.nan]] * 50, [-1.0] * 54)
    assert server.put("older", 3, late, shard=1, shards=2, attempt=0).json()["update"] == "complete"
    row = server.sidecar.store.get(UpdateRow, "older", 0, 3)
    assert row is not None
    window = row.report["window"]
    assert [window[name] for name in ("attempt", "first_step", "step", "updates")] == [0, 1, 3, 3]
    assert window["indicators"]["rho_asym"] == (1 + 2 + 3 + 4) / (1 + 1 + 1)
    assert "nonfinite_gap" in [item["cause"] for item in row.report["findings"]]
    after = server.run("older")
    assert after["integrity"]["late_shards"] == 1
    assert [after[name] for name in ("findings", "window")] == [before[name] for name in ("findings", "window")]


def test_attempt_is_the_same_for_the_same_launch(server: LiveServer) -> None:
    post = server.http.post
    first = post("/v1/runs/launches/attempts", json={"from_step": 0, "launch_id": "job-1"})
    again = post("/v1/runs/launches/attempts", json={"from_step": 0, "launch_id": "job-1"})
    second = post("/v1/runs/launches/attempts", json={"from_step": 40, "launch_id": "job-2"})
    assert (first.status_code, first.json()["attempt"]) == (201, 1)
    assert (again.status_code, again.json()["attempt"]) == (200, 1)
    assert (second.status_code, second.json()["attempt"], second.json()["from_step"]) == (201, 2, 40)
    assert server.put("launches", 40, masses(1, 1)).json()["attempt"] == 2
    assert post("/v1/runs/launches/attempts", json={"from_step": -1}).json()["column"] == "from_step"
    assert post("/v1/runs/.x/attempts", json={"from_step": 1}).status_code == 422


def test_shard_without_attempt_belongs_to_the_current_one(server: LiveServer) -> None:
    assert server.put("current", 1, masses(1, 1)).json()["attempt"] == 0
    assert server.put("current", 1, masses(2, 1), attempt=1).json()["attempt"] == 1
    assert server.put("current", 2, masses(1, 1)).json()["attempt"] == 1


@pytest.mark.parametrize(("second_groups", "split"), [([5, 6], 0), ([2, 7], 1)])
def test_group_in_two_shards_makes_the_response_the_unit(
    server: LiveServer, second_groups: list[int], split: int
) -> None:
    run = f"groups-{split}"
    gap, advantages = [[-0.1], [0.2]], [-1.0, 1.0]
    server.put(run, 1, arrow(gap, advantages, groups=np.array([1, 2])), shards=2)
    server.put(run, 1, arrow(gap, advantages, groups=np.array(second_groups)), shard=1, shards=2)
    assert server.run(run)["last_update"]["counts"]["group_split"] == split


def test_encoded_shards_with_groups_may_have_split_them(server: LiveServer) -> None:
    headers = {"Content-Type": SUMMARY_MIME}
    for shard in (0, 1):
        summary = summarize(
            gap=[np.array([-0.1]), np.array([0.1])], advantages=np.array([-1.0, 1.0]), groups=np.array([shard, shard])
        )
        server.put("groups-encoded", 1, encode(summary), shard=shard, shards=2, headers=headers)
    assert server.run("groups-encoded")["last_update"]["counts"]["group_split"] == 1
