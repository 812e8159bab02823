"""The promises of `storage/base.py`, run against every store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from storage.store_rows import params_row, run_row, shard_row, summary_row, update_row

from triage_monitor.errors import ConflictError
from triage_monitor.storage.base import Store, effective_count, effective_updates, step_limits
from triage_monitor.storage.memory import MemoryStore
from triage_monitor.storage.records import (
    ActionRow,
    AttemptRow,
    Outcome,
    ParamsRow,
    RunRow,
    ShardRow,
    StateRow,
    SummaryRow,
    UpdateRow,
)
from triage_monitor.storage.series import Scope, read_series
from triage_monitor.storage.sqlite import SqliteStore


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path)
    yield made
    made.close()


def test_store_satisfies_the_protocol(store: Store) -> None:
    assert isinstance(store, Store)
    assert store.fence.epoch > 1_600_000_000
    assert store.fence.issuer.startswith(f"{store.fence.store_id}.")


def test_row_written_comes_back_equal(store: Store) -> None:
    shard = ShardRow("r", 1, 2, 3, 4, "digest", 5.25, 6, b"\x00\xff", b"\x01" * 16, {"top_p": 0.9, "learner": None})
    assert store.write(shard).result() == (Outcome.NEW,)
    assert store.get(ShardRow, "r", 1, 2, 3) == shard
    assert store.rows(ShardRow, "r") == [shard]


def test_same_digest_again_is_a_duplicate_and_another_a_conflict(store: Store) -> None:
    store.write(shard_row(7, digest="first")).result()
    assert store.write(shard_row(7, digest="first")).result() == (Outcome.DUPLICATE,)
    with pytest.raises(ConflictError, match="run-a/0/7/0"):
        store.write(shard_row(7, digest="second")).result()
    row = store.get(ShardRow, "run-a", 0, 7, 0)
    assert row is not None and row.digest == "first"


def test_call_with_one_refused_record_keeps_none_of_them(store: Store) -> None:
    store.write(run_row(), shard_row(1, digest="first"), params_row(1)).result()
    held = RunRow("run-a", created_at=1.0, held_by="operator")
    with pytest.raises(ConflictError):
        store.write(held, shard_row(2), params_row(2), shard_row(1, digest="second")).result()
    assert store.get(RunRow, "run-a") == run_row()
    assert [row.step for row in store.rows(ShardRow, "run-a")] == [1]
    assert store.top(ParamsRow, "run-a") == 1
    assert store.write(shard_row(2)).result() == (Outcome.NEW,)


def test_numbers_out_of_turn_are_refused(store: Store) -> None:
    store.write(params_row(1), params_row(2)).result()
    for version in (0, 1, 2, 4):
        with pytest.raises(ConflictError, match="must be 3"):
            store.write(params_row(version)).result()
    store.write(params_row(3)).result()
    assert [row.version for row in store.rows(ParamsRow, "run-a")] == [1, 2, 3]
    assert store.top(ParamsRow, "run-b") == 0


def test_revision_moves_by_one(store: Store) -> None:
    store.write(update_row(4, shards=2, missing=1)).result()
    with pytest.raises(ConflictError, match="revision must be 1"):
        store.write(update_row(4, revision=0)).result()
    with pytest.raises(ConflictError, match="revision must be 1"):
        store.write(update_row(4, revision=2)).result()
    assert store.write(update_row(4, revision=1, shards=2)).result() == (Outcome.REPLACED,)
    row = store.get(UpdateRow, "run-a", 0, 4)
    assert row is not None and (row.status, row.revision) == ("complete", 1)


def test_rows_come_in_order_within_bounds(store: Store) -> None:
    for step in (5, 1, 9, 3, 7):
        store.write(update_row(step), update_row(step, run="run-b")).result()
    steps = [row.step for row in store.rows(UpdateRow, "run-a", first_step=3, last_step=7)]
    assert steps == [3, 5, 7]
    assert [row.step for row in store.rows(UpdateRow, "run-a", newest=2)] == [7, 9]
    assert store.rows(UpdateRow, "run-a", newest=0) == []
    assert store.rows(UpdateRow, "nobody") == []


def test_actions_come_in_the_order_of_their_number(store: Store) -> None:
    for number, key in enumerate(["z", "a", "m"]):
        store.write(ActionRow("run-a", key, number, "d", 1.0, "op", "pause", "applied", {}, {"n": number})).result()
    assert [row.idempotency_key for row in store.rows(ActionRow, "run-a")] == ["z", "a", "m"]
    assert [row.idempotency_key for row in store.rows(ActionRow, "run-a", newest=2)] == ["a", "m"]


def test_runs_are_listed_once(store: Store) -> None:
    store.write(run_row("b"), run_row("a")).result()
    store.write(run_row("b")).result()
    assert store.runs() == ["a", "b"]


def test_value_without_strict_json_is_refused_and_nothing_kept(store: Store) -> None:
    with pytest.raises(ValueError, match="JSON"):
        store.write(run_row(), StateRow("run-a", {"value": float("nan")}, {}))
    assert store.runs() == []


def test_number_beyond_64_bits_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        store.write(update_row(2**63))
    store.write(update_row(2**63 - 1)).result()


def test_caller_changing_what_it_wrote_changes_nothing_stored(store: Store) -> None:
    judge = {"window": [1, 2]}
    store.write(StateRow("run-a", judge, {})).result()
    judge["window"].append(3)
    row = store.get(StateRow, "run-a")
    assert row is not None and row.judge == {"window": [1, 2]}
    row.judge.clear()
    again = store.get(StateRow, "run-a")
    assert again is not None and again.judge == {"window": [1, 2]}


def test_updates_with_more_shards_than_judged_are_unclosed(store: Store) -> None:
    store.write(shard_row(1, 0, shards=2)).result()
    store.write(shard_row(2, 0, shards=2), shard_row(2, 1, shards=2), update_row(2, shards=2)).result()
    store.write(shard_row(3, 0, shards=2), update_row(3, shards=2, missing=1)).result()
    assert store.unclosed("run-a") == [(0, 1)]
    store.write(shard_row(3, 1, shards=2)).result()
    assert store.unclosed("run-a") == [(0, 1), (0, 3)]


def test_newer_attempt_replaces_from_its_first_step_on(store: Store) -> None:
    for step in range(1, 31):
        store.write(update_row(step, attempt=1), summary_row(step, attempt=1)).result()
    for step in range(21, 36):
        store.write(update_row(step, attempt=2), summary_row(step, attempt=2)).result()
    window = effective_updates(store, "run-a", newest=25)
    assert [(row.step, row.attempt) for row in window] == [(s, 1 if s < 21 else 2) for s in range(11, 36)]
    summaries = effective_updates(store, "run-a", SummaryRow, first_step=20, last_step=21)
    assert [row.summary for row in summaries] == [b"merged 1/20", b"merged 2/21"]
    assert len(store.rows(UpdateRow, "run-a")) == 45


def test_step_limits_drop_attempts_that_were_overtaken() -> None:
    assert step_limits({}) == []
    assert step_limits({0: 5}) == [(0, None)]
    assert step_limits({1: 1, 2: 20, 3: 10}) == [(3, None), (1, 9)]
    assert step_limits({0: 0, 3: 0}) == [(3, None)]


def test_many_writers_lose_nothing(store: Store) -> None:
    def send(run: str) -> None:
        store.write(run_row(run)).result()
        for version in range(1, 21):
            store.write(params_row(version, run=run), shard_row(version, run=run)).result()

    threads = [threading.Thread(target=send, args=(f"run-{index}",)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.runs() == [f"run-{index}" for index in range(8)]
    assert all(len(store.rows(ShardRow, run)) == 20 and store.top(ParamsRow, run) == 20 for run in store.runs())


def test_attempt_number_belongs_to_one_launch(store: Store) -> None:
    first = AttemptRow("run-a", 1, 0, "launch-1", 1.0)
    store.write(first).result()
    assert store.write(first).result() == (Outcome.DUPLICATE,)
    with pytest.raises(ConflictError):
        store.write(AttemptRow("run-a", 1, 0, "launch-2", 1.0)).result()


def test_rows_are_counted_within_bounds_and_without_what_was_replaced(store: Store) -> None:
    for step in range(1, 31):
        store.write(update_row(step, attempt=1))
    for step in range(21, 26):
        store.write(update_row(step, attempt=2)).result()
    assert store.count(UpdateRow, "run-a") == 35
    assert store.count(UpdateRow, "run-a", attempt=1, last_step=20) == 20
    assert store.count(UpdateRow, "run-b") == 0
    assert effective_count(store, "run-a") == 25


def test_series_hold_none_where_a_value_is_absent(store: Store) -> None:
    store.write(update_row(2), update_row(4)).result()
    rho, mean = read_series(store, "run-a", ["rho_asym", "delta_mean"], [Scope.UPDATE])
    assert (rho.steps, rho.values) == ((2, 4), (0.5, 1.0))
    assert mean.values == (None, None)
    (window,) = read_series(store, "run-a", ["q0.05_all"], [Scope.WINDOW], first_step=3)
    assert (window.steps, window.values) == ((4,), (None,))
