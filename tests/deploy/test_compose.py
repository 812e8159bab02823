"""The compose: valid, every mounted file there, its configurations the shipped ones but for names and tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import yaml
from programs import program
from service.served_process import served

from triage_monitor.config import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose"
# Made by make-secrets.sh.
SECRETS = {"prometheus-token", "alertmanager-token", "trainer-token", "person-token", "grafana-password"}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = load(COMPOSE / "compose.yaml")
    return found


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that the script makes, by the real command."""
    home = tmp_path_factory.mktemp("compose")
    command = home / "triage-monitor"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m triage_monitor "$@"\n')
    command.chmod(0o755)
    out = home / "secrets"
    script = ["bash", str(COMPOSE / "make-secrets.sh"), str(out)]
    env = {**os.environ, "TRIAGE_MONITOR": str(command)}
    subprocess.run(script, env=env, check=True, capture_output=True, timeout=120)
    first = {path.name: path.read_text() for path in out.iterdir() if path.is_file()}
    subprocess.run(script, env=env, check=True, capture_output=True, timeout=120)
    assert first == {path.name: path.read_text() for path in out.iterdir() if path.is_file()}
    yield out


def test_compose_follows_its_specification(compose: dict[str, Any]) -> None:
    schema = json.loads((Path(__file__).parent / "schemas" / "compose-spec.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(compose)


def test_every_mounted_file_is_there_or_made_by_the_script(compose: dict[str, Any]) -> None:
    mounts = [mount for service in compose["services"].values() for mount in service["volumes"]]
    paths = [mount.split(":")[0] for mount in mounts]
    for path in paths:
        if path.startswith("./secrets"):
            continue
        assert path in compose["volumes"] or (COMPOSE / path).exists(), path
    assert {Path(item["file"]).name for item in compose["secrets"].values()} <= SECRETS
    assert (COMPOSE / compose["services"]["monitor"]["build"]["context"] / "deploy" / "Dockerfile").exists()


def test_every_service_is_confined_checked_and_reachable_from_this_machine_only(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        assert name == "monitor" or service["healthcheck"]["test"][0] == "CMD"  # the monitor's is in its image
        assert ":" in service["image"] and not service["image"].endswith(":latest")


def test_prometheus_is_the_shipped_one_with_names_and_a_token(secrets: Path, tmp_path: Path) -> None:
    ours, shipped = load(COMPOSE / "prometheus.yml"), load(DEPLOY / "prometheus" / "prometheus.yml")
    job = ours["scrape_configs"][0]
    assert job.pop("authorization") == {"credentials_file": "/run/secrets/prometheus-token"}
    job["static_configs"][0]["targets"] = ["127.0.0.1:8750"]
    ours["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = ["127.0.0.1:9093"]
    assert ours == shipped
    text = (COMPOSE / "prometheus.yml").read_text().replace("/run/secrets", str(secrets))
    (tmp_path / "prometheus.yml").write_text(text)
    (tmp_path / "rules.yml").write_bytes((DEPLOY / "prometheus" / "rules.yml").read_bytes())
    check = [program("promtool"), "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alertmanager_is_the_shipped_one_with_a_name_and_a_token(secrets: Path, tmp_path: Path) -> None:
    ours, shipped = load(COMPOSE / "alertmanager.yml"), load(DEPLOY / "alertmanager" / "alertmanager.yml")
    hook = ours["receivers"][0]["webhook_configs"][0]
    assert hook.pop("http_config") == {"authorization": {"credentials_file": "/run/secrets/alertmanager-token"}}
    assert hook["url"] == "http://monitor:8750/v1/hooks/alertmanager"
    hook["url"] = "http://127.0.0.1:8750/v1/hooks/alertmanager"
    assert ours == shipped
    (tmp_path / "alertmanager.yml").write_text((COMPOSE / "alertmanager.yml").read_text())
    check = [program("amtool"), "check-config", str(tmp_path / "alertmanager.yml")]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_caller_has_what_it_needs_and_no_more(secrets: Path, tmp_path: Path) -> None:
    """The compose's own settings, but for loopback and the paths of this machine."""
    assert Settings.load(COMPOSE / "triage-monitor.toml").auth.allowed_hosts == ("monitor",)
    assert (secrets.stat().st_mode & 0o777, (secrets / "monitor").stat().st_mode & 0o777) == (0o700, 0o755)
    env = {"TRIAGE_SERVER__HOST": "127.0.0.1", "TRIAGE_AUTH__TOKENS_FILE": str(secrets / "monitor" / "tokens.json")}
    calls = {
        "prometheus": ("GET", "/metrics", None),
        "alertmanager": ("POST", "/v1/hooks/alertmanager", {"alerts": []}),
        "trainer": ("POST", "/v1/runs/absent/params/ack", {}),
    }
    with served(tmp_path / "data", env, "--config", str(COMPOSE / "triage-monitor.toml")) as server:
        seen: dict[tuple[str, str], int] = {}
        for name in calls:
            token = (secrets / f"{name}-token").read_text().strip()
            for wanted, (method, path, body) in calls.items():
                headers = {"Authorization": f"Bearer {token}", "Host": "monitor:8750"}
                answer: httpx.Response = server.http.request(method, path, json=body, headers=headers)
                seen[name, wanted] = answer.status_code
    assert {pair for pair, status in seen.items() if status not in (401, 403)} == {(name, name) for name in calls}
    assert seen["prometheus", "prometheus"] == 200
    assert seen["alertmanager", "alertmanager"] == 200
