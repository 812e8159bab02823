"""The push to a real Alertmanager: one alert a condition, renewed, resolved, over restarts and dead receivers."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deploy.alertmanager_process import alertmanager, alerts
from deploy.monitoring import free_port, wait_for
from service.live_server import LiveServer, masses, serving
from service.webhook_receiver import Receiver, receiving

from triage_monitor.config import Settings
from triage_monitor.errors import ConfigError
from triage_monitor.service.alerts import BY_NAME
from triage_monitor.service.clock import Clock
from triage_monitor.storage.sqlite import SqliteStore

REFUSED = "TriageParametersRefused"


def settings(port: int, **more: Any) -> Settings:
    given = {"url": f"http://127.0.0.1:{port}", "backoff_seconds": 0.05, "resend_seconds": 600.0, **more}
    server = {"port": 0, "public_url": "https://triage.example/at/"}
    return Settings.from_dict({"server": server, "alertmanager": given})


def refuse(live: LiveServer, run: str) -> None:
    """The trainer will not take the newest parameters."""
    live.put(run, 1, masses(3, 2)).raise_for_status()
    answer = live.http.post(f"/v1/runs/{run}/actions", json={"kind": "gate"}, headers={"Idempotency-Key": "gate"})
    answer.raise_for_status()
    ack(live, run, refused="outside its limits")


def ack(live: LiveServer, run: str, **more: Any) -> None:
    version = live.run(run)["params"]["version"]
    body = {"version": version, "step": 1, **more}
    live.http.post(f"/v1/runs/{run}/params/ack", json=body).raise_for_status()


def posts(live: LiveServer, outcome: str) -> float:
    return live.metrics()[f'triage_alertmanager_posts_total{{outcome="{outcome}"}}']


def test_alert_is_one_however_often_it_is_sent_and_carries_texts_and_link(tmp_path: Path) -> None:
    port = free_port()
    with alertmanager(tmp_path, port) as client, serving(settings(port, resend_seconds=3.0)) as live:
        refuse(live, "run-a")
        (first,) = wait_for("the alert is there", lambda: alerts(client))
        wait_for("it was sent again", lambda: posts(live, "delivered") >= 4)
        (again,) = alerts(client)
    assert first["labels"] == {"alertname": REFUSED, "run": "run-a", "severity": "warning"}
    text = BY_NAME[REFUSED]
    assert first["annotations"]["summary"] == "run-a: the trainer refuses the newest parameters"
    assert first["annotations"]["description"] == f"{text.means} {text.remedy}"
    assert first["generatorURL"] == "https://triage.example/at/#/run/run-a"
    assert (again["fingerprint"], again["startsAt"]) == (first["fingerprint"], first["startsAt"])
    assert again["endsAt"] > first["endsAt"]


def test_restart_keeps_the_alert_and_its_end_resolves_it(tmp_path: Path) -> None:
    port = free_port()
    store = SqliteStore(tmp_path / "data")
    with alertmanager(tmp_path, port) as client:
        with serving(settings(port), store) as live:
            refuse(live, "run-a")
            (first,) = wait_for("the alert is there", lambda: alerts(client))
        store.close()
        store = SqliteStore(tmp_path / "data")
        with serving(settings(port), store) as live:
            wait_for("it was sent anew", lambda: posts(live, "delivered") == 1)
            (again,) = alerts(client)
            assert (again["fingerprint"], again["startsAt"]) == (first["fingerprint"], first["startsAt"])
            assert again["updatedAt"] > first["updatedAt"]
            ack(live, "run-a")
            wait_for("it is resolved, long before it would expire", lambda: not alerts(client))
            assert live.metrics()["triage_alertmanager_alerts"] == 0
    store.close()


def test_alert_of_a_clock_that_went_back_is_resolved_when_it_ends(tmp_path: Path) -> None:
    port, ahead = free_port(), [7200.0]
    clock = Clock(lambda: time.time() + ahead[0], time.monotonic)
    with alertmanager(tmp_path, port) as client, serving(settings(port), clock=clock) as live:
        refuse(live, "run-a")
        wait_for("the alert is there", lambda: alerts(client))
        ahead[0] = 0.0
        ack(live, "run-a")
        wait_for("it is resolved, long before the time at which it began", lambda: not alerts(client))


def test_dead_alertmanager_hurts_nothing_and_hears_of_it_once_it_lives(tmp_path: Path) -> None:
    port = free_port()
    with serving(settings(port, resend_seconds=1.0)) as live:
        refuse(live, "run-a")
        wait_for("it was tried again", lambda: posts(live, "failed") >= 2)
        assert live.put("run-a", 2, masses(3, 2)).status_code == 201
        assert live.http.get("/readyz").status_code == 200
        assert live.metrics()["triage_alertmanager_failing"] == 1
        with alertmanager(tmp_path, port) as client:
            wait_for("the alert arrives", lambda: alerts(client))
            wait_for("it is well again", lambda: live.metrics()["triage_alertmanager_failing"] == 0)


def test_refused_push_is_not_repeated_and_a_failed_one_is(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-bearer-token-of-24-chr\n")
    with receiving() as receiver:
        receiver.answers = [(400, {}), (503, {})]
        with serving(settings(receiver.port, token_file=str(tmp_path / "token"))) as live:
            refuse(live, "run-a")
            receiver.wait_for(1)
            wait_for("it is counted", lambda: posts(live, "refused") == 1)
            ack(live, "run-a")
            got = receiver.wait_for(3)
            wait_for("it is counted", lambda: posts(live, "delivered") == 1)
            assert posts(live, "failed") == 1
    firing, failed, taken = (next(item for item in one.body if item["labels"]["run"] == "run-a") for one in got)
    assert firing["endsAt"] > failed["endsAt"] > firing["startsAt"]
    assert failed == taken and {one.path for one in got} == {"/api/v2/alerts"}
    assert {one.headers["Authorization"] for one in got} == {"Bearer a-bearer-token-of-24-chr"}


def test_files_found_damaged_at_the_start_are_told_by_that_process(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    with serving(store=store) as live:
        live.put("run-a", 1, masses(3, 2)).raise_for_status()
    store.close()
    with (tmp_path / "triage.db").open("r+b") as file:
        file.truncate(2 * 4096)
    with receiving() as receiver:
        for names in ({"TriageStoreDamaged", "TriageStoreLostWrites"}, set()):
            store, before = SqliteStore(tmp_path), len(receiver.got)
            with serving(settings(receiver.port), store) as live:
                run = f"run-{len(names)}"
                refuse(live, run)
                wait_for("a round is over", partial(_is_told, receiver, run))
            store.close()
            told = [item["labels"] for one in receiver.got[before:] for item in one.body]
            assert {labels["alertname"] for labels in told if not labels.get("run")} == names


def _is_told(receiver: Receiver, run: str) -> bool:
    return any(item["labels"].get("run") == run for one in receiver.got for item in one.body)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"url": "ftp://h"}, "url"), ({"url": "http://u:pw@h"}, "url"), ({"resend_seconds": 0.0}, "resend_seconds")],
)
def test_wrong_setting_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=rf"alertmanager: {named}") as told:
        Settings.from_dict({"alertmanager": change})
    assert "pw@" not in str(told.value)
