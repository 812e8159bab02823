"""Prometheus: our job is up, our rules are loaded and evaluate, an Alertmanager is there to be told."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from triage_monitor.cli.checkup import TIMEOUT_SECONDS, Finding, good, note, problem
from triage_monitor.errors import ConfigError

JOB = "triage-monitor"
AREA = "prometheus"


def alert_rules(url: str) -> Generator[Finding, None, frozenset[str] | None]:
    """The names of the alerts it has loaded; None when it did not say."""
    import httpx

    from triage_monitor.trainer.transport import checked_url

    with httpx.Client(base_url=checked_url(url), timeout=TIMEOUT_SECONDS, trust_env=False) as client:
        try:
            targets = _asked(client, "/api/v1/targets?state=active")["activeTargets"]
            groups = _asked(client, "/api/v1/rules?type=alert")["groups"]
            told = _asked(client, "/api/v1/alertmanagers")["activeAlertmanagers"]
        except httpx.HTTPError as error:
            words = f"no answer from {url}: {error or type(error).__name__}"
            yield problem(AREA, words, "check the address; it is Prometheus' own, not Grafana's")
            return None
    yield from _targets(targets)
    rules = [rule for group in groups for rule in group["rules"]]
    yield from _rules(rules)
    if told:
        yield good(AREA, f"tells {len(told)} Alertmanager(s)")
    else:
        fix = "set alerting.alertmanagers in prometheus.yml and start it"
        yield problem(AREA, "no Alertmanager is there: alerts reach nobody", fix)
    return frozenset(rule["name"] for rule in rules)


def _asked(client: Any, path: str) -> Any:
    answer = client.get(path)
    try:
        return answer.json()["data"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{answer.request.url} is no answer of Prometheus; is this the right address?") from None


def _targets(targets: list[dict[str, Any]]) -> Iterator[Finding]:
    ours = [target for target in targets if target["labels"].get("job") == JOB]
    if not ours:
        fix = f"add a scrape_config with job_name {JOB} (deploy/prometheus/prometheus.yml)"
        yield problem(AREA, f"there is no target of the job {JOB}", fix)
    for target in ours:
        if target["health"] == "up":
            yield good(AREA, f"{target['scrapeUrl']} is up")
        elif target["health"] == "unknown":
            yield note(AREA, f"{target['scrapeUrl']} was not scraped yet")
        else:
            fix = "a 401 asks for authorization.credentials_file; a 421 for auth.allowed_hosts; else check the address"
            yield problem(AREA, f"{target['scrapeUrl']} is down: {target['lastError']}", fix)


def _rules(rules: list[dict[str, Any]]) -> Iterator[Finding]:
    from triage_monitor.service.alerts import ALERTS

    loaded = {rule["name"] for rule in rules}
    missing = [alert.name for alert in ALERTS if alert.name not in loaded]
    if missing:
        named = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        fix = "name deploy/prometheus/rules.yml in rule_files and reload"
        yield problem(AREA, f"rules are not loaded: {named}", fix)
    else:
        yield good(AREA, f"all {len(ALERTS)} alerting rules are loaded")
    for rule in rules:
        if rule["name"] in {alert.name for alert in ALERTS} and rule["health"] == "err":
            yield problem(AREA, f"{rule['name']} does not evaluate: {rule['lastError']}", "reload the shipped rules")
