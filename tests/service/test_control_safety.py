"""Control that cannot run away: a limit on changes, dry runs that push nothing, a stop that stays in the past."""

from __future__ import annotations

import socket
import threading
from typing import Any

import httpx
import pytest
from service.live_server import LiveServer, masses, serving
from service.test_control import act, params, put_params, trail
from trainer.client_help import eventually

from triage_monitor import Monitor
from triage_monitor.config import Settings
from triage_monitor.judge import policy
from triage_monitor.judge.policy_settings import PolicySettings
from triage_monitor.parameters import TriageParams
from triage_monitor.storage.memory import MemoryStore


def a_sidecar(**sections: Any) -> Settings:
    return Settings.from_dict({"server": {"port": 0}, **sections})


PAPER = {"policy": {"mode": "paper"}}
DRY = {"policy": {"mode": "paper", "dry_run": True}}


def test_question_for_a_run_that_nobody_knows_is_answered_when_it_begins() -> None:
    with serving() as live, Monitor(live.address, run="late", poll_seconds=60.0) as monitor:
        assert live.http.get("/v1/runs/late/params", params={"wait": 0.2}).status_code == 404
        answers: list[int] = []
        asking = threading.Thread(
            target=lambda: answers.append(httpx.get(f"{live.address}/v1/runs/late/params?wait=60").status_code)
        )
        asking.start()
        assert eventually(lambda: len(live.server.server_state.tasks) >= 2), "both questions are waiting"
        live.put("late", 0, masses(1, 1))
        assert eventually(lambda: monitor.params.version == 1, 20.0)
        asking.join(20.0)
        assert answers == [200]


