"""The chart and the manifests: valid for Kubernetes, the rules those of Prometheus, and what they set is accepted."""

from __future__ import annotations

import json
import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from triage_monitor.config import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "triage-monitor"
RENDER = runpy.run_path(str(DEPLOY / "kubernetes" / "render.py"))
OF_THE_OPERATOR = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
VERSIONS = ("1.29", "1.33")
REMEDY = "run python deploy/kubernetes/render.py"


def documents(path: Path) -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all(path.read_text()) if item is not None]


def by_kind(path: Path = DEPLOY / "kubernetes" / "standalone.yaml") -> dict[str, dict[str, Any]]:
    return {item["kind"]: item for item in documents(path)}


def sidecar() -> dict[str, Any]:
    found: dict[str, Any] = by_kind(DEPLOY / "kubernetes/sidecar/patch.yaml")["Job"]["spec"]["template"]["spec"]
    return found


def pods() -> list[dict[str, Any]]:
    """Pod specs that hold the sidecar: the stand-alone one and the one beside a trainer."""
    return [by_kind()["StatefulSet"]["spec"]["template"]["spec"], sidecar()]


def monitors() -> list[dict[str, Any]]:
    alone, beside = pods()
    return [alone["containers"][0], beside["initContainers"][0]]


def by_helm(values: dict[str, Any] | None = None) -> dict[str, str]:
    if find_spec("helm_python") is None:
        pytest.skip("helm-python-sdk is not installed")
    found: dict[str, str] = RENDER["rendered"](values)
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid(version: str) -> None:
    seen = set()
    for path in sorted((DEPLOY / "kubernetes").rglob("*.yaml")):
        for item in documents(path):
            if item["kind"] in OF_THE_OPERATOR | {"Kustomization"} or path.name == "patch.yaml":
                continue
            kubernetes_validate.validate(item, version, strict=True)
            seen.add(item["kind"])
    assert {"StatefulSet", "Service", "ConfigMap", "NetworkPolicy", "PersistentVolumeClaim", "Job"} <= seen


def test_patched_trainer_is_valid() -> None:
    """The patch laid over the trainer as a strategic merge does it: containers by name, the rest added."""
    job = by_kind(DEPLOY / "kubernetes/sidecar/trainer.yaml")["Job"]
    template, patch = job["spec"]["template"], sidecar()
    trainer = template["spec"]["containers"][0]
    assert [item["name"] for item in patch["containers"]] == [trainer["name"]] == ["trainer"]
    template["spec"] |= {name: value for name, value in patch.items() if name != "containers"}
    trainer["env"] = patch["containers"][0]["env"]
    kubernetes_validate.validate(job, "1.29", strict=True)
    assert patch["initContainers"][0]["restartPolicy"] == "Always"


def test_rules_of_chart_and_manifest_are_those_of_prometheus() -> None:
    rules = DEPLOY / "prometheus" / "rules.yml"
    assert (CHART / "files" / "rules.yml").read_bytes() == rules.read_bytes(), REMEDY
    assert by_kind(DEPLOY / "kubernetes" / "prometheusrule.yaml")["PrometheusRule"]["spec"] == yaml.safe_load(
        rules.read_text()
    ), REMEDY


def test_standalone_manifest_was_rendered_from_the_present_chart() -> None:
    text = (DEPLOY / "kubernetes" / "standalone.yaml").read_text()
    assert f"(sha256 {RENDER['digest']()})" in text.splitlines()[0], REMEDY


def test_helm_renders_the_committed_manifests() -> None:
    rendered = [item for text in by_helm().values() for item in yaml.safe_load_all(text)]
    rules = next(item for item in rendered if item["kind"] == "PrometheusRule")
    assert rules["spec"] == by_kind(DEPLOY / "kubernetes" / "prometheusrule.yaml")["PrometheusRule"]["spec"]
    rendered.remove(rules)
    assert rendered == documents(DEPLOY / "kubernetes" / "standalone.yaml")


