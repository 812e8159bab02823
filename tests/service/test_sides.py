"""Sampler and learner halves on their own: stored, joined by response_id, closed; what does not match is counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from service.live_server import STREAM, FakeClock, LiveServer, serving
from service.served_process import served

from triage_monitor.config import Settings
from triage_monitor.storage.records import HalfContentRow, HalfRow
from triage_monitor.storage.sqlite import SqliteStore
from triage_monitor.summary.rows import SUMMARY_MIME, encode_arrays

GRACE = 60.0
SMALL = {
    "server": {"port": 0},
    "ingest": {"grace_seconds": GRACE, "max_ahead_updates": 3, "max_ahead_bytes": 1 << 20},
    "store": {"keep_shards": 25},
}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server(clock: FakeClock) -> Iterator[LiveServer]:
    with serving(Settings.from_dict(SMALL), clock=clock.clock) as live:
        yield live


def responses(seed: int, count: int = 6) -> list[dict[str, Any]]:
    """Synthetic responses, float32 values."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        length = int(rng.integers(1, 40))
        sampler = (-rng.gamma(1.0, 0.6, length)).astype(np.float32)
        learner = (sampler + rng.normal(0, 0.2, length)).astype(np.float32)
        mask = rng.random(length) < 0.9
        one = {"response_id": f"r{number}", "sampler_logprobs": sampler, "learner_logprobs": learner}
        made.append(one | {"advantage": float(rng.normal()), "mask": mask, "reward": float(rng.integers(0, 2))})
    return made


def stream(rows: list[dict[str, Any]], names: tuple[str, ...], **metadata: str) -> bytes:
    columns = {}
    for name in names:
        values = [row[name] for row in rows]
        columns[name] = pa.array([list(item) if isinstance(item, np.ndarray) else item for item in values])
        if name.endswith("logprobs"):
            columns[name] = pa.array([np.asarray(item) for item in values], pa.list_(pa.float32()))
    table = pa.table(columns).replace_schema_metadata(metadata or None)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


SAMPLER = ("response_id", "sampler_logprobs")
LEARNER = ("response_id", "learner_logprobs", "advantage", "mask", "reward")


def put(
    http: httpx.Client, side: str | None, step: int, rows: list[dict[str, Any]], *, run: str = "two", shard: int = 0,
    shards: int = 1, names: tuple[str, ...] | None = None,
) -> httpx.Response:  # fmt: skip
    chosen = names or {"sampler": SAMPLER, "learner": LEARNER, None: tuple(dict.fromkeys(SAMPLER + LEARNER))}[side]
    query: dict[str, Any] = {"shard": shard, "shards": shards} | ({} if side is None else {"side": side})
    query.pop("shard")
    path = f"/v1/runs/{run}/updates/{step}/shards/{shard}"
    return http.put(path, params=query, content=stream(rows, chosen), headers=STREAM)


def update_of(http: httpx.Client, run: str, step: int) -> dict[str, Any]:
    (update,) = http.get(f"/v1/runs/{run}/updates", params={"from": step, "to": step}).json()["updates"]
    return {name: update[name] for name in ("indicators", "quantiles", "masses", "counts", "reasons")}


def integrity(http: httpx.Client, run: str = "two") -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"/v1/runs/{run}").json()["integrity"]
    return found


def test_joined_halves_are_the_update_sent_whole(server: LiveServer) -> None:
    rows = responses(1)
    put(server.http, None, 3, rows, run="whole")
    first = put(server.http, "sampler", 3, rows[::-1])  # in another order
    assert first.status_code == 201 and first.json()["update"] == "open" and first.json()["side"] == "sampler"
    last = put(server.http, "learner", 3, rows)
    assert last.status_code == 201 and last.json()["update"] == "complete"
    assert update_of(server.http, "two", 3) == update_of(server.http, "whole", 3)
    assert integrity(server.http)["joined_rows"] == 6
    assert server.metrics()['triage_joined_rows{run="two"}'] == 6


def test_each_side_has_its_own_number_of_shards(server: LiveServer) -> None:
    rows = responses(2, 9)
    put(server.http, None, 1, rows, run="whole")
    for shard in range(3):
        assert put(server.http, "sampler", 1, rows[shard::3], shard=shard, shards=3).json()["update"] == "open"
    assert put(server.http, "learner", 1, rows[:4], shard=0, shards=2).json()["update"] == "open"
    assert put(server.http, "learner", 1, rows[4:], shard=1, shards=2).json()["update"] == "complete"
    found, whole = update_of(server.http, "two", 1), update_of(server.http, "whole", 1)
    assert found["counts"] == whole["counts"]
    for name, value in whole["indicators"].items():
        assert found["indicators"][name] == (value if value is None else pytest.approx(value, rel=1e-12, abs=1e-15))


