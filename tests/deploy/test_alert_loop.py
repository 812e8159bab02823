"""The whole way with the real programs: imbalance, scrape, rule, Alertmanager, hook, parameters, acknowledgement, calm.

And every query of every panel and rule against that Prometheus.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.monitoring import RULES, Monitoring, monitoring, wait_for
from service.live_server import LiveServer, masses, serving

from triage_monitor.config import Settings
from triage_monitor.dashboards.build import dashboards, queries

ALERT, RUN = "TriageDirectionalImbalance", "alert-loop"
SETTINGS = {
    "server": {"port": 0},
    "judge": {
        "window_updates": 5,
        "detector": {"baseline": {"first_updates": 5}, "minimum": {"updates": 3, "responses": 8, "tokens": 100}},
    },
    "hooks": {"actions": {ALERT: {"kind": "gate", "w_min": 0.4}}},
}
# Their condition does not come about in this run; `test_rules` has a series for each.
NOT_IN_THIS_RUN = {
    "run:triage_imbalance_severe:since_step",
    "run:triage_crowding:since_step",
    "run:triage_gap_terminal:since_step",
    "run:triage_undefined:since_step",
    "triage_client_dropped_updates",
}


@dataclass
class Loop:
    """One finished round of the loop, with everything still running."""

    live: LiveServer
    programs: Monitoring
    firing: list[dict[str, Any]]
    applied: list[tuple[int, int]]


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    folder = tmp_path_factory.mktemp("monitoring")
    with serving(Settings.from_dict(SETTINGS)) as live, monitoring(folder, live.address) as programs:
        live.put(RUN, 0, b"")  # refused, so that refusals have a series
        live.put(RUN, 0, masses(3, 2), attempt=0)
        begun = f'triage_stage{{run="{RUN}", stage="warming_up"}} == 1'
        wait_for("the run is scraped before it has left its first stage", lambda: programs.query(begun))
        trainer = Path(__file__).with_name("trainer_process.py")
        command = [sys.executable, str(trainer), live.address, RUN]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            firing = wait_for("the alert fires", lambda: programs.alerts(ALERT))
            wait_for("the trainer runs on the gate", lambda: acknowledged(live) == 1)
            wait_for("the alert is resolved", lambda: not programs.alerts(ALERT))
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            said = [line.split()[1:] for line in process.stdout]
        yield Loop(live, programs, firing, [(int(version), int(step)) for version, step in said])


def acknowledged(live: LiveServer) -> int | None:
    answer = live.http.get(f"/v1/runs/{RUN}")
    applied = answer.json().get("params_applied") if answer.status_code == 200 else None
    return None if applied is None else int(applied["version"])


def actions(live: LiveServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = live.http.get(f"/v1/runs/{RUN}/actions").json()["actions"]
    return found


def test_imbalance_becomes_parameters_that_a_trainer_process_runs_on(loop: Loop) -> None:
    assert [item["labels"]["run"] for item in loop.firing] == [RUN]
    assert loop.firing[0]["annotations"]["runbook_url"].endswith("#triagedirectionalimbalance")
    (entry,) = actions(loop.live)
    assert (entry["actor"], entry["kind"], entry["outcome"]) == ("alertmanager", "gate", "applied")
    detail = loop.live.run(RUN)
    assert detail["params"]["gate"] | {"enabled": True, "w_min": 0.4} == detail["params"]["gate"]
    assert loop.applied[-1] == (detail["params_applied"]["version"], detail["params_applied"]["step"])
    assert [version for version, _ in loop.applied] == [0, 1]


def test_same_notification_again_changes_nothing(loop: Loop) -> None:
    alert = loop.firing[0]
    # Alertmanager's API writes milliseconds always, its notifications no trailing zeros.
    began = re.sub(r"\.?0+Z$", "Z", alert["startsAt"])
    again = {"labels": alert["labels"], "fingerprint": alert["fingerprint"], "startsAt": began, "status": "firing"}
    for _ in range(2):
        answer = loop.live.http.post("/v1/hooks/alertmanager", json={"alerts": [again]})
        assert [item["outcome"] for item in answer.json()["results"]] == ["repeated"]
    resolved = again | {"status": "resolved"}
    answer = loop.live.http.post("/v1/hooks/alertmanager", json={"alerts": [resolved]})
    assert [item["outcome"] for item in answer.json()["results"]] == ["not_firing"]
    assert len(actions(loop.live)) == 1


def test_every_query_of_every_panel_returns_data(loop: Loop) -> None:
    empty = []
    for name, board in dashboards().items():
        for where, expr in queries(board):
            filled = expr.replace("$run", RUN).replace("$__rate_interval", "10s").replace("$__interval", "5s")
            if not loop.programs.query(filled):
                empty.append(f"{name}: {where}: {expr}")
    assert empty == [], loop.live.http.get(f"/v1/runs/{RUN}/transitions").json()


def test_every_rule_runs_and_every_series_it_names_is_there(loop: Loop) -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    selectors: set[str] = set()
    for rule in rules:
        loop.programs.query(rule["expr"])
        selectors |= set(re.findall(r"(?<![:\w])(?:triage_|run:|instance:|up\b)[\w:]*(?:\{[^}]*\})?", rule["expr"]))
    empty = {name for name in selectors if name not in NOT_IN_THIS_RUN and not loop.programs.query(name)}
    assert empty == set()
    assert len(selectors) > 30
    answer = loop.programs.prometheus.get("/api/v1/rules").json()["data"]["groups"]
    assert [rule["name"] for group in answer for rule in group["rules"] if rule["health"] != "ok"] == []