def test_helm_renders_what_other_values_ask_for() -> None:
    off = {"monitoring": {"enabled": False}, "networkPolicy": {"enabled": False}, "persistence": {"enabled": False}}
    asked = {**off, "allowedHosts": ["triage.example"], "config": "[judge.policy]\nmode = 'adaptive'\n"}
    kinds = {item["kind"]: item for text in by_helm(asked).values() if (item := yaml.safe_load(text)) is not None}
    assert set(kinds) == {"ConfigMap", "Service", "StatefulSet"}
    kubernetes_validate.validate(kinds["StatefulSet"], "1.33", strict=True)
    volumes = kinds["StatefulSet"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "data", "emptyDir": {}} in volumes
    text = kinds["ConfigMap"]["data"]["triage-monitor.toml"]
    assert yaml.safe_load(text.split("mode = ")[1]) == "adaptive"


@pytest.mark.parametrize(
    "wrong", [{"tokensSecret": ""}, {"persistence": {"enabled": True, "size": "ten"}}, {"imagee": {}}, {"config": 1}]
)
def test_values_that_cannot_be_meant_are_refused(wrong: dict[str, Any]) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.Draft7Validator(schema).validate(values)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate({**values, **wrong})


@pytest.mark.parametrize("which", [0, 1])
def test_sidecar_is_confined_probed_and_bounded(which: int) -> None:
    container, pod = monitors()[which], pods()[which]
    both = {**pod.get("securityContext", {}), **container["securityContext"]}
    assert both["runAsNonRoot"] is True and both["runAsUser"] == 10001 and both["fsGroup"] == 10001
    assert both["readOnlyRootFilesystem"] is True and both["allowPrivilegeEscalation"] is False
    assert both["capabilities"] == {"drop": ["ALL"]} and both["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert "memory" in container["resources"]["limits"] and "cpu" in container["resources"]["requests"]
    writable = {item["mountPath"] for item in container["volumeMounts"] if not item.get("readOnly")}
    assert writable == {"/var/lib/triage-monitor", "/tmp"}


@pytest.mark.parametrize("which", [0, 1])
def test_sidecar_takes_the_settings_it_is_given(which: int, tmp_path: Path) -> None:
    container = monitors()[which]
    env = {item["name"]: item["value"] for item in container["env"]}
    toml = None
    if "--config" in container["args"]:
        toml = tmp_path / "triage-monitor.toml"
        toml.write_text(by_kind()["ConfigMap"]["data"]["triage-monitor.toml"])
    settings = Settings.load(toml, env)
    assert settings.server.host == "0.0.0.0" and settings.auth.tokens_file
    mounted = {item["mountPath"] for item in container["volumeMounts"]}
    assert str(Path(settings.auth.tokens_file).parent) in mounted
    assert settings.server.port == container["ports"][0]["containerPort"]
    if which == 0:
        assert "triage-monitor.triage.svc" in settings.auth.allowed_hosts


def test_trainers_reach_a_monitor_that_is_not_ready() -> None:
    """Its 507 says what is wrong; with the only address taken out of the Service nobody would be told."""
    assert by_kind()["Service"]["spec"]["publishNotReadyAddresses"] is True


def test_prometheus_finds_it_under_the_job_that_the_rules_look_for() -> None:
    kinds = by_kind()
    monitor, service = kinds["ServiceMonitor"]["spec"], kinds["Service"]
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "triage-monitor"
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    beside = by_kind(DEPLOY / "kubernetes/sidecar/podmonitor.yaml")["PodMonitor"]
    labels = by_kind(DEPLOY / "kubernetes/sidecar/patch.yaml")["Job"]["spec"]["template"]["metadata"]["labels"]
    assert beside["spec"]["selector"]["matchLabels"] == labels
    assert labels[beside["spec"]["jobLabel"]] == "triage-monitor"
    assert beside["spec"]["podMetricsEndpoints"][0]["port"] == monitors()[1]["ports"][0]["name"]


def test_nothing_may_be_called_from_the_pod_and_only_neighbours_and_prometheus_come_in() -> None:
    policy = by_kind()["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"] and policy["egress"] == []
    labels = by_kind()["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert len(policy["ingress"]) == 1 and len(policy["ingress"][0]["from"]) == 2