@pytest.mark.parametrize("query", ["known/params?wait=60&after=1", "unknown/params?wait=60"])
def test_reader_that_leaves_while_it_waits_is_waited_for_no_longer(query: str) -> None:
    """One that comes again at once, over and over, would hold memory for every minute's worth of its calls."""
    with serving() as live:
        live.put("known", 0, masses(1, 1))
        waiting = live.server.server_state.tasks
        host, port = live.address.removeprefix("http://").split(":")
        readers = [socket.create_connection((host, int(port))) for _ in range(40)]
        for reader in readers:
            reader.sendall(b"GET /v1/runs/%b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % query.encode())
        assert eventually(lambda: len(waiting) >= len(readers))
        for reader in readers:
            reader.close()
        assert eventually(lambda: not waiting, 20.0)


def set_w_min(live: LiveServer, run: str, w_min: float) -> int:
    return put_params(live, run, {"gate": {"enabled": True, "w_min": w_min}}).status_code


def test_changes_beyond_the_limit_are_refused_until_updates_have_passed() -> None:
    with serving(a_sidecar(control={"max_changes": 2, "per_updates": 10})) as live:
        live.put("r", 0, masses(1, 1))
        assert [set_w_min(live, "r", w) for w in (0.6, 0.7, 0.8)] == [200, 200, 429]
        refused = act(live, "r", "key", kind="gate", w_min=0.9)
        assert (refused.status_code, refused.json()["reason"]) == (429, "change_rate")
        assert params(live, "r").json()["version"] == 2
        assert live.metrics()['triage_actions_total{kind="gate",outcome="rate_limited",run="r"}'] == 1.0
        live.put("r", 9, masses(1, 1))
        assert set_w_min(live, "r", 0.8) == 429
        live.put("r", 10, masses(1, 1))
        again = act(live, "r", "key", kind="gate", w_min=0.9)
        assert (again.status_code, again.json()["outcome"]) == (201, "applied"), "the key was not spent by the refusal"


def test_pause_stop_and_the_way_back_are_never_refused() -> None:
    with serving(a_sidecar(control={"max_changes": 1, "per_updates": 1000})) as live:
        live.put("r", 0, masses(1, 1))
        assert set_w_min(live, "r", 0.6) == 200
        for key, kind in enumerate(("pause", "resume", "pause", "resume")):
            assert act(live, "r", str(key), kind=kind).status_code == 201
        assert set_w_min(live, "r", 0.7) == 429
        assert put_params(live, "r", {"gate": {"enabled": False, "w_min": 0.5}}).status_code == 200
        assert set_w_min(live, "r", 0.7) == 429
        assert act(live, "r", "stop", kind="stop").status_code == 201


def test_dry_run_records_what_it_would_push_and_pushes_nothing() -> None:
    with serving(a_sidecar(judge=DRY)) as live:
        answer = live.put("r", 0, masses(1, 1))
        assert answer.json()["params_version"] == 0
        live.put("r", 1, masses(1, 1))
        assert params(live, "r").json()["version"] == 0 and params(live, "r").json()["gate"]["enabled"] is False
        assert live.http.get("/v1/runs/r/params/history").json()["versions"] == []
        (entry,) = trail(live, "r")
        assert (entry["actor"], entry["kind"], entry["outcome"]) == ("policy", "start", "dry_run")
        assert entry["params"]["gate"]["enabled"] is True and entry["params_version"] == 0
        detail = live.run("r")
        assert detail["dry_run"] is True
        assert detail["proposed"] == {"gate.enabled": True, "repair.enabled": True}
        metrics = live.metrics()
        assert metrics['triage_policy_dry_run{run="r"}'] == 1.0
        assert metrics['triage_actions_total{kind="start",outcome="dry_run",run="r"}'] == 1.0
        assert put_params(live, "r", {"tis": {"enabled": True}}).json()["version"] == 1, "a person's word is no dry run"
        assert live.run("r")["proposed"] == {}


def test_after_a_dry_run_the_policy_begins_from_what_is_in_force() -> None:
    store = MemoryStore()
    with serving(a_sidecar(judge=DRY), store) as live:
        live.put("r", 0, masses(1, 1))
        assert live.run("r")["proposed"] != {}
    with serving(a_sidecar(judge={"policy": {"mode": "observe"}}), store) as live:
        assert live.run("r")["dry_run"] is False and live.run("r")["proposed"] is None
        assert live.sidecar.runs["r"].monitor.params.gate.enabled is False
        live.put("r", 1, masses(1, 1))
        assert params(live, "r").json()["version"] == 0


def test_paper_mode_without_a_dry_run_pushes_its_recipe() -> None:
    with serving(a_sidecar(judge=PAPER)) as live:
        assert live.put("r", 0, masses(1, 1)).json()["params_version"] == 1
        assert live.run("r")["params"]["gate"]["enabled"] is True and live.run("r")["proposed"] is None


def test_policy_forgets_a_stop_with_the_attempt_it_stopped() -> None:
    """Or its next change would stop the new attempt."""
    with serving(a_sidecar(judge={"policy": {"mode": "adaptive"}})) as live:
        live.put("r", 0, masses(1, 1))
        assert act(live, "r", "stop", kind="stop").status_code == 201
        assert live.http.post("/v1/runs/r/attempts", json={"from_step": 1, "launch_id": "again"}).status_code == 201
        assert act(live, "r", "release", kind="release").status_code == 201
        assert live.sidecar.runs["r"].monitor.params.control == "run"


def test_what_is_in_force_ends_a_remedy_unless_control_alone_differs() -> None:
    settings = PolicySettings(mode=policy.Mode.ADAPTIVE)
    gated = TriageParams().with_changes({"gate.enabled": True})
    state = policy.PolicyState(gated, remedy="gentle", started=True, since_change=7)
    assert policy.adopt(state, gated) is state
    stopped = policy.adopt(state, gated.with_changes({"control": "stop"}))
    assert (stopped.remedy, stopped.since_change, stopped.params.control) == ("gentle", 7, "stop")
    other = policy.adopt(state, settings.initial())
    assert (other.remedy, other.since_change, other.params) == ("", None, settings.initial())
