"""What lies in deploy/ loads, and its rules name metrics that exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import httpx
import yaml
from programs import program
from service.live_server import STREAM, masses, serving

from triage_monitor.config import Settings
from triage_monitor.service.alerts import BY_NAME
from triage_monitor.service.ingest import DROPPED_HEADER

PROMETHEUS = Path(__file__).parents[1] / "deploy" / "prometheus"
OTHERS = {"up"}
SOON = Settings.from_dict(
    {
        "server": {"port": 0},
        "judge": {
            "window_updates": 3,
            "detector": {
                "baseline": {"first_updates": 3, "min_windows": 3},
                "minimum": {"updates": 3, "tokens": 1, "responses": 1},
            },
            "policy": {"mode": "paper"},
        },
    }
)


def test_rules_name_only_metrics_that_a_running_monitor_exposes() -> None:
    with serving(SOON) as live:
        for step in range(8):
            live.put("run", step, masses(3, 2), headers={**STREAM, DROPPED_HEADER: "queue_full=1"})
        live.http.post("/v1/runs/run/params/ack", json={"version": 1, "step": 1})
        text = httpx.get(f"{live.address}/metrics").text
    exposed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    rules = yaml.safe_load((PROMETHEUS / "rules.yml").read_text())
    named: set[str] = set()
    for group in rules["groups"]:
        for rule in group["rules"]:
            named |= set(re.findall(r"(?<![:\w])(triage_\w+|up)\b(?=[\[{ )]|$)", rule["expr"]))
    assert len(named) > 8
    assert named - exposed - OTHERS == set()


def test_prometheus_configuration_scrapes_the_default_address_and_loads_the_rules() -> None:
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    assert config["scrape_configs"][0]["static_configs"][0]["targets"] == ["127.0.0.1:8750"]
    assert all((PROMETHEUS / name).exists() for name in config["rule_files"])


def test_grafana_is_provisioned_alike_for_compose_and_kubernetes() -> None:
    grafana = PROMETHEUS.parent / "grafana"
    source = yaml.safe_load((grafana / "provisioning/datasources/prometheus.yml").read_text())
    provider = yaml.safe_load((grafana / "provisioning/dashboards/triage.yml").read_text())
    maps = list(yaml.safe_load_all((grafana / "kubernetes/provisioning.yaml").read_text()))
    assert [item["kind"] for item in maps] == ["ConfigMap", "ConfigMap"]
    inside = [yaml.safe_load(text) for item in maps for text in item["data"].values()]
    assert inside == [source, provider]
    assert source["datasources"][0]["type"] == "prometheus"
    assert provider["providers"][0]["options"]["path"] == "/var/lib/grafana/dashboards/triage"


def test_alertmanager_takes_its_configuration_and_names_alerts_that_exist() -> None:
    path = PROMETHEUS.parent / "alertmanager" / "alertmanager.yml"
    done = subprocess.run([program("amtool"), "check-config", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    patterns = re.findall(r'alertname =~? "([^"]+)"', path.read_text())
    for pattern in (part for found in patterns for part in found.split("|")):
        assert [name for name in BY_NAME if re.fullmatch(pattern, name)], pattern