def test_the_same_half_again_is_a_duplicate_and_another_a_conflict(server: LiveServer) -> None:
    rows = responses(3)
    assert put(server.http, "sampler", 1, rows).status_code == 201
    assert put(server.http, "sampler", 1, rows).status_code == 200
    assert put(server.http, "sampler", 1, rows[1:]).status_code == 409
    assert put(server.http, "sampler", 1, rows, shards=2).status_code == 409
    assert put(server.http, "sampler", 1, rows, shard=1, shards=2).status_code == 409  # the side has one shard
    assert put(server.http, None, 1, rows).status_code == 409  # begun by sides
    put(server.http, None, 2, rows, shards=2)
    assert put(server.http, "learner", 2, rows).status_code == 409  # begun whole
    put(server.http, "learner", 1, rows)
    assert put(server.http, "learner", 1, rows).json()["update"] == "complete"  # again, after the closing
    assert put(server.http, None, 1, rows, shards=2).status_code == 409
    assert integrity(server.http)["conflicting_shards"] == 2 and integrity(server.http)["duplicate_shards"] == 2


def test_rows_that_do_not_match_are_counted_by_reason(server: LiveServer) -> None:
    rows = responses(4, 8)
    sampled = [dict(row) for row in rows[1:]]
    sampled[2]["sampler_logprobs"] = np.append(sampled[2]["sampler_logprobs"], np.float32(-1))  # r3: other length
    sampled.append(dict(sampled[4]))  # r5 twice
    sampled.append(dict(sampled[0], response_id="stranger"))
    put(server.http, "sampler", 1, sampled)
    assert put(server.http, "learner", 1, rows).json()["update"] == "complete"
    found = integrity(server.http)
    assert found["joined_rows"] == 5
    assert found["unmatched_rows"] == {
        "sampler": {"no_partner": 1, "length": 1, "duplicate_id": 2},
        "learner": {"no_partner": 1, "length": 1, "duplicate_id": 1},
    }
    metrics = server.metrics()
    assert metrics['triage_unmatched_rows{reason="duplicate_id",run="two",side="sampler"}'] == 2
    assert metrics['triage_notice{kind="unmatched_rows",run="two"}'] == 1
    (notice,) = [item for item in server.run("two")["notices"] if item["kind"] == "unmatched_rows"]
    assert "2 duplicate id (sampler)" in notice["text"]
    put(server.http, None, 1, [rows[n] for n in (1, 2, 4, 6, 7)], run="whole")
    assert update_of(server.http, "two", 1) == update_of(server.http, "whole", 1)


def test_a_half_that_comes_late_joins_its_closed_update(server: LiveServer, clock: FakeClock) -> None:
    rows = responses(5)
    put(server.http, None, 1, rows, run="whole")
    put(server.http, "learner", 1, rows)
    clock.advance(GRACE + 1)
    server.close_overdue()
    last = server.run("two")["last_update"]
    assert (last["status"], last["missing_shards"], last["counts"]["tokens"]) == ("partial", 1, 0)
    assert integrity(server.http)["unmatched_rows"]["learner"]["no_partner"] == 6
    put(server.http, "learner", 2, rows)
    assert put(server.http, "sampler", 1, rows[:3], shard=0, shards=2).json()["update"] == "partial"
    assert integrity(server.http)["joined_rows"] == 3
    assert put(server.http, "sampler", 1, rows[3:], shard=1, shards=2).json()["update"] == "complete"
    assert update_of(server.http, "two", 1) == update_of(server.http, "whole", 1)
    found = integrity(server.http)
    assert (found["joined_rows"], found["late_shards"], found["partial_updates"]) == (6, 2, 0)
    assert sum(sum(reasons.values()) for reasons in found["unmatched_rows"].values()) == 0


def test_samplers_ahead_of_training_wait_without_a_deadline(server: LiveServer, clock: FakeClock) -> None:
    rows = responses(6)
    for step in (1, 2):
        put(server.http, "sampler", step, rows)
    clock.advance(100 * GRACE)
    assert server.close_overdue() == 0
    put(server.http, "learner", 2, rows)  # training has gone past step 1
    assert server.run("two")["last_update"]["step"] == 2
    clock.advance(GRACE + 1)
    server.close_overdue()
    assert integrity(server.http)["partial_updates"] == 1
    assert integrity(server.http)["unmatched_rows"]["sampler"]["no_partner"] == 6


