"""History, events, pages and service routes."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest
from service.live_server import LiveServer, masses, serving

from triage_monitor.service.events import QUEUE_EVENTS, EventHub


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving() as live:
        for step, (a_neg, a_pos) in enumerate([(3, 2), (1, 1), (1, 0), (4, 2)]):
            live.put("history", step * 10, masses(a_neg, a_pos))
        yield live


def series(server: LiveServer, **query: Any) -> list[dict[str, Any]]:
    answer = server.http.get("/v1/runs/history/series", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["series"]
    return found


def test_series_holds_null_where_the_value_is_absent(server: LiveServer) -> None:
    (found,) = series(server, name="rho_asym", scope="update")
    assert found == {
        "name": "rho_asym", "scope": "update", "steps": [0, 10, 20, 30], "values": [1.5, 1.0, None, 2.0],
    }  # fmt: skip


def test_several_names_and_scopes_come_in_one_answer_within_bounds(server: LiveServer) -> None:
    found = series(server, name=["rho_asym", "q0.05_all"], scope=["update", "window"], **{"from": 10, "to": 20})
    assert [(item["name"], item["scope"]) for item in found] == [
        ("rho_asym", "update"), ("q0.05_all", "update"), ("rho_asym", "window"), ("q0.05_all", "window"),
    ]  # fmt: skip
    assert all(item["steps"] == [10, 20] for item in found)
    assert found[2]["values"] == [4 / 3, 5 / 3]
    assert found[1]["values"] == pytest.approx([-0.1, -0.1], rel=5e-3)


def test_series_comes_as_arrow_when_asked_for(server: LiveServer) -> None:
    mime = "application/vnd.apache.arrow.stream"
    answer = server.http.get("/v1/runs/history/series", params={"name": "rho_asym"}, headers={"Accept": mime})
    assert answer.headers["content-type"] == mime
    table = pa.ipc.open_stream(io.BytesIO(answer.content)).read_all()
    assert table.column("step").to_pylist() == [0, 10, 20, 30]
    assert table.column("value").to_pylist() == [1.5, 1.0, None, 2.0]


def test_unknown_indicator_is_refused_by_name(server: LiveServer) -> None:
    answer = server.http.get("/v1/runs/history/series", params={"name": "rho"})
    assert (answer.status_code, answer.json()["reason"]) == (422, "unknown_indicator")
    assert server.http.get("/v1/runs/history/series").status_code == 422
    assert server.http.get("/v1/runs/history/series", params={"name": "rho_asym", "scope": "x"}).status_code == 422


def test_updates_have_the_fields_of_the_contract(server: LiveServer) -> None:
    found = server.http.get("/v1/runs/history/updates", params={"limit": 2}).json()["updates"]
    assert [item["step"] for item in found] == [20, 30]
    assert set(found[0]) >= {
        *("step", "attempt", "indicators", "reasons", "quantiles", "masses", "counts"),
        *("status", "missing_shards", "revision", "closed_at", "stage"),
    }
    assert found[0]["reasons"]["rho_asym"] in {"no_amplifying_mass", "no_positive_mass"}
    assert found[1]["masses"]["a_neg"] == 4.0
    windows = server.http.get("/v1/runs/history/updates", params={"scope": "window", "to": 10}).json()["windows"]
    assert [(item["first_step"], item["step"], item["updates"]) for item in windows] == [(0, 0, 1), (0, 10, 2)]


def test_runs_are_listed_with_their_stage(server: LiveServer) -> None:
    (found,) = [item for item in server.http.get("/v1/runs").json()["runs"] if item["run"] == "history"]
    assert (found["stage"], found["last_step"], found["params_version"]) == ("warming_up", 30, 1)


def test_unknown_run_is_a_problem_document_everywhere(server: LiveServer) -> None:
    for path in ("", "/series?name=rho_asym", "/updates", "/transitions", "/events", "/actions", "/params"):
        answer = server.http.get(f"/v1/runs/nobody{path}")
        assert (answer.status_code, answer.json()["reason"]) == (404, "unknown_run"), path
        assert answer.headers["content-type"] == "application/problem+json"


def test_unknown_path_and_method_are_problem_documents(server: LiveServer) -> None:
    assert server.http.get("/v2/nothing").json()["reason"] == "not_found"
    assert server.http.post("/v1/runs").json()["reason"] == "method_not_allowed"


def test_events_tell_of_updates_parameters_and_actions(server: LiveServer) -> None:
    server.put("events", 1, masses(1, 1))
    seen: list[tuple[str, dict[str, Any]]] = []
    listening = threading.Event()

    def listen() -> None:
        with httpx.stream("GET", f"{server.address}/v1/runs/events/events", timeout=20) as stream:
            event = ""
            for line in stream.iter_lines():
                listening.set()
                if line.startswith("event: "):
                    event = line.removeprefix("event: ")
                if line.startswith("data: "):
                    seen.append((event, json.loads(line.removeprefix("data: "))))
                if event == "action" and line == "":
                    return

    listener = threading.Thread(target=listen)
    listener.start()
    assert listening.wait(10)
    server.put("events", 2, masses(3, 2))
    server.http.post("/v1/runs/events/actions", json={"kind": "gate"}, headers={"Idempotency-Key": "k"})
    listener.join(20)
    assert [event for event, _ in seen] == ["update", "params", "action"]
    update, params, action = (data for _, data in seen)
    assert (update["run"], update["step"], update["status"]) == ("events", 2, "complete")
    assert update["rho_asym"]["update"] == 1.5
    assert (params["version"], params["actor"]) == (2, "operator")
    assert action["kind"] == "gate"


def test_event_id_of_thousands_of_digits_brings_nothing() -> None:
    hub = EventHub()
    hub.publish("run", "update", {"step": 1})
    process = hub._recent[0][2].removeprefix("id: ").partition("-")[0]  # as a reader has it from its last event
    assert hub.subscribe("run", f"{process}-0").waiting.qsize() == 1
    assert hub.subscribe("run", f"{process}-{'9' * 5000}").waiting.qsize() == 0


def test_listener_that_reads_too_slowly_is_let_go() -> None:
    import asyncio

    async def scene() -> tuple[int, list[str]]:
        hub = EventHub()
        slow = hub.subscribe("run")
        for number in range(QUEUE_EVENTS + 50):
            hub.publish("run", "update", {"step": number})
        published_to = hub.listeners
        return published_to, [text async for text in hub.stream("run", slow)]

    listeners, texts = asyncio.run(scene())
    assert listeners == 0
    assert len(texts) == QUEUE_EVENTS + 2
    assert texts[-1].startswith("event: lagged")
