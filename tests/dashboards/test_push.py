"""`dashboards push` against a small server that answers the calls of Grafana's API that are made."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import Result
from service.live_server import masses, serving
from typer.testing import CliRunner

from triage_monitor.cli.main import build_app
from triage_monitor.dashboards.build import dashboards, write
from triage_monitor.errors import ConfigError, TriageError
from triage_monitor.service.alerts import ALERTS

TOKEN = "glsa_of-a-service-account"


class Calls:
    """What a Grafana would hold after the calls."""

    def __init__(self) -> None:
        self.dashboards: dict[str, dict[str, Any]] = {}
        self.annotations: list[dict[str, Any]] = []

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        if (method, path) == ("POST", "/api/dashboards/db"):
            uid = body["dashboard"]["uid"]
            if uid in self.dashboards and not body["overwrite"]:
                return 412, {"message": "the dashboard has been changed by someone else"}
            self.dashboards[uid] = body
            return 200, {"uid": uid, "url": f"/d/{uid}", "status": "success"}
        if (method, path) == ("POST", "/api/annotations"):
            self.annotations.append(body)
            return 200, {"id": len(self.annotations), "message": "Annotation added"}
        if (method, path) == ("GET", "/api/annotations"):
            uid = query["dashboardUID"][0]
            return 200, [item for item in self.annotations if item["dashboardUID"] == uid]
        return 404, {"message": f"no {path} here"}


@contextmanager
def grafana() -> Iterator[tuple[str, Calls]]:
    calls = Calls()

    class Answers(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            parts = urlsplit(self.path)
            size = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(size)) if size else None
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                status, answer = 401, {"message": "Invalid API key"}
            else:
                status, answer = calls.answer(self.command, parts.path, parse_qs(parts.query), body)
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = _answer

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", calls
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def command(*words: str) -> Result:
    return CliRunner().invoke(build_app(), ["dashboards", *words])


def test_build_writes_the_files_and_names_them(tmp_path: Path) -> None:
    done = command("build", str(tmp_path / "new"))
    assert done.exit_code == 0, done.output
    assert done.output.split() == [str(tmp_path / "new" / f"{name}.json") for name in ("fleet", "run", "research")]
    assert json.loads((tmp_path / "new" / "run.json").read_text())["uid"] == "triage-run"


def test_push_uploads_every_dashboard_and_can_be_repeated() -> None:
    with grafana() as (url, calls):
        for _ in range(2):
            done = command("push", "--url", url, "--token", TOKEN, "--folder", "ml")
            assert done.exit_code == 0, done.output
            assert f"{url}/d/triage-run" in done.output
        assert calls.dashboards["triage-run"]["dashboard"] == dashboards()["run"]
        assert {body["folderUid"] for body in calls.dashboards.values()} == {"ml"}
        assert set(calls.dashboards) == {"triage-fleet", "triage-run", "triage-research"}


def test_stages_and_actions_become_annotations_once() -> None:
    with grafana() as (url, calls), serving() as live:
        live.put("r/1".replace("/", "-"), 1, masses(3, 2))
        action = {"kind": "gate", "w_min": 0.4, "reason": "by hand"}
        live.http.post("/v1/runs/r-1/actions", json=action, headers={"Idempotency-Key": "k"})
        words = ("push", "--url", url, "--token", TOKEN, "--annotate", "r-1", "--monitor", live.address)
        first, second = command(*words), command(*words)
        assert first.exit_code == 0, first.output
        made = [item for item in calls.annotations if item["dashboardUID"] == "triage-run"]
        assert [item["tags"] for item in made] == [["triage", "run:r-1", "action"]]
        assert "gate applied by operator" in made[0]["text"] and "by hand" in made[0]["text"]
        assert made[0]["time"] > 1_600_000_000_000
        assert "2 new annotations" in first.output and "0 new annotations" in second.output


def test_refused_token_is_said_in_a_sentence() -> None:
    with grafana() as (url, calls):
        done = command("push", "--url", url, "--token", "wrong")
        assert isinstance(done.exception, TriageError)
        assert "401" in str(done.exception)
        assert calls.dashboards == {}


def test_address_without_a_grafana_is_said_in_a_sentence() -> None:
    done = command("push", "--url", "http://127.0.0.1:1", "--token", TOKEN)
    assert isinstance(done.exception, TriageError)
    assert "no answer from http://127.0.0.1:1 (ConnectionError)" in str(done.exception)
    assert isinstance(command("push", "--url", "grafana", "--token", TOKEN).exception, ConfigError)


def test_runbook_base_moves_every_link_of_dashboards_and_rules(tmp_path: Path) -> None:
    rules = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yml"
    words = ["build", str(tmp_path), "--rules", str(rules)]
    done = command(*words, "--runbook-base", "https://wiki.example/triage")
    assert done.exit_code == 0, done.output
    assert len(done.output.splitlines()) == 4
    board = json.loads((tmp_path / "run.json").read_text())
    (variable,) = [item for item in board["templating"]["list"] if item["name"] == "runbook"]
    assert variable["query"] == "https://wiki.example/triage"
    moved, before = (tmp_path / "rules.yml").read_text(), rules.read_text()
    assert moved.replace("https://wiki.example/triage#", "README.md#") == before
    assert moved.count("runbook_url: https://wiki.example/triage#triage") == before.count("runbook_url:") == len(ALERTS)
    with pytest.raises(ConfigError, match="must be http"):
        write(tmp_path, "wiki")
    with pytest.raises(ConfigError, match="written over"):
        write(rules.parent, rules=rules)
