"""The server itself: store, version, `/metrics` as Prometheus would read it, and what alerts trigger."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from triage_monitor import __version__
from triage_monitor.cli.checkup import Finding, Probe, good, json_of, note, problem, reason_of

SCRAPE_SECONDS = 5.0


def store(probe: Probe) -> Iterator[Finding]:
    ready = json_of(probe.get("/readyz"))
    if ready["status"] != "ready":
        fix = "check space and health of the disk under store.data_dir; trainers keep their queue meanwhile"
        yield problem("store", f"not ready; the last write: {ready['store']}", fix)
    elif not ready["durable"]:
        fix = "store.kind = 'sqlite' keeps it"
        yield problem("store", "the store is in memory: a restart forgets everything", fix)
    else:
        yield good("store", "ready and durable")
    if ready["corrupt_rows"]:
        fix = "check the disk; such rows are left out, never served"
        yield problem("store", f"{ready['corrupt_rows']} stored rows failed their checksum", fix)
    if ready["damaged"]:
        what = f"found damaged {ready['damaged']} time(s), {ready['lost_writes']} acknowledged writes lost"
        yield problem("store", what, "check the disk; the damaged files are in the data directory under damaged/")
    if ready["tokens_file"] not in ("none", "ok"):
        fix = "repair the file; the last good set is in force until then"
        yield problem("access", f"the token file cannot be taken over: {ready['tokens_file']}", fix)


def version(probe: Probe) -> Iterator[Finding]:
    served = json_of(probe.get("/openapi.json"))["info"]["version"]
    if served == __version__:
        yield good("version", f"{served}, the same as here")
    else:
        yield note("version", f"{served} there, {__version__} here", "install the same version on both sides")


def scrape(probe: Probe) -> Iterator[Finding]:
    from prometheus_client.parser import text_string_to_metric_families

    answer = probe.get("/metrics")
    if answer.status_code != 200:
        yield problem("scrape", f"/metrics: {reason_of(answer)}", "see the server's log")
        return
    try:
        families = [item.name for item in text_string_to_metric_families(answer.text)]
    except ValueError as error:
        yield problem("scrape", f"/metrics is no exposition: {error}", "ask the port itself: a proxy?")
        return
    took = answer.elapsed.total_seconds()
    words = f"/metrics: {len(families)} metrics, {len(answer.content) / 1024:.0f} KiB in {took:.2f} s"
    if took > SCRAPE_SECONDS:
        yield problem("scrape", words, "retire runs that are over, or raise Prometheus' scrape_timeout")
    elif not any(name.startswith("triage_") for name in families):
        yield problem("scrape", f"{words}, none of ours", "check host and port")
    else:
        yield good("scrape", words)


def hooks(probe: Probe, scopes: Collection[str], rules: Collection[str] | None) -> Iterator[Finding]:
    """`rules` are the alerts that Prometheus has loaded, or None when it was not asked."""
    from triage_monitor.service.alerts import ALERTS

    yield _route(probe, scopes)
    answer = probe.get("/v1/hooks")
    if answer.status_code != 200:
        yield note("hooks", "the server does not say which alerts it maps", "install the same version on both sides")
        return
    mapped = json_of(answer)["actions"]
    if not mapped:
        yield note("hooks", "no alert triggers an action", "map alert names in [hooks.actions] if they should")
        return
    known = {alert.name for alert in ALERTS} if rules is None else set(rules)
    for name, action in mapped.items():
        if name in known:
            yield good("hooks", f"{name} triggers {action['kind']}")
        elif rules is None:
            what = f"{name} triggers {action['kind']} and is none of the shipped rules"
            yield note("hooks", what, "see whether a rule of yours has this name")
        else:
            fix = "load a rule of this name, or correct [hooks.actions]"
            yield problem("hooks", f"{name} triggers {action['kind']}, but Prometheus has no such alert", fix)


def _route(probe: Probe, scopes: Collection[str]) -> Finding:
    if "control" not in scopes:
        return note("hooks", "whether they get in was not tried: this token may not control", "use Alertmanager's own")
    answer = probe.ask("POST", "/v1/hooks/alertmanager", {"alerts": []})
    if answer.status_code == 200:
        return good("hooks", "POST /v1/hooks/alertmanager is taken")
    return problem("hooks", f"POST /v1/hooks/alertmanager: {reason_of(answer)}", "see the server's log")
