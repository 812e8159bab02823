"""Series for `promtool test rules`: a run whose updates come every four minutes, scraped and evaluated every minute."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from programs import program

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yml"
EVERY = 4  # minutes between updates
INSTANCE = {"job": "triage-monitor", "instance": "gpu-7:8750"}


@dataclass
class Story:
    """Input series by update, and which alerts must be firing when."""

    updates: int
    series: list[dict[str, str]] = field(default_factory=list)
    expected: list[dict[str, Any]] = field(default_factory=list)

    def run(self, name: str = "qwen") -> Story:
        """A run that makes progress."""
        return self.add("triage_update_step", range(self.updates), run=name)

    def add(self, metric: str, values: Iterable[float | None], **labels: str) -> Story:
        """One value an update, None for a scrape without the series; the last one is held to the end."""
        known = list(values)
        known += [known[-1]] * (self.updates - len(known))
        minutes = ["_" if value is None else f"{value:g}" for value in known for _ in range(EVERY)]
        return self.each_minute(metric, " ".join(minutes), **labels)

    def each_minute(self, metric: str, values: str, **labels: str) -> Story:
        named = ", ".join(f'{name}="{value}"' for name, value in {**INSTANCE, **labels}.items())
        self.series.append({"series": f"{metric}{{{named}}}", "values": values})
        return self

    def at_update(self, update: int, *alerts: str) -> Story:
        """Just before update + 1 comes these alerts fire, and none else."""
        return self.at_minute(update * EVERY + EVERY - 1, *alerts)

    def at_minute(self, minute: int, *alerts: str) -> Story:
        samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(alerts)]
        expr = 'count by (alertname) (ALERTS{alertstate="firing"})'
        self.expected.append({"expr": expr, "eval_time": f"{minute}m", "exp_samples": samples})
        return self

    def check(self, folder: Path, alerts: list[dict[str, Any]] | None = None) -> None:
        """Runs promtool; its complaint is the assertion's."""
        up = {"series": 'up{job="triage-monitor", instance="gpu-7:8750"}', "values": f"1x{self.updates * EVERY}"}
        named = any(item["series"].startswith("up{") for item in self.series)
        test = {
            "interval": "1m",
            "input_series": self.series if named else [*self.series, up],
            "promql_expr_test": self.expected,
            "alert_rule_test": alerts or [],
        }
        path = folder / "rules_test.yml"
        path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
        done = subprocess.run([program("promtool"), "test", "rules", str(path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
