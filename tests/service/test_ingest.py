"""What goes in, what is refused, and that a refusal keeps nothing (C08, C11, C35, C42, C48)."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from service.live_server import STREAM, LiveServer, arrow, masses, serving

from triage_monitor.config import Settings
from triage_monitor.summary.build import summarize
from triage_monitor.summary.codec import encode
from triage_monitor.summary.rows import SUMMARY_MIME
from triage_monitor.summary.spec import SummarySpec

SMALL = {
    "server": {"port": 0},
    "ingest": {
        "max_body_bytes": 200_000, "max_inflight_bytes": 200_000, "stall_seconds": 0.3, "body_seconds": 1.0,
        "max_tokens": 10_000,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving(Settings.from_dict(SMALL)) as live:
        yield live


def stream_of(columns: dict[str, pa.Array], metadata: dict[str, str] | None = None) -> bytes:
    table = pa.table(columns).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_single_shard_closes_its_update_before_the_answer(server: LiveServer) -> None:
    answer = server.put("single", 5, masses(3, 2))
    assert answer.status_code == 201
    assert answer.json()["update"] == "complete"
    assert answer.json()["params_version"] == 0
    detail = server.run("single")
    assert detail["last_update"]["step"] == 5
    assert detail["last_update"]["indicators"]["rho_asym"] == 1.5
    assert detail["window"]["indicators"]["rho_asym"] == 1.5
    assert detail["window"]["updates"] == 1


def test_encoded_summary_counts_as_the_arrays_it_was_made_of(server: LiveServer) -> None:
    gap = [np.array([-0.3, 0.2, -0.1]), np.array([0.4])]
    summary = summarize(gap=gap, advantages=np.array([-1.0, 0.5]))
    answer = server.put("encoded", 1, encode(summary), headers={"Content-Type": SUMMARY_MIME})
    assert answer.status_code == 201
    server.put("streamed", 1, arrow([[-0.3, 0.2, -0.1], [0.4]], [-1.0, 0.5]))
    found, expected = server.run("encoded")["last_update"], server.run("streamed")["last_update"]
    assert found["counts"] == expected["counts"]
    assert found["indicators"]["rho_asym"] == expected["indicators"]["rho_asym"] == 4.0


def test_summary_made_under_another_spec_is_refused(server: LiveServer) -> None:
    summary = summarize(gap=[np.array([0.1])], advantages=np.array([1.0]), spec=SummarySpec(segment=32))
    answer = server.put("other-spec", 1, encode(summary), headers={"Content-Type": SUMMARY_MIME})
    assert (answer.status_code, answer.json()["reason"]) == (422, "spec_mismatch")
    assert server.http.get("/v1/runs/other-spec").status_code == 404


def test_same_update_sent_three_times_counts_once_and_other_content_is_refused(server: LiveServer) -> None:
    codes = [server.put("run-a", 7, masses(3, 2), attempt=1).status_code for _ in range(3)]
    assert codes == [201, 200, 200]
    refused = server.put("run-a", 7, masses(9, 2), attempt=1)
    assert (refused.status_code, refused.json()["reason"]) == (409, "conflict")
    assert refused.headers["content-type"] == "application/problem+json"
    detail = server.run("run-a")
    assert detail["last_update"]["masses"]["a_neg"] == 3.0
    assert detail["last_update"]["masses"]["a_pos"] == 2.0
    assert detail["integrity"]["updates"] == 1
    assert detail["integrity"]["duplicate_shards"] == 2
    assert detail["integrity"]["conflicting_shards"] == 1


def test_mask_shorter_than_its_tokens_is_refused_and_the_corrected_retry_taken(server: LiveServer) -> None:
    values = pa.array([[-0.1, -0.2, -0.3, -0.4, -0.5]], pa.list_(pa.float32()))
    mask = pa.array([[True] * 4], pa.list_(pa.bool_()))
    columns = {"learner_logprobs": values, "sampler_logprobs": values, "advantage": pa.array([1.0]), "mask": mask}
    refused = server.put("c08", 3, stream_of(columns))
    problem = refused.json()
    assert refused.status_code == 422
    assert problem["column"] == "mask"
    assert "4" in problem["detail"] and "5" in problem["detail"]
    assert server.http.get("/v1/runs/c08").status_code == 404
    columns["mask"] = pa.array([[True] * 5], pa.list_(pa.bool_()))
    assert server.put("c08", 3, stream_of(columns)).status_code == 201
    assert server.run("c08")["last_update"]["counts"]["valid_tokens"] == 5


def test_update_with_every_token_masked_is_remembered_and_adds_no_mass(server: LiveServer) -> None:
    server.put("c11", 1, masses(3, 2))
    before = server.run("c11")["window"]
    gap = [[0.1, -0.2], [0.05, -0.4], [0.3, -0.1]]
    empty = arrow(gap, [-1.0, 1.0, 1.0], mask=[np.zeros(2, dtype=bool)] * 3)
    assert server.put("c11", 2, empty).status_code == 201
    detail = server.run("c11")
    assert detail["integrity"]["empty_updates"] == 1
    assert detail["last_update"]["step"] == 2
    indicators = detail["last_update"]["indicators"]
    for name in ("rho_asym", "delta_mean", "abs_delta_mean", "near_zero_fraction", "mismatch_energy"):
        assert indicators[name] is None
    assert set(detail["last_update"]["quantiles"]["all"].values()) == {None}
    assert detail["last_update"]["reasons"]["rho_asym"] == "no_tokens"
    assert detail["window"]["indicators"]["rho_asym"] == before["indicators"]["rho_asym"] == 1.5
    assert detail["window"]["updates"] == 2


def test_undefined_ratio_is_null_in_json_and_absent_in_the_exposition(server: LiveServer) -> None:
    server.put("c42", 1, arrow([[-0.1, -0.2]], [-1.0]))
    answer = server.http.get("/v1/runs/c42")

    def no_constant(text: str) -> float:
        raise AssertionError(f"{text} is no strict JSON")

    detail = json.loads(answer.text, parse_constant=no_constant)
    assert answer.status_code == 200
    assert detail["last_update"]["indicators"]["rho_asym"] is None
    assert detail["last_update"]["indicators"]["asym_share"] == 1.0
    metrics = server.http.get("/metrics").text
    assert 'triage_rho_asym{run="c42"' not in metrics
    assert 'triage_indicator_defined{indicator="rho_asym",run="c42"} 0.0' in metrics
    assert 'triage_asym_share{run="c42",scope="window"} 1.0' in metrics
    assert "nan" not in metrics.lower()


def test_damaged_streams_are_refused_and_the_next_sound_one_taken(server: LiveServer) -> None:
    schema = pa.schema({"gap": pa.list_(pa.float32()), "advantage": pa.float64()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for _ in range(3):
            writer.write_batch(pa.record_batch([[[0.1, -0.2], [0.3]], [1.0, -1.0]], schema=schema))
    whole = bytes(sink.getvalue())
    before = server.metrics()["triage_ingest_updates_total"]
    for end in range(0, len(whole), 7):
        answer = server.put("c48", 1, whole[:end])
        assert 400 <= answer.status_code < 500, (end, answer.text)
        assert answer.json()["reason"]
    assert server.metrics()["triage_ingest_updates_total"] == before
    assert server.http.get("/v1/runs/c48").status_code == 404
    assert server.put("c48", 1, whole).status_code == 201


@pytest.mark.parametrize("offsets", [[0, 4, 9], [0, 5, 3, 8], [-1, 4, 8], [0, 4]])
def test_list_offsets_that_do_not_fit_their_values_are_refused(server: LiveServer, offsets: list[int]) -> None:
    rows = len(offsets) - 1
    sound = np.linspace(0, 8, rows + 1).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(sound), pa.array(np.linspace(-1, 1, 8, dtype=np.float32)))
    body = stream_of({"gap": lists, "advantage": pa.array([1.0] * rows)})
    before, found, after = body.rpartition(sound.tobytes())
    assert found
    damaged = before + np.array(offsets, dtype=np.int32).tobytes() + after
    answer = server.put("c48-offsets", 1, damaged)
    assert 400 <= answer.status_code < 500
    assert server.http.get("/v1/runs/c48-offsets").status_code == 404


def test_wrong_type_of_a_column_is_named(server: LiveServer) -> None:
    body = stream_of({"gap": pa.array([["a", "b"]]), "advantage": pa.array([1.0])})
    answer = server.put("strings", 1, body)
    assert (answer.status_code, answer.json()["column"]) == (422, "gap")


def answer_to(server: LiveServer, sent: bytes) -> str:
    """What comes back on a bare socket, until a whole JSON object is there."""
    host, port = server.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as link:
        link.sendall(sent)
        answer = b""
        while not answer.endswith(b"}"):
            answer += link.recv(65536)
    return answer.decode()


def test_body_over_the_limit_is_refused_before_it_is_sent(server: LiveServer) -> None:
    head = (
        "PUT /v1/runs/big/updates/1/shards/0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000000\r\n"
        f"Content-Type: {STREAM['Content-Type']}\r\n\r\n"
    )
    answer = answer_to(server, head.encode())
    assert answer.startswith("HTTP/1.1 413")
    assert '"reason":"too_large"' in answer


def test_body_of_unknown_length_is_cut_off_at_the_limit(server: LiveServer) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(30):
            yield b"x" * 10_000

    answer = server.http.put("/v1/runs/big/updates/1/shards/0", content=chunks(), headers=STREAM)
    assert answer.status_code == 413
    assert answer.json()["limit_bytes"] == 200_000


def test_stalled_body_is_timed_out_and_its_memory_given_back(server: LiveServer) -> None:
    head = (
        "PUT /v1/runs/slow/updates/1/shards/0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
        f"Content-Type: {STREAM['Content-Type']}\r\n\r\n"
    )
    answer = answer_to(server, head.encode() + b"x" * 10)
    assert answer.startswith("HTTP/1.1 408")
    assert "the body was silent for 0.3 s, at byte 10" in answer
    assert server.metrics()["triage_ingest_inflight_bytes"] == 0


def test_full_budget_answers_503_at_once(server: LiveServer) -> None:
    budget = server.application.ingest.budget
    with budget.request() as share:
        share.grow(199_999)
        answer = server.put("budget", 1, masses(1, 1))
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert server.put("budget", 1, masses(1, 1)).status_code == 201


def test_too_many_tokens_are_refused_by_their_declared_number(server: LiveServer) -> None:
    body = arrow([[0.0] * 10_001], [1.0], compression="zstd")
    answer = server.put("tokens", 1, body)
    assert (answer.status_code, answer.json()["reason"]) == (413, "too_large")


@pytest.mark.parametrize(
    ("path", "query", "column"),
    [
        ("/v1/runs/.hidden/updates/1/shards/0", {}, "run"),
        ("/v1/runs/a%20b/updates/1/shards/0", {}, "run"),
        (f"/v1/runs/{'x' * 129}/updates/1/shards/0", {}, "run"),
        ("/v1/runs/a/updates/-1/shards/0", {}, "step"),
        ("/v1/runs/a/updates/9007199254740993/shards/0", {}, "step"),
        ("/v1/runs/a/updates/one/shards/0", {}, "step"),
        ("/v1/runs/a/updates/1/shards/4", {"shards": 4}, "shard"),
        ("/v1/runs/a/updates/1/shards/0", {"shards": 0}, "shards"),
        ("/v1/runs/a/updates/1/shards/0", {"shards": 100_000}, "shards"),
        ("/v1/runs/a/updates/1/shards/0", {"attempt": -1}, "attempt"),
    ],
)
def test_address_out_of_range_is_refused_by_name(
    server: LiveServer, path: str, query: dict[str, int], column: str
) -> None:
    answer = server.http.put(path, params=query, content=masses(1, 1), headers=STREAM)
    assert answer.status_code == 422
    assert answer.json()["column"] == column


def test_other_media_type_is_refused(server: LiveServer) -> None:
    answer = server.put("media", 1, b"{}", headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["reason"]) == (415, "media_type")


def test_a_side_that_is_none_is_refused(server: LiveServer) -> None:
    path = "/v1/runs/sides/updates/1/shards/0"
    answer = server.http.put(path, params={"side": "trainer"}, content=masses(1, 1), headers=STREAM)
    assert (answer.status_code, answer.json()["reason"], answer.json()["column"]) == (422, "side", "side")


def test_refusals_are_counted_by_reason(server: LiveServer) -> None:
    before = server.metrics().get('triage_ingest_rejected_total{reason="empty_body"}', 0.0)
    server.put("counted", 1, b"")
    assert server.metrics()['triage_ingest_rejected_total{reason="empty_body"}'] == before + 1


def test_reason_vocabulary_of_the_exposition_is_bounded() -> None:
    from triage_monitor.service.tally import MAX_REASONS, Tally

    tally = Tally()
    for number in range(1000):
        tally.reject(f"reason-{number}")
    assert len(tally.rejected) == MAX_REASONS + 1
    assert tally.rejected["other"] == 1000 - MAX_REASONS


def test_drops_that_the_trainer_reports_are_shown(server: LiveServer) -> None:
    headers = {**STREAM, "Triage-Client-Dropped": "queue_full=12,conflict=1"}
    server.put("drops", 1, masses(1, 1), headers=headers)
    server.put("drops", 2, masses(1, 1), headers={**STREAM, "Triage-Client-Dropped": "queue_full=13,conflict=1"})
    assert server.run("drops")["integrity"]["client_dropped"] == {"queue_full": 13, "conflict": 1}


def test_attempt_far_past_the_next_is_refused_and_the_run_goes_on(server: LiveServer) -> None:
    refused = server.put("ceil", 0, masses(1, 1), attempt=1_000_000)
    problem = refused.json()
    assert (refused.status_code, problem["column"], problem["expected"]) == (409, "attempt", 1)
    assert server.http.get("/v1/runs/ceil").status_code == 404
    begun = server.http.post("/v1/runs/ceil/attempts", json={"launch_id": "a"}).json()["attempt"]
    assert begun == 1
    assert server.put("ceil", 0, masses(1, 1), attempt=2_000).json()["expected"] == 2
    assert server.put("ceil", 0, masses(1, 1), attempt=begun).status_code == 201
    assert server.put("ceil", 1, masses(1, 1), attempt=2).status_code == 201


def test_last_attempt_of_all_is_followed_by_none(server: LiveServer) -> None:
    server.http.post("/v1/runs/worn/attempts", json={"launch_id": "a"})
    server.sidecar.runs["worn"].attempt = 1_000_000
    refused = server.http.post("/v1/runs/worn/attempts", json={"launch_id": "b"})
    assert (refused.status_code, refused.json()["reason"]) == (409, "attempts")
    assert server.http.post("/v1/runs/worn/attempts", json={"launch_id": "a"}).status_code == 200


def test_same_shard_of_another_number_of_shards_is_refused(server: LiveServer) -> None:
    assert server.put("counts", 1, masses(1, 1), shards=2).json()["shards"] == 2
    refused = server.put("counts", 1, masses(1, 1), shards=4)
    assert (refused.status_code, refused.json()["reason"]) == (409, "conflict")
    assert "one of 2 shards, not 4" in refused.json()["detail"]
    again = server.put("counts", 1, masses(1, 1), shards=2)
    assert (again.status_code, again.json()["status"], again.json()["shards"]) == (200, "duplicate", 2)


def test_place_column_of_a_type_that_cannot_be_cut_is_named(server: LiveServer) -> None:
    """Arrow has no kernel that takes rows of a run-end encoded column, and a padding column asks for it."""
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array([1.0]))
    columns = {"gap": pa.array([[0.1], [0.1]], pa.list_(pa.float32())), "advantage": pa.array([1.0, 1.0])}
    body = stream_of({**columns, "step": runs, "padding": pa.array([False, False])})
    refused = server.put("run", 1, body)
    assert (refused.status_code, refused.json()["reason"], refused.json()["column"]) == (422, "wrong_type", "step")


@pytest.mark.parametrize("column", ["step", "attempt"])
def test_column_that_contradicts_the_address_is_refused_by_row(server: LiveServer, column: str) -> None:
    run = f"place-{column}"
    columns = {
        "gap": pa.array([[0.1], [0.2], [0.3]], pa.list_(pa.float32())),
        "advantage": pa.array([1.0, -1.0, 1.0]),
        "padding": pa.array([True, False, False]),
    }
    refused = server.put(run, 1, stream_of({**columns, column: pa.array([9, 1, 7])}), attempt=1)
    problem = refused.json()
    assert (refused.status_code, problem["column"], problem["row"]) == (422, column, 2)
    assert "7" in problem["detail"]
    assert server.http.get(f"/v1/runs/{run}").status_code == 404
    assert server.put(run, 1, stream_of({**columns, column: pa.array([9, 1, 1])}), attempt=1).status_code == 201


@pytest.mark.parametrize(("name", "value"), [("temperature", "warm"), ("learner", "new"), ("precision", "x" * 201)])
def test_wrong_setting_is_named_as_the_column(server: LiveServer, name: str, value: str) -> None:
    columns = {"gap": pa.array([[0.1]], pa.list_(pa.float32())), "advantage": pa.array([1.0])}
    refused = server.put("settings", 1, stream_of(columns, {"top_p": "0.9", name: value}))
    assert (refused.status_code, refused.json()["reason"], refused.json()["column"]) == (422, "bad_setting", name)


@pytest.mark.parametrize(
    ("path", "query", "column"),
    [
        ("1_0/shards/0", {}, "step"),
        ("+1/shards/0", {}, "step"),
        ("1/shards/0_0", {}, "shard"),
        ("1/shards/0", {"shards": "1_0"}, "shards"),
        ("1/shards/0", {"attempt": "0_1"}, "attempt"),
    ],
)
def test_numbers_of_an_address_are_digits_only(
    server: LiveServer, path: str, query: dict[str, str], column: str
) -> None:
    answer = server.http.put(f"/v1/runs/digits/updates/{path}", params=query, content=masses(1, 1), headers=STREAM)
    assert (answer.status_code, answer.json()["column"]) == (422, column)
