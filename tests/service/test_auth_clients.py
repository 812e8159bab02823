"""The product's own clients against a guarded sidecar: Monitor, operator's commands, replay; TLS and mutual TLS."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import typer
from click.testing import Result
from service.access_help import guarded, make_tokens
from service.live_server import STREAM, LiveServer, masses, serving
from service.papers import Papers
from service.webhook_receiver import receiving
from typer.testing import CliRunner

from triage_monitor import Monitor
from triage_monitor.cli import operator, token
from triage_monitor.config import Settings
from triage_monitor.errors import ConfigError, InputError, TriageError
from triage_monitor.trainer.tls import tls_context, tls_of, token_of

Guarded = tuple[LiveServer, dict[str, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("clients")) as found:
        yield found


def command(*words: str, **env: str) -> Result:
    app = typer.Typer()
    operator.register(app)
    token.register(app)
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200", "TRIAGE_TOKEN": "", **env})


def sent_one(url: str, **more: object) -> Monitor:
    monitor = Monitor(url, run="mon", **more)  # type: ignore[arg-type]
    monitor.submit(step=1, gap=np.full(4, -0.1, np.float32), advantages=np.array([1.0]), offsets=np.array([0, 4]))
    monitor.close(60)
    return monitor


def test_monitor_sends_its_token_and_shows_it_nowhere(
    server: Guarded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = server[1]["trainer-a"]
    given = sent_one(server[0].address, token=secret)
    assert given.stats["acknowledged"] == 1
    monkeypatch.setenv("TRIAGE_TOKEN", secret)
    by_environment = sent_one(server[0].address)
    assert by_environment.stats["acknowledged"] == 1
    wrong = sent_one(server[0].address, token="tm_" + "w" * 43)
    assert wrong.stats["dropped"] == {"unknown_token": 1}
    monkeypatch.setenv("TRIAGE_TOKEN", "")
    without = sent_one(server[0].address)
    assert without.stats["dropped"] == {"no_token": 1}
    said = caplog.text + "".join(f"{monitor!r}{monitor.stats}" for monitor in (given, by_environment, wrong, without))
    assert secret not in said and "w" * 43 not in said
    assert server[0].run("mon")["last_update"]["step"] == 1


def test_operators_commands_send_the_environments_token(server: Guarded) -> None:
    url = ("--url", server[0].address)
    server[0].put("run", 1, masses(3, 2), headers=dict(server[0].http.headers) | STREAM)
    listed = command("runs", "--json", *url, TRIAGE_TOKEN=server[1]["grafana-viewer"])
    assert "run" in [item["run"] for item in json.loads(listed.output)["runs"]]
    done = command("params", "run", "--set", "gate.w_min=0.4", *url, TRIAGE_TOKEN=server[1]["all"])
    assert json.loads(done.output)["gate"]["w_min"] == 0.4
    for name, words in {
        "grafana-viewer": ("params", "run", "--release"), "ops": ("runs",), "trainer-a": ("runs",), "": ("runs",),
    }.items():  # fmt: skip
        refused = command(*words, *url, TRIAGE_TOKEN=server[1].get(name, ""))
        assert isinstance(refused.exception, InputError), (name, refused.exception)
        assert "token" in str(refused.exception) and "tm_" not in str(refused.exception)


def test_token_is_made_listed_and_revoked_by_command(tmp_path: Path) -> None:
    file = ("--file", str(tmp_path / "t.json"))
    made = command("token", "add", "a", "--scope", "ingest", "--scope", "read", "--expires", "2h", *file)
    secret = made.stdout.strip()
    assert made.exit_code == 0 and secret.startswith("tm_") and secret not in made.stderr
    listed = command("token", "list", *file)
    assert "ingest,read" in listed.output and secret not in listed.output
    assert command("token", "revoke", "a", *file).exit_code == 0
    assert len(command("token", "list", *file).output.splitlines()) == 1
    for words in (("add", "a b", "--scope", "read"), ("add", "a", "--scope", "all"), ("revoke", "nobody")):
        assert isinstance(command("token", *words, *file).exception, InputError)
    assert isinstance(command("token", "add", "b", "--scope", "read", "--expires", "soon", *file).exception, InputError)


def test_wrong_token_or_file_of_the_client_is_refused_when_built_and_not_repeated(tmp_path: Path) -> None:
    for wrong in ("two words", "new\nline", "", "café"):
        with pytest.raises(ConfigError) as told:
            token_of(wrong, {})
        assert not wrong or wrong not in str(told.value)
    assert token_of(None, {"TRIAGE_TOKEN": " secret\n"}) == "secret"
    assert token_of(None, {}) is None and tls_of({}) is None
    with pytest.raises(ConfigError, match="absent"):
        tls_context(str(tmp_path / "absent.pem"))


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


def test_tls_and_mutual_tls_let_in_who_has_the_papers_and_nobody_else(
    papers: Papers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = make_tokens(tmp_path / "t.json")
    tls = {"cert_file": papers.server, "client_ca_file": papers.ca}
    settings = {"server": {"port": 0}, "tls": tls, "auth": {"tokens_file": str(tmp_path / "t.json")}}
    with serving(Settings.from_dict(settings)) as live:
        assert live.address.startswith("https://127.0.0.1:")
        known = tls_context(papers.ca, papers.client)
        assert httpx.get(f"{live.address}/healthz", verify=known).status_code == 200
        assert httpx.get(f"{live.address}/v1/runs", verify=known).status_code == 401
        for context in (tls_context(papers.ca), tls_context(None, papers.client)):
            with pytest.raises(httpx.TransportError):
                httpx.get(f"{live.address}/healthz", verify=context)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{live.address.replace('https', 'http')}/healthz")
        monkeypatch.setenv("TRIAGE_CA_FILE", papers.ca)
        monkeypatch.setenv("TRIAGE_CERT_FILE", papers.client)
        monkeypatch.setenv("TRIAGE_TOKEN", secrets["trainer-a"])
        assert sent_one(live.address).stats["acknowledged"] == 1
        listed = command("runs", "--url", live.address, TRIAGE_TOKEN=secrets["grafana-viewer"])
        assert "mon" in listed.output
        monkeypatch.delenv("TRIAGE_CERT_FILE")
        assert isinstance(command("runs", "--url", live.address).exception, TriageError)


@pytest.mark.parametrize(
    ("tls", "named"),
    [
        ({"cert_file": "absent.pem"}, "absent.pem"),
        ({"key_file": "k.pem"}, "cert_file"),
        ({"client_ca_file": "c.pem"}, "cert_file"),
    ],
)
def test_certificate_that_cannot_be_used_is_refused_at_the_start(tls: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named), serving(Settings.from_dict({"server": {"port": 0}, "tls": tls})):
        pass


def test_webhook_checks_the_name_in_the_certificate_at_the_address_it_resolved(
    papers: Papers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", papers.ca)
    (tmp_path / "secret").write_bytes(b"x" * 32)
    for certificate, counted in ((papers.server, "delivered"), (papers.elsewhere, "failed")):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        with receiving(context) as receiver:
            target = {
                "name": "t",
                "url": f"https://localhost:{receiver.port}/",
                "secret_file": str(tmp_path / "secret"),
            }
            hooks = {"allow_private": True, "targets": [target], "max_attempts": 2, "backoff_seconds": 100.0}
            data = {"server": {"port": 0}, "webhooks": hooks, "judge": {"policy": {"mode": "adaptive"}}}
            with serving(Settings.from_dict(data)) as live:
                live.put("run", 1, masses(1, 1))
                live.http.post("/v1/runs/run/actions", json={"kind": "freeze"}, headers={"Idempotency-Key": "k"})
                wanted = f'triage_webhook_deliveries_total{{outcome="{counted}",target="t"}}'
                while live.metrics()[wanted] != 1:
                    pass
            assert len(receiver.got) == (counted == "delivered")
