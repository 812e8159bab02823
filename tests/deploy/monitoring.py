"""Debian's Prometheus and Alertmanager on loopback, with the shipped rules and configuration, made quick.

What differs from the shipped files: the scrape and evaluation intervals (1 s), every `for` and `keep_firing_for` (1 s),
Alertmanager's group_wait and group_interval (1 s), and the addresses.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml
from programs import program

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"


def wait_for(what: str, condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Its first true value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {seconds:g} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Monitoring:
    """Both programs, by their HTTP APIs."""

    def __init__(self, prometheus: str, alertmanager: str) -> None:
        self.prometheus = httpx.Client(base_url=prometheus, trust_env=False, timeout=30)
        self.alertmanager = httpx.Client(base_url=alertmanager, trust_env=False, timeout=30)

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Series of the last two minutes; an expression that is refused fails the test."""
        now = time.time()
        answer = self.prometheus.post(
            "/api/v1/query_range", data={"query": expr, "start": now - 120, "end": now, "step": "1"}
        )
        assert answer.status_code == 200, f"{expr}: {answer.text}"
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found

    def alerts(self, name: str) -> list[dict[str, Any]]:
        """What Alertmanager holds as active."""
        answer = self.alertmanager.get("/api/v2/alerts", params={"filter": f'alertname="{name}"', "active": "true"})
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()
        return found


@contextmanager
def monitoring(folder: Path, monitor: str) -> Iterator[Monitoring]:
    """Scrapes the monitor at this address and tells it of alerts."""
    rules_port, alerts_port = free_port(), free_port()
    _write_rules(folder / "rules.yml")
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{alerts_port}"]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [monitor.removeprefix("http://")]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    routes = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text())
    routes["route"] |= {"group_wait": "1s", "group_interval": "1s"}
    routes["receivers"][0]["webhook_configs"][0]["url"] = f"{monitor}/v1/hooks/alertmanager"
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(routes))
    prometheus = [
        program("prometheus"), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address=127.0.0.1:{rules_port}", "--log.level=error",
    ]  # fmt: skip
    alertmanager = [
        program("prometheus-alertmanager"), f"--config.file={folder}/alertmanager.yml",
        f"--storage.path={folder}/alerts", f"--web.listen-address=127.0.0.1:{alerts_port}",
        "--cluster.listen-address=", "--log.level=error",
    ]  # fmt: skip
    both = Monitoring(f"http://127.0.0.1:{rules_port}", f"http://127.0.0.1:{alerts_port}")
    started = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in (prometheus, alertmanager)]
    try:
        for client in (both.prometheus, both.alertmanager):
            wait_for(f"{client.base_url} is ready", lambda client=client: _is_ready(client))
        yield both
    finally:
        both.prometheus.close()
        both.alertmanager.close()
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def _write_rules(path: Path) -> None:
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule |= {name: "1s" for name in ("for", "keep_firing_for") if name in rule}
    path.write_text(yaml.safe_dump(rules))
