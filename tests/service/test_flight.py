"""Arrow Flight against a real served process: what HTTP promises of a shard holds for one that came this way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import httpx
import pyarrow as pa
import pytest
from pyarrow import flight
from service.access_help import bearer, make_tokens
from service.flight_calls import SCHEMA, Said, a_batch, opened, place, put, refused, with_flight
from service.live_server import STREAM, arrow

from triage_monitor.config import Settings
from triage_monitor.errors import ConfigError

BODY = arrow([[-0.1, 0.2], [0.3]], [1.0, -1.0])
MAX_BODY = 1 << 20
STALL_SECONDS = 1.0


class Guarded:
    """A process with tokens and small bounds: its addresses and its tokens."""

    def __init__(self, http: httpx.Client, url: str, tokens: dict[str, str]) -> None:
        self.url, self.tokens = url, tokens
        self.http = http
        self.http.headers.update(bearer(tokens["all"]))

    def put(self, command: object, body: bytes = BODY, token: str = "trainer-a", pieces: int = 3) -> Said:
        return put(self.url, command, body, self.tokens.get(token, token), pieces)

    def put_http(self, run: str, step: int, body: bytes = BODY) -> httpx.Response:
        return self.http.put(f"/v1/runs/{run}/updates/{step}/shards/0", content=body, headers=STREAM)

    def count(self, sample: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(sample)), 0.0)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    home = tmp_path_factory.mktemp("flight")
    tokens = make_tokens(home / "tokens.json")
    env = {
        "TRIAGE_AUTH__TOKENS_FILE": str(home / "tokens.json"),
        "TRIAGE_INGEST__MAX_BODY_BYTES": str(MAX_BODY),
        "TRIAGE_INGEST__MAX_INFLIGHT_BYTES": str(2 * MAX_BODY),
        "TRIAGE_INGEST__STALL_SECONDS": str(STALL_SECONDS),
    }
    with with_flight(home / "data", env) as (server, url):
        yield Guarded(server.http, url, tokens)


def test_acknowledged_update_is_in_its_window_and_answered_as_by_http(guarded: Guarded) -> None:
    said = guarded.put(place("seen", 0, bytes=len(BODY)))
    assert said.error is None
    by_http = guarded.put_http("beside", 0).json()
    told = ("status", "step", "shard", "shards", "shards_in", "update", "bytes", "params_version")
    assert {name: said.document[name] for name in told} == {name: by_http[name] for name in told}
    newest = guarded.http.get("/v1/runs/seen").json()["last_update"]
    assert (newest["step"], newest["counts"]["valid_tokens"]) == (0, 3)


def test_same_shard_by_either_way_is_a_duplicate_and_other_content_a_conflict(guarded: Guarded) -> None:
    assert guarded.put_http("twice", 0).status_code == 201
    assert guarded.put(["twice", "0", "0"]).document["status"] == "duplicate"
    assert guarded.put(place("twice", 1), pieces=1).document["status"] == "new"
    assert guarded.put_http("twice", 1).status_code == 200
    said = guarded.put(place("twice", 1), arrow([[0.5]], [1.0]))
    assert (said.document["status"], said.document["reason"], said.error) == (409, "conflict", "FlightServerError")


@pytest.mark.parametrize(
    ("token", "status", "reason", "error"),
    [
        ("tm_" + 43 * "x", 401, "unknown_token", "FlightUnauthenticatedError"),
        ("short", 401, "malformed_token", "FlightUnauthenticatedError"),
        ("grafana-viewer", 403, "scope", "FlightUnauthorizedError"),
    ],
)
def test_token_that_may_not_ingest_is_refused_before_anything_is_read(
    guarded: Guarded, token: str, status: int, reason: str, error: str
) -> None:
    counter = f'triage_access_refused_total{{reason="{reason}"}}'
    before = guarded.count(counter)
    said = guarded.put(place("secret", 0), token=token)
    assert (said.document["status"], said.document["reason"], said.error) == (status, reason, error)
    assert guarded.count(counter) == before + 1
    assert guarded.http.get("/v1/runs/secret").status_code == 404


def test_wrong_column_is_named_and_counted_like_by_http(guarded: Guarded) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("gap", pa.list_(pa.float32()))])) as writer:
        writer.write_batch(pa.record_batch([pa.array([[0.1]], pa.list_(pa.float32()))], names=["gap"]))
    body = sink.getvalue().to_pybytes()
    by_http = guarded.put_http("wrong", 0, body).json()
    said = guarded.put(place("wrong", 0), body)
    wanted = {name: by_http[name] for name in ("status", "reason", "column", "detail")}
    assert {name: said.document[name] for name in wanted} == wanted
    assert by_http["column"] == "advantage"
    assert guarded.count(f'triage_ingest_rejected_total{{reason="{by_http["reason"]}"}}') == 2


@pytest.mark.parametrize("command", [{"run": "r", "step": 0}, {**place("r", 0), "more": 1}, place("r", -1), ["r", "0"]])
def test_descriptor_that_names_no_shard_is_refused(guarded: Guarded, command: object) -> None:
    said = guarded.put(command)
    assert (said.document["status"], said.document["reason"]) == (422, "descriptor")


def test_declared_body_above_the_bound_is_refused_unread_and_an_endless_one_at_the_bound(guarded: Guarded) -> None:
    said = guarded.put(place("large", 0, bytes=MAX_BODY + 1))
    assert (said.document["status"], said.document["limit_bytes"]) == (413, MAX_BODY)
    sent = 0
    with (
        pytest.raises(flight.FlightError) as ended,
        opened(guarded.url, place("large", 1), guarded.tokens["trainer-a"]) as (writer, _),
    ):
        while sent < 64 * MAX_BODY:
            writer.write_batch(a_batch(bytes(MAX_BODY // 4)))
            sent += MAX_BODY // 4
    assert refused(ended.value).document["reason"] == "too_large"
    assert sent < 64 * MAX_BODY
    assert guarded.count("triage_ingest_inflight_bytes") == 0
    assert guarded.put(place("large", 2)).error is None


def test_body_of_another_length_than_declared_is_refused(guarded: Guarded) -> None:
    for declared in (len(BODY) - 1, len(BODY) + 1):
        said = guarded.put(place("length", 0, bytes=declared))
        assert (said.document["status"], said.document["reason"]) == (400, "content_length")


def test_silent_sender_is_disconnected_and_others_are_served_meanwhile(guarded: Guarded) -> None:
    started = monotonic()
    counter = 'triage_ingest_rejected_total{reason="body_timeout"}'
    with opened(guarded.url, place("silent", 0), guarded.tokens["trainer-a"]) as (writer, reader):
        writer.write_batch(a_batch(BODY[:10]))
        assert guarded.put(place("talking", 0)).error is None
        with pytest.raises(flight.FlightUnavailableError):
            reader.read()
            writer.close()
    assert monotonic() - started >= STALL_SECONDS
    assert guarded.count(counter) == 1


def test_stream_of_another_schema_is_refused(guarded: Guarded) -> None:
    schema = pa.schema([("gap", pa.float32())])
    with (
        pytest.raises(flight.FlightServerError) as ended,
        opened(guarded.url, place("schema", 0), guarded.tokens["trainer-a"], schema) as (writer, reader),
    ):
        reader.read()
        writer.close()
    assert (refused(ended.value).document["status"], SCHEMA.names) == (415, ["body"])


def test_killed_after_the_answer_keeps_the_update_and_an_open_stream_does_not_hold_the_end(tmp_path: Path) -> None:
    with with_flight(tmp_path) as (server, url):
        assert put(url, place("kept", 0), BODY).document["status"] == "new"
        server.kill()
    with with_flight(tmp_path, {"TRIAGE_SERVER__DRAIN_SECONDS": "1"}) as (server, url):
        assert server.http.get("/v1/runs/kept").json()["last_update"]["step"] == 0
        assert put(url, place("kept", 0), BODY).document["status"] == "duplicate"
        with opened(url, place("kept", 1)) as (writer, _):
            writer.write_batch(a_batch(BODY[:10]))
            assert (server.end(), server.written) == (0, ("", ""))


def test_ports_that_cannot_be_are_refused() -> None:
    for port in (-2, 65_536, 8750):
        with pytest.raises(ConfigError, match="flight_port"):
            Settings.from_dict({"server": {"flight_port": port}})