def test_samplers_too_far_ahead_are_told_to_come_again(server: LiveServer) -> None:
    rows = responses(7)
    for step in (1, 2, 3):
        assert put(server.http, "sampler", step, rows).status_code == 201
    refused = put(server.http, "sampler", 4, rows)
    assert (refused.status_code, refused.json()["reason"]) == (503, "sampler_ahead")
    assert "Retry-After" in refused.headers
    put(server.http, "learner", 1, rows)
    assert put(server.http, "sampler", 4, rows).status_code == 201
    big = [dict(row, sampler_logprobs=np.zeros(60_000, np.float32)) for row in rows]
    put(server.http, "learner", 2, rows)
    assert put(server.http, "sampler", 5, big).json()["reason"] == "sampler_ahead"  # by bytes


def test_rows_are_given_back_once_both_sides_are_in(server: LiveServer, clock: FakeClock) -> None:
    rows, store = responses(8), server.sidecar.store
    put(server.http, "sampler", 1, rows)
    assert len(store.rows(HalfContentRow, "two")[0].content) > 100
    put(server.http, "learner", 1, rows)
    assert [row.content for row in store.rows(HalfContentRow, "two")] == [b"", b""]
    put(server.http, "learner", 2, rows)
    clock.advance(GRACE + 1)
    server.close_overdue()
    server.sidecar.runs["two"].closed_since_thinning = 10**6
    put(server.http, None, 30, rows)  # thins what is 25 steps back
    for _ in range(200):
        if store.get(HalfContentRow, "two", 0, 2, "learner", 0) is None:
            break
        server.run("two")
    late = put(server.http, "sampler", 2, rows)
    assert late.status_code == 409 and "thinned" in late.json()["detail"]
    assert put(server.http, "learner", 2, rows).status_code == 200  # its key and digest stay


@pytest.mark.parametrize(
    ("side", "names", "column"),
    [
        ("sampler", ("response_id", "learner_logprobs"), "learner_logprobs"),
        ("sampler", ("sampler_logprobs",), "response_id"),
        ("sampler", ("response_id",), "sampler_logprobs"),
        ("sampler", ("response_id", "sampler_logprobs", "advantage"), "advantage"),
        ("learner", ("response_id", "learner_logprobs"), "advantage"),
        ("learner", ("response_id", "learner_logprobs", "sampler_logprobs", "advantage"), "sampler_logprobs"),
    ],
)
def test_what_a_half_must_not_hold_or_lacks_is_named(
    server: LiveServer, side: str, names: tuple[str, ...], column: str
) -> None:
    refused = put(server.http, side, 1, responses(9), names=names)
    assert (refused.status_code, refused.json()["column"]) == (422, column)
    assert server.http.get("/v1/runs/two").status_code == 404


def test_other_wrong_halves_are_refused_whole(server: LiveServer) -> None:
    rows = responses(9)
    rows[2]["response_id"] = None
    refused = put(server.http, "sampler", 1, rows)
    assert (refused.status_code, refused.json()["column"], refused.json()["row"]) == (422, "response_id", 2)
    rows = responses(9)
    rows[1]["mask"] = rows[1]["mask"][:-1] if len(rows[1]["mask"]) > 1 else [True, True]
    refused = put(server.http, "learner", 1, rows)
    assert (refused.status_code, refused.json()["column"], refused.json()["row"]) == (422, "mask", 1)
    path = "/v1/runs/two/updates/1/shards/0"
    assert server.http.put(path, params={"side": "both"}, content=b"", headers=STREAM).status_code == 422
    summary = {"Content-Type": SUMMARY_MIME}
    assert server.http.put(path, params={"side": "learner"}, content=b"x", headers=summary).status_code == 415
    cut = stream(responses(9), SAMPLER)[:-20]
    assert server.http.put(path, params={"side": "sampler"}, content=cut, headers=STREAM).status_code == 400


