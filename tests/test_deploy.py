"""What lies in deploy/ loads, and its rules name metrics that exist."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import yaml
from service.live_server import masses, serving

DEPLOY = Path(__file__).parents[1] / "deploy"
OTHERS = {"up"}


def test_rules_name_only_metrics_that_a_running_monitor_exposes() -> None:
    with serving() as live:
        live.put("run", 1, masses(3, 2))
        live.http.post("/v1/runs/run/params/ack", json={"version": 1, "step": 1})
        text = httpx.get(f"{live.address}/metrics").text
    exposed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    rules = yaml.safe_load((DEPLOY / "rules.yml").read_text())
    named: set[str] = set()
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["summary"], rule["alert"]
            named |= set(re.findall(r"\b(triage_\w+|up)\b(?=[\[{ )]|$)", rule["expr"]))
    assert len(named) > 8
    assert named - exposed - OTHERS == set()


def test_prometheus_configuration_scrapes_the_default_address_and_loads_the_rules() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert config["scrape_configs"][0]["static_configs"][0]["targets"] == ["127.0.0.1:8750"]
    assert all((DEPLOY / name).exists() for name in config["rule_files"])
