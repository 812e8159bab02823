"""`doctor` against live servers that are well, guarded, secured, stalled, or none at all, and a real Prometheus."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from cli.conftest import Outcome
from programs import program
from service.access_help import guarded
from service.live_server import FakeClock, masses, serving
from service.served_process import served

from triage_monitor.cli.checkup import Finding, State, examine
from triage_monitor.config import Settings

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yml"
Cli = Callable[..., Outcome]


def seen(url: str, prometheus: str | None = None, /, **env: str) -> dict[str, list[Finding]]:
    """Findings by area."""
    found: dict[str, list[Finding]] = {}
    for item in examine(url, prometheus, env):
        found.setdefault(item.area, []).append(item)
    return found


def states(findings: dict[str, list[Finding]], area: str) -> list[State]:
    return [item.state for item in findings[area]]


def test_address_where_nothing_listens_is_a_problem_with_a_remedy(cli: Cli) -> None:
    outcome = cli("doctor", "http://127.0.0.1:1")
    assert outcome.code == 1
    assert "PROBLEM  address  no answer from http://127.0.0.1:1" in outcome.out
    assert "-> is `triage-monitor serve` running" in outcome.out


@pytest.mark.parametrize("address", ["ftp://127.0.0.1", "http://user:secret@127.0.0.1", "http://127.0.0.1:99999"])
def test_address_that_is_none_is_bad_usage(cli: Cli, address: str) -> None:
    outcome = cli("doctor", address)
    assert (outcome.code, outcome.out) == (2, "")
    assert "url" in outcome.err and "secret" not in outcome.err


def test_other_program_at_the_address_is_told_from_a_sidecar() -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        found = seen(f"http://127.0.0.1:{other.server_port}")
        other.shutdown()
        thread.join()
    assert [item.what.split(" answers, ")[1] for item in found["address"]] == ["but not as a sidecar does"]


def test_token_is_asked_for_judged_and_never_shown(tmp_path: Path) -> None:
    with guarded(tmp_path) as (live, secrets):
        live.put("run-a", 1, masses(3, 2))
        none = seen(live.address)
        wrong = seen(live.address, TRIAGE_TOKEN="tm_" + "x" * 43)
        trainer = seen(live.address, TRIAGE_TOKEN=secrets["trainer-a"])
        reader = seen(live.address, TRIAGE_TOKEN=secrets["grafana-viewer"])
        whole = seen(live.address, TRIAGE_TOKEN=secrets["all"])
    assert none["access"][0].fix == "export TRIAGE_TOKEN=..." and "runs" not in none
    assert (wrong["access"][0].state, "not known" in wrong["access"][0].what) == (State.PROBLEM, True)
    assert trainer["access"][0].what == "the token may ingest" and trainer["access"][1].state is State.PROBLEM
    assert reader["access"] == [Finding("access", State.OK, "the token may read")]
    assert states(reader, "scrape") == [State.OK] and states(reader, "hooks")[0] is State.NOTE
    assert whole["access"][0].what == "the token may ingest, read, control"
    assert whole["hooks"][0] == Finding("hooks", State.OK, "POST /v1/hooks/alertmanager is taken")
    assert "run-a" in whole
    shown = str([none, wrong, trainer, reader, whole])
    assert not [secret for secret in secrets.values() if secret in shown]


def test_questions_change_nothing_on_the_server(tmp_path: Path) -> None:
    with guarded(tmp_path) as (live, secrets):
        live.put("run-a", 1, masses(3, 2))
        before = live.run("run-a"), live.http.get("/v1/runs/run-a/actions").json()
        seen(live.address, TRIAGE_TOKEN=secrets["all"])
        assert (live.run("run-a"), live.http.get("/v1/runs/run-a/actions").json()) == before
        assert [run["run"] for run in live.http.get("/v1/runs").json()["runs"]] == ["run-a"]


def test_https_is_checked_with_its_authority_and_the_certificates_end(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    settings = {"server": {"port": 0}, "tls": {"cert_file": str(tmp_path / "server.pem")}}
    with serving(Settings.from_dict(settings)) as live:
        unknown = seen(live.address)
        plain = seen(live.address.replace("https", "http"))
        known = seen(live.address, TRIAGE_CA_FILE=str(tmp_path / "ca.pem"))
        env = {"TRIAGE_CA_FILE": str(tmp_path / "ca.pem")}
        late = list(examine(live.address, None, env, lambda: time.time() + 365.25 * 1000 * 86_400))
    assert "TRIAGE_CA_FILE" in unknown["address"][0].fix
    assert "it may speak https" in plain["address"][0].fix
    assert known["tls"][0].state is State.OK and known["tls"][0].what.startswith("TLSv1.")
    assert [item.state for item in late if item.area in ("tls", "clock")] == [State.PROBLEM, State.PROBLEM]


def test_clocks_that_differ_are_told_with_their_direction() -> None:
    with serving() as live:
        ahead = [item for item in examine(live.address, None, {}, lambda: time.time() + 120) if item.area == "clock"]
        behind = [item for item in examine(live.address, None, {}, lambda: time.time() - 120) if item.area == "clock"]
        same = [item for item in examine(live.address, None, {}) if item.area == "clock"]
    assert (ahead[0].state, behind[0].state, same[0].state) == (State.PROBLEM, State.PROBLEM, State.OK)
    assert "ahead of" in ahead[0].what and "behind" in behind[0].what


def test_run_that_stalled_without_all_shards_needs_a_person(cli: Cli) -> None:
    clock = FakeClock()
    with serving(clock=clock.clock) as live:
        live.put("run-a", 1, masses(3, 2), shards=2)
        clock.advance(61)
        live.close_overdue()
        outcome = cli("doctor", "--url", live.address)
    assert outcome.code == 1
    problems = [line for line in outcome.out.splitlines() if line.startswith("PROBLEM")]
    assert any("in memory" in line for line in problems)
    assert any("run-a" in line and "1 updates lack shards" in line for line in problems)
    assert any("run-a" in line and "no update for" in line for line in problems)
    assert outcome.out.endswith("3 problem(s)\n")


def test_parameters_nobody_took_are_a_problem_after_three_updates_and_fine_once_acknowledged() -> None:
    with serving() as live:
        for step in range(5):
            live.put("run-a", step, masses(3, 2))
            if step == 1:
                url = "/v1/runs/run-a/actions"
                live.http.post(url, json={"kind": "gate"}, headers={"Idempotency-Key": "k"}).raise_for_status()
                version = live.run("run-a")["params_version"]
                early = [item.state for item in seen(live.address)["run-a"] if "acknowledged" in item.what]
        late = [item for item in seen(live.address)["run-a"] if "acknowledged" in item.what]
        live.http.post("/v1/runs/run-a/params/ack", json={"version": version, "step": 4}).raise_for_status()
        taken = [item for item in seen(live.address)["run-a"] if "in force" in item.what]
    assert early == [State.NOTE]
    assert (late[0].state, f"parameters {version} are not acknowledged after 3 updates" in late[0].what) == (
        State.PROBLEM,
        True,
    )
    assert taken[0].state is State.OK


@contextmanager
def prometheus(folder: Path, target: str, **sections: Any) -> Iterator[str]:
    """Debian's Prometheus on a free port; its address once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [{"job_name": "triage-monitor", "static_configs": [{"targets": [target]}]}],
        **sections,
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [program("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=log)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


def settled(url: str, prom: str, until: Callable[[dict[str, list[Finding]]], bool]) -> dict[str, list[Finding]]:
    """Findings once Prometheus has come up and scraped."""
    end = time.monotonic() + 90
    while True:
        found = seen(url, prom)
        if until(found) or time.monotonic() > end:
            return found
        time.sleep(0.3)


def test_everything_in_place_leaves_nothing_to_do(tmp_path: Path, cli: Cli) -> None:
    alerting = {"alertmanagers": [{"static_configs": [{"targets": ["127.0.0.1:9093"]}]}]}
    env = {"TRIAGE_HOOKS__ACTIONS": '{ TriageRunTerminal = "pause" }'}
    with served(tmp_path / "data", env) as server:
        server.put("run-a", 1, masses(3, 2)).raise_for_status()
        target = server.address.removeprefix("http://")
        with prometheus(tmp_path, target, rule_files=[str(RULES)], alerting=alerting) as prom:
            found = settled(
                server.address, prom, lambda now: any(item.what.endswith(" is up") for item in now["prometheus"])
            )
            outcome = cli("doctor", server.address, "--prometheus", prom, "--json")
    assert {item.state for items in found.values() for item in items} <= {State.OK, State.NOTE}
    assert "TriageRunTerminal triggers pause" in [item.what for item in found["hooks"]]
    document = json.loads(outcome.out)
    assert (outcome.code, document["problems"], document["url"]) == (0, 0, server.address)
    assert {"area", "state", "what", "fix"} == set(document["findings"][0])


def test_what_prometheus_lacks_is_named(tmp_path: Path) -> None:
    with serving(Settings.from_dict({"server": {"port": 0}, "hooks": {"actions": {"NoSuchAlert": "freeze"}}})) as live:
        alone = seen(live.address)
        absent = seen(live.address, "http://127.0.0.1:1")
        with prometheus(tmp_path, "127.0.0.1:1") as prom:
            found = settled(live.address, prom, lambda now: any("down" in item.what for item in now["prometheus"]))
    assert alone["hooks"][1].state is State.NOTE
    assert states(absent, "prometheus") == [State.PROBLEM]
    words = [item.what for item in found["prometheus"] if item.state is State.PROBLEM]
    assert any("http://127.0.0.1:1/metrics is down" in line for line in words)
    assert any("rules are not loaded: TriageDirectionalImbalance" in line for line in words)
    assert any("no Alertmanager" in line for line in words)
    assert found["hooks"][1].state is State.PROBLEM and "NoSuchAlert" in found["hooks"][1].what