def test_padding_rows_and_missing_values_are_what_they_are_in_a_whole_update(server: LiveServer) -> None:
    rows = responses(10)
    for row in rows:
        row["padding"] = row["response_id"] == "r5"
        row["sampler_logprobs"] = list(row["sampler_logprobs"])
    rows[0]["mask"][:] = True
    rows[0]["sampler_logprobs"][0] = None
    both = tuple(dict.fromkeys((*SAMPLER, *LEARNER, "padding")))
    whole = [
        dict(row, sampler_logprobs=pa.scalar(row["sampler_logprobs"], pa.list_(pa.float32())).as_py()) for row in rows
    ]

    def body(names: tuple[str, ...], chosen: list[dict[str, Any]]) -> bytes:
        table = pa.table({
            name: pa.array([row[name].tolist() if isinstance(row[name], np.ndarray) else row[name] for row in chosen],
                           pa.list_(pa.float32()) if name.endswith("logprobs") else None)
            for name in names
        })  # fmt: skip
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    path = "/updates/1/shards/0"
    assert server.http.put(f"/v1/runs/whole{path}", content=body(both, whole), headers=STREAM).status_code == 201
    for side, names, chosen in (("sampler", SAMPLER, rows[:5]), ("learner", (*LEARNER, "padding"), rows)):
        sent = server.http.put(
            f"/v1/runs/two{path}", params={"side": side}, content=body(names, chosen), headers=STREAM
        )
        assert sent.status_code == 201, sent.text
    found = update_of(server.http, "two", 1)
    assert found == update_of(server.http, "whole", 1)
    assert found["counts"]["missing"] == 1


def test_versions_and_engines_may_come_from_the_samplers(server: LiveServer) -> None:
    rows = responses(11)
    for number, row in enumerate(rows):
        row["policy_version"], row["engine"] = 5 + number % 2, f"e{number % 2}"
    more = ("policy_version", "engine")
    put(server.http, None, 1, rows, run="whole", names=(*SAMPLER, *LEARNER[1:], *more))
    put(server.http, "sampler", 1, rows, names=(*SAMPLER, *more))
    put(server.http, "learner", 1, rows)
    found = update_of(server.http, "two", 1)
    assert found == update_of(server.http, "whole", 1)
    assert found["indicators"]["staleness_mean"] is not None


ORDERS = [(0, 2, 1), *(pytest.param(order, marks=pytest.mark.slow) for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)))]


@pytest.mark.parametrize("order", ORDERS)
def test_a_killed_sidecar_keeps_the_halves_it_acknowledged(tmp_path: Path, order: tuple[int, ...]) -> None:
    rows = responses(12, 8)
    halves = [("sampler", rows[:4], 0, 2), ("sampler", rows[4:], 1, 2), ("learner", rows, 0, 1)]
    for place in order:
        side, chosen, shard, shards = halves[place]
        with served(tmp_path / "data") as process:
            answer = put(process.http, side, 1, chosen, shard=shard, shards=shards)
            assert answer.status_code == 201, answer.text
            last = answer.json()["update"]
            process.kill()
    assert last == "complete"
    store = SqliteStore(tmp_path / "data")
    assert len(store.rows(HalfRow, "two")) == 3 and store.unclosed("two") == []
    store.close()
    with served(tmp_path / "data") as process:
        put(process.http, None, 1, rows, run="whole")
        assert update_of(process.http, "two", 1) == update_of(process.http, "whole", 1)


def test_encoded_arrays_of_the_client_are_halves_too(server: LiveServer) -> None:
    rows = responses(13)
    ids = [row["response_id"] for row in rows]
    whole = encode_arrays(
        learner_logprobs=[row["learner_logprobs"] for row in rows],
        sampler_logprobs=[row["sampler_logprobs"] for row in rows],
        advantages=[row["advantage"] for row in rows],
        response_ids=ids,
    )
    refused = server.http.put(
        "/v1/runs/two/updates/1/shards/0", params={"side": "learner"}, content=whole, headers=STREAM
    )
    assert refused.json()["reason"] == "wrong_side"


@pytest.mark.parametrize("seed", range(3))
def test_any_order_and_any_repetition_of_halves_gives_one_update(server: LiveServer, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = responses(20 + seed, 10)
    put(server.http, None, 1, rows, run="whole")
    halves = []
    for side in ("sampler", "learner"):
        shards = int(rng.integers(1, 5))
        places = rng.integers(0, shards, len(rows))
        parts = [
            [rows[number] for number in rng.permutation(np.flatnonzero(places == shard))] for shard in range(shards)
        ]
        halves += [(side, shard, shards, part) for shard, part in enumerate(parts)]
    for number in (*rng.permutation(len(halves)), *rng.integers(0, len(halves), 4)):
        side, shard, shards, part = halves[number]
        assert put(server.http, side, 1, part, shard=shard, shards=shards).status_code in (200, 201)
    found, whole = update_of(server.http, "two", 1), update_of(server.http, "whole", 1)
    assert (found["counts"], found["quantiles"]) == (whole["counts"], whole["quantiles"])
    for name, value in whole["indicators"].items():
        assert found["indicators"][name] == (value if value is None else pytest.approx(value, rel=1e-9, abs=1e-12))
