"""Parameters, acknowledgements, actions, alerts: who may change what, once, and what is remembered of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from service.live_server import LiveServer, masses, serving

from triage_monitor.config import Settings
from triage_monitor.errors import ConfigError
from triage_monitor.parameters import TriageParams
from triage_monitor.service.app import create_app
from triage_monitor.storage.memory import MemoryStore

SETTINGS = {
    "server": {"port": 0},
    "judge": {"policy": {"mode": "adaptive"}},
    "hooks": {"actions": {"RunTerminal": "pause", "DeepTail": {"kind": "gate", "w_min": 0.3}}},
}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving(Settings.from_dict(SETTINGS)) as live:
        yield live


@pytest.fixture
def run(server: LiveServer, request: pytest.FixtureRequest) -> str:
    name = request.node.name.partition("[")[0][:100]
    server.put(name, 1, masses(1, 1))
    return name


def params(server: LiveServer, run: str) -> httpx.Response:
    return server.http.get(f"/v1/runs/{run}/params")


def put_params(server: LiveServer, run: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return server.http.put(f"/v1/runs/{run}/params", json=body, headers={"If-Match": "*", **headers})


def act(server: LiveServer, run: str, key: str, **body: Any) -> httpx.Response:
    return server.http.post(f"/v1/runs/{run}/actions", json=body, headers={"Idempotency-Key": key})


def trail(server: LiveServer, run: str) -> list[dict[str, Any]]:
    actions: list[dict[str, Any]] = server.http.get(f"/v1/runs/{run}/actions").json()["actions"]
    return actions


def test_parameter_set_is_served_in_the_form_the_trainer_reads(server: LiveServer, run: str) -> None:
    answer = params(server, run)
    assert TriageParams.from_dict(answer.json()).version == 1
    tag = answer.headers["etag"]
    assert server.http.get(f"/v1/runs/{run}/params", headers={"If-None-Match": tag}).status_code == 304
    assert server.http.get("/v1/runs/nobody/params").status_code == 404


def test_override_needs_the_version_it_saw(server: LiveServer, run: str) -> None:
    tag = params(server, run).headers["etag"]
    body = {"gate": {"enabled": True, "w_min": 0.4}, "reason": "tail is growing"}
    missing = server.http.put(f"/v1/runs/{run}/params", json=body)
    assert (missing.status_code, missing.json()["reason"]) == (428, "if_match")
    done = put_params(server, run, body, **{"If-Match": tag})
    assert done.status_code == 200
    assert (done.json()["version"], done.json()["gate"]["w_min"]) == (2, 0.4)
    assert done.json()["gate"]["tau_tail"] == TriageParams().gate.tau_tail
    stale = put_params(server, run, body, **{"If-Match": tag})
    assert (stale.status_code, stale.json()["reason"]) == (412, "version_changed")
    assert put_params(server, run, body, **{"If-Match": '"5-1"'}).status_code == 412
    assert params(server, run).json()["version"] == 2
    entry = trail(server, run)[-1]
    assert (entry["actor"], entry["kind"], entry["reason"]) == ("operator", "override", "tail is growing")
    assert entry["params_version"] == 2


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"gate": {"w_min": 1.5}}, "gate.w_min"),
        ({"gate": {"w_min": "low"}}, "gate.w_min"),
        ({"gate": {"w_min": 10**400}}, "gate.w_min"),  # a whole number that no float holds
        ({"gate": {"strength": 1}}, "gate.strength"),
        ({"repair": {"lambda_rep": -1}}, "repair.lambda_rep"),
        ({"precision": "int2"}, "precision"),
        ({"colour": "red"}, "colour"),
        ({"gate": 3}, "gate"),
    ],
)
def test_override_out_of_bounds_names_the_field_and_changes_nothing(
    server: LiveServer, run: str, body: dict[str, Any], field: str
) -> None:
    before = params(server, run).json()
    refused = put_params(server, run, body)
    assert (refused.status_code, refused.json()["column"]) == (422, field)
    assert params(server, run).json() == before


def test_action_with_a_whole_number_that_no_float_holds_is_refused_by_name(server: LiveServer, run: str) -> None:
    refused = act(server, run, "huge", kind="repair", lambda_rep=-(10**400))
    assert (refused.status_code, refused.json()["column"]) == (422, "repair.lambda_rep")
    assert len(refused.json()["detail"]) < 300
    assert trail(server, run)[-1]["outcome"] == "refused"


def test_override_that_is_no_json_is_refused(server: LiveServer, run: str) -> None:
    for text in (b"{", b"[1]", b'{"gate": {"w_min": NaN}}', b"[" * 100_000, b'"' + b"x" * 300_000 + b'"'):
        refused = server.http.put(f"/v1/runs/{run}/params", content=text, headers={"If-Match": "*"})
        assert 400 <= refused.status_code < 500, text[:20]
        assert refused.headers["content-type"] == "application/problem+json"


def test_long_poll_answers_when_the_version_changes(server: LiveServer, run: str) -> None:
    seen: list[tuple[int, float]] = []

    def wait() -> None:
        started = time.monotonic()
        answer = httpx.get(f"{server.address}/v1/runs/{run}/params", params={"wait": 30, "after": 1}, timeout=40)
        seen.append((answer.json()["version"], time.monotonic() - started))

    waiters = [threading.Thread(target=wait) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    while not server.call(_three_wait(server, run)):
        pass
    put_params(server, run, {"gate": {"enabled": True}})
    for waiter in waiters:
        waiter.join(20)
    assert [version for version, _ in seen] == [2, 2, 2]
    assert max(seconds for _, seconds in seen) < 15


async def _three_wait(server: LiveServer, run: str) -> bool:
    return len(server.sidecar.runs[run].params_changed._waiters) == 3


def test_long_poll_ends_after_its_wait_with_the_same_version(server: LiveServer, run: str) -> None:
    answer = server.http.get(f"/v1/runs/{run}/params", params={"wait": 0.2, "after": 1})
    assert (answer.status_code, answer.json()["version"]) == (200, 1)
    at_once = server.http.get(f"/v1/runs/{run}/params", params={"wait": 50, "after": 7})
    assert at_once.json()["version"] == 1
    assert server.http.get(f"/v1/runs/{run}/params", params={"wait": 3600, "after": 1}).status_code == 422


def test_acknowledged_version_is_shown(server: LiveServer, run: str) -> None:
    ack = f"/v1/runs/{run}/params/ack"
    assert server.run(run)["params_applied"] is None
    assert f'triage_params_applied_version{{run="{run}"}}' not in server.metrics()
    assert server.http.post(ack, json={"version": 1, "step": 12}).status_code == 200
    applied = server.run(run)["params_applied"]
    assert (applied["version"], applied["step"]) == (1, 12)
    assert server.metrics()[f'triage_params_applied_version{{run="{run}"}}'] == 1
    unknown = server.http.post(ack, json={"version": 9, "step": 13})
    assert (unknown.status_code, unknown.json()["column"]) == (422, "version")
    refused = server.http.post(ack, json={"version": 1, "step": 14, "refused": "gate.w_min outside my range"})
    assert refused.status_code == 200
    assert server.run(run)["params_applied"]["step"] == 12
    assert server.run(run)["integrity"]["refused_params"] == 1
    assert server.http.post(ack, json={"version": True, "step": 1}).status_code == 422


def test_acknowledgement_that_a_newer_one_overtook_changes_nothing(server: LiveServer, run: str) -> None:
    """A retry that comes late must not raise the alert that the newer set is unacknowledged; going back may."""
    for number in range(2):
        assert act(server, run, f"key-{number}", kind="gate", w_min=0.3 + number / 10).status_code == 201
    for version, step, in_force in ((3, 20, (3, 20)), (2, 10, (3, 20)), (3, 12, (3, 12)), (2, 25, (2, 25))):
        answer = server.http.post(f"/v1/runs/{run}/params/ack", json={"version": version, "step": step})
        assert answer.status_code == 200
        applied = server.run(run)["params_applied"]
        assert (applied["version"], applied["step"]) == in_force


def test_action_makes_a_new_set_once_per_key(server: LiveServer, run: str) -> None:
    first = act(server, run, "key-1", kind="gate", w_min=0.3, reason="deep tail doubled")
    assert first.status_code == 201
    assert (first.json()["outcome"], first.json()["params_version"]) == ("applied", 2)
    repeat = act(server, run, "key-1", kind="gate", w_min=0.3, reason="deep tail doubled")
    assert (repeat.status_code, repeat.json()) == (200, first.json())
    other = act(server, run, "key-1", kind="pause")
    assert (other.status_code, other.json()["reason"]) == (409, "conflict")
    now = params(server, run).json()
    assert (now["version"], now["gate"]["enabled"], now["gate"]["w_min"], now["control"]) == (2, True, 0.3, "run")
    assert "deep tail doubled" in now["reason"] and "gate.w_min" in now["reason"]
    samples = server.metrics()
    assert samples[f'triage_actions_total{{kind="gate",outcome="applied",run="{run}"}}'] == 1


def test_every_kind_of_action_does_what_it_says(server: LiveServer, run: str) -> None:
    for number, (kind, name, value) in enumerate(
        [
            ("repair", ("repair", "enabled"), True),
            ("fallback", ("precision",), "bf16"),
            ("pause", ("control",), "pause"),
            ("resume", ("control",), "run"),
            ("tis", ("tis", "enabled"), True),
            ("stop", ("control",), "stop"),
        ]
    ):
        answer = act(server, run, f"key-{number}", kind=kind)
        assert answer.status_code == 201, answer.text
        found: Any = params(server, run).json()
        for part in name:
            found = found[part]
        assert found == value
        assert params(server, run).json()["version"] == number + 2
    assert [entry["kind"] for entry in trail(server, run)] == ["repair", "fallback", "pause", "resume", "tis", "stop"]


def test_refused_action_is_recorded_and_refused_again_under_its_key(server: LiveServer, run: str) -> None:
    for _ in range(2):
        refused = act(server, run, "bad", kind="gate", w_min=7)
        assert refused.status_code == 422
    assert act(server, run, "worse", kind="explode").status_code == 422
    assert [(entry["kind"], entry["outcome"]) for entry in trail(server, run)] == [
        ("gate", "refused"),
        ("unknown", "refused"),
    ]
    assert params(server, run).json()["version"] == 1
    assert server.http.post(f"/v1/runs/{run}/actions", json={"kind": "pause"}).status_code == 400


def test_action_without_effect_is_unchanged(server: LiveServer, run: str) -> None:
    assert act(server, run, "one", kind="resume").json()["outcome"] == "unchanged"
    assert params(server, run).json()["version"] == 1


def test_operator_holds_the_policy_until_release(server: LiveServer, run: str) -> None:
    assert server.run(run)["held_by"] is None
    put_params(server, run, {"gate": {"enabled": True}}, **{"Triage-Actor": "alice"})
    assert server.run(run)["held_by"] == "alice"
    assert server.metrics()[f'triage_params_held{{run="{run}"}}'] == 1
    assert act(server, run, "let-go", kind="release").json()["outcome"] == "applied"
    assert server.run(run)["held_by"] is None
    act(server, run, "freeze", kind="freeze")
    assert server.run(run)["held_by"] == "operator"
    assert params(server, run).json()["version"] == 2


def test_retired_run_leaves_the_exposition_and_comes_back_with_its_next_update(server: LiveServer, run: str) -> None:
    stage = f'triage_stage{{run="{run}",stage="warming_up"}}'
    assert server.metrics()[stage] == 1
    act(server, run, "retire", kind="retire")
    assert not [name for name in server.metrics() if f'run="{run}"' in name]
    assert server.run(run)["retired"]
    server.close_overdue()
    assert [item["retired"] for item in server.http.get("/v1/runs").json()["runs"] if item["run"] == run] == [True]
    server.put(run, 2, masses(1, 1))
    assert server.metrics()[stage] == 1
    assert not server.run(run)["retired"]


def test_new_attempt_of_a_stopped_run_may_train(server: LiveServer, run: str) -> None:
    act(server, run, "stop", kind="stop")
    assert act(server, run, "resume", kind="resume").status_code == 422
    answer = server.http.post(f"/v1/runs/{run}/attempts", json={"from_step": 1, "launch_id": "next"})
    assert answer.json()["params_version"] == 3
    assert params(server, run).json()["control"] == "run"


def alert(name: str, run: str, **more: str) -> dict[str, Any]:
    labels = {"alertname": name, "run": run}
    return {"status": "firing", "labels": labels, "startsAt": "2026-01-01T00:00:00Z", "fingerprint": "f1", **more}


def test_firing_alert_triggers_its_mapped_action_once(server: LiveServer, run: str) -> None:
    notification = {
        "version": "4",
        "alerts": [
            alert("DeepTail", run),
            alert("RunTerminal", run, status="resolved"),
            alert("Unmapped", run),
            alert("RunTerminal", "no/such"),
            alert("RunTerminal", "nobody", fingerprint="f2"),
        ],
    }
    answer = server.http.post("/v1/hooks/alertmanager", json=notification)
    outcomes = [item["outcome"] for item in answer.json()["results"]]
    assert outcomes == ["applied", "not_firing", "not_mapped", "no_run", "unknown_run"]
    assert params(server, run).json()["gate"]["w_min"] == 0.3
    again = server.http.post("/v1/hooks/grafana", json={"alerts": [alert("DeepTail", run)]})
    assert again.json()["results"][0]["outcome"] == "repeated"
    later = alert("DeepTail", run, startsAt="2026-01-02T00:00:00Z")
    assert (
        server.http.post("/v1/hooks/grafana", json={"alerts": [later]}).json()["results"][0]["outcome"] == "unchanged"
    )
    assert params(server, run).json()["version"] == 2
    assert trail(server, run)[0]["actor"] == "alertmanager"
    assert server.http.post("/v1/hooks/grafana", json={"alerts": "many"}).status_code == 422


def test_history_of_parameters_says_who_and_why(server: LiveServer, run: str) -> None:
    put_params(server, run, {"gate": {"enabled": True}, "reason": "a trial"}, **{"Triage-Actor": "bob"})
    versions = server.http.get(f"/v1/runs/{run}/params/history").json()["versions"]
    assert [(item["params"]["version"], item["actor"]) for item in versions] == [(1, "policy"), (2, "bob")]
    assert versions[1]["reason"] == "a trial"
    assert put_params(server, run, {}, **{"Triage-Actor": "b\tad"}).status_code == 422


def test_alert_mapped_to_no_action_is_a_wrong_configuration() -> None:
    for action in ("explode", {"kind": "gate", "w_min": 7}, {"kind": "pause", "for": 3}):
        settings = Settings.from_dict({"hooks": {"actions": {"Wrong": action}}})
        with pytest.raises(ConfigError, match=r"hooks\.actions\.Wrong"):
            create_app(settings, MemoryStore())


def test_observe_mode_issues_no_parameters_until_a_person_does() -> None:
    with serving(Settings.from_dict({"server": {"port": 0}})) as live:
        assert live.put("watched", 0, masses(1, 1)).json()["params_version"] == 0
        assert params(live, "watched").json()["version"] == 0
        assert live.http.get("/v1/runs/watched/params/history").json()["versions"] == []
        assert put_params(live, "watched", {"gate": {"enabled": True}}).json()["version"] == 1


def test_half_a_surrogate_pair_is_refused_everywhere(server: LiveServer, run: str) -> None:
    half = rb'"\ud800"'
    base = f"/v1/runs/{run}"
    headers = {"If-Match": "*", "Idempotency-Key": "half"}
    for method, path, body in (
        ("PUT", f"{base}/params", b'{"reason": %b}'),
        ("POST", f"{base}/params/ack", b'{"version": 1, "step": 1, "refused": %b}'),
        ("POST", f"{base}/actions", b'{"kind": "pause", "reason": %b}'),
        ("POST", f"{base}/actions", b'{"kind": "pause", %b: 1}'),
        ("POST", f"{base}/attempts", b'{"launch_id": %b}'),
        ("POST", "/v1/hooks/grafana", b'{"alerts": [{"labels": {"alertname": %b}}]}'),
    ):
        refused = server.http.request(method, path, content=body % half, headers=headers)
        assert (refused.status_code, refused.json()["reason"]) == (400, "json"), path
    assert params(server, run).json()["version"] == 1
    whole = server.http.put(f"{base}/params", content=rb'{"reason": "\ud83d\ude00"}', headers=headers)
    assert (whole.status_code, whole.json()["reason"]) == (200, "\U0001f600")


def test_refused_action_gets_the_same_answer_under_its_key(server: LiveServer, run: str) -> None:
    first = act(server, run, "bad", kind="gate", w_min=7)
    again = act(server, run, "bad", kind="gate", w_min=7)
    assert (first.status_code, first.json()["column"]) == (422, "gate.w_min")
    assert (again.status_code, again.json()) == (422, first.json())
    assert len(trail(server, run)) == 1


def test_unknown_kind_is_answered_with_every_kind_that_is_taken(server: LiveServer, run: str) -> None:
    problem = act(server, run, "what", kind="explode").json()
    assert (problem["reason"], problem["column"]) == ("action_kind", "kind")
    for kind in ("gate", "stop", "freeze", "release", "clear", "rebaseline", "retire"):
        assert kind in problem["detail"]
