"""Writes standalone.yaml, the chart's manifests for those without Helm: python deploy/kubernetes/render.py

Renders by `helm template` where helm is installed, else by Helm's own library (pip install helm-python-sdk), with the
chart's default values. The file's first line carries a digest of the chart, by which a test tells an outdated one.
"""

from __future__ import annotations

import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

CHART = Path(__file__).parents[1] / "helm" / "triage-monitor"
TARGET = Path(__file__).with_name("standalone.yaml")
NAME, NAMESPACE = "triage-monitor", "triage"
HEAD = """\
# Rendered from deploy/helm/triage-monitor (sha256 {digest}) by render.py; change the chart, not this file.
#   triage-monitor token add prometheus --scope read --file tokens.json > scrape-token     # and so on, one a caller
#   kubectl create namespace triage
#   kubectl -n triage create secret generic triage-monitor-tokens --from-file=tokens.json
#   kubectl -n triage create secret generic triage-monitor-scrape --from-file=token=scrape-token
#   kubectl -n triage apply -f standalone.yaml
# ServiceMonitor and PrometheusRule need the Prometheus operator; leave them out where there is none.
"""


def digest() -> str:
    """Of every file of the chart, names and contents."""
    total = sha256()
    for path in sorted(item for item in CHART.rglob("*") if item.is_file()):
        total.update(f"{path.relative_to(CHART).as_posix()}\n{sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def rendered(values: dict[str, Any] | None = None) -> dict[str, str]:
    """Template -> manifest, by Helm's library. ModuleNotFoundError without it."""
    import helm_python

    with helm_python.Chart.load(str(CHART)) as chart:
        chart.validate_schema(chart.merge_values(values or {}))
        found: dict[str, str] = chart.render(values or {}, name=NAME, namespace=NAMESPACE)
    return {name.rsplit("/", 1)[1]: text for name, text in sorted(found.items()) if name.endswith(".yaml")}


def manifest() -> str:
    helm = shutil.which("helm")
    if helm is not None:
        command = [helm, "template", NAME, str(CHART), "--namespace", NAMESPACE]
        body = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    else:
        body = "".join(f"---\n{text.strip()}\n" for text in rendered().values() if text.strip())
    return HEAD.format(digest=digest()) + body


if __name__ == "__main__":
    TARGET.write_text(manifest())
    print(TARGET)
