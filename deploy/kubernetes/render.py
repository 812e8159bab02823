"""Writes what is made from other files here: python deploy/kubernetes/render.py

    ../prometheus/rules.yml -> the chart's files/rules.yml, prometheusrule.yaml
    ../helm/triage-monitor  -> standalone.yaml, its manifests for those without Helm

The second needs `helm`, or Helm's own library (pip install helm-python-sdk); the chart's default values are taken. The
file's first line carries a digest of the chart, by which a test tells an outdated one.
"""

from __future__ import annotations

import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

CHART = Path(__file__).parents[1] / "helm" / "triage-monitor"
RULES = Path(__file__).parents[1] / "prometheus" / "rules.yml"
CHART_RULES = CHART / "files" / "rules.yml"
STANDALONE = Path(__file__).with_name("standalone.yaml")
PROMETHEUS_RULE = Path(__file__).with_name("prometheusrule.yaml")
NAME, NAMESPACE = "triage-monitor", "triage"
HEAD = """\
# Rendered from deploy/helm/triage-monitor (sha256 {digest}) by render.py; change the chart, not this file.
#   triage-monitor token add prometheus --scope read --file tokens.json > scrape-token     # and so on, one a caller
#   kubectl create namespace triage
#   kubectl -n triage create secret generic triage-monitor-tokens --from-file=tokens.json
#   kubectl -n triage create secret generic triage-monitor-scrape --from-file=token=scrape-token
#   kubectl -n triage apply -f standalone.yaml -f prometheusrule.yaml
# ServiceMonitor and PrometheusRule need the Prometheus operator; leave them out where there is none.
"""
RULE_HEAD = """\
# Made from deploy/prometheus/rules.yml by render.py; change that file, not this one.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: triage-monitor
  labels: {app.kubernetes.io/name: triage-monitor}
spec:
"""


def digest() -> str:
    """Of every file of the chart but the rules, names and contents."""
    total = sha256()
    for path in sorted(item for item in CHART.rglob("*") if item.is_file() and item != CHART_RULES):
        total.update(f"{path.relative_to(CHART).as_posix()}\n{sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def rendered(values: dict[str, Any] | None = None) -> dict[str, str]:
    """Template -> manifest, by Helm's library. ModuleNotFoundError without it."""
    import helm_python

    with helm_python.Chart.load(str(CHART)) as chart:
        chart.validate_schema(chart.merge_values(values or {}))
        found: dict[str, str] = chart.render(values or {}, name=NAME, namespace=NAMESPACE)
    return {name.rsplit("/", 1)[1]: text for name, text in sorted(found.items()) if name.endswith(".yaml")}


def prometheus_rule() -> str:
    lines = RULES.read_text().splitlines()
    return RULE_HEAD + "".join(f"  {line}\n" if line else "\n" for line in lines)


def standalone() -> str:
    """The rules apart: they are in prometheusrule.yaml."""
    helm = shutil.which("helm")
    if helm is not None:
        command = [helm, "template", NAME, str(CHART), "--namespace", NAMESPACE]
        body = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        parts = [part for part in body.split("---\n") if part.strip() and "kind: PrometheusRule" not in part]
    else:
        parts = [text for name, text in rendered().items() if text.strip() and name != "prometheusrule.yaml"]
    return HEAD.format(digest=digest()) + "".join(f"---\n{part.strip()}\n" for part in parts)


if __name__ == "__main__":
    CHART_RULES.write_bytes(RULES.read_bytes())
    PROMETHEUS_RULE.write_text(prometheus_rule())
    STANDALONE.write_text(standalone())
