"""Each run: whether its trainer still sends, whole updates, and takes the parameters. A retired run need not move.

Ages are counted in the run's own intervals, as the rule TriageTrainerStalled does: five medians, at least a minute;
half an hour for a run too young to have a pace.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any
from urllib.parse import quote

from triage_monitor.cli.checkup import Finding, Probe, good, json_of, note, problem
from triage_monitor.cli.checkup_access import served_at

PACE_UPDATES = 25
YOUNG_SECONDS = 1800.0
INTERVALS, LEAST_SECONDS = 5.0, 60.0
UNACKNOWLEDGED_UPDATES = 3


def runs(probe: Probe) -> Iterator[Finding]:
    found = [run for run in json_of(probe.get("/v1/runs"))["runs"] if not run["retired"]]
    if not found:
        yield note("runs", "no run is active", "give a trainer's Monitor this address, or `replay` a recording to it")
    for run in found:
        path = f"/v1/runs/{quote(run['run'], safe='')}"
        answer = probe.get(path)
        closed = [item["closed_at"] for item in json_of(probe.get(f"{path}/updates?limit={PACE_UPDATES}"))["updates"]]
        detail = json_of(answer)
        if detail["last_update"] is None:
            yield note(run["run"], "no update closed yet")
            continue
        yield _stage(detail)
        yield from _pace(detail, served_at(answer), sorted(closed))
        yield from _integrity(run["run"], detail["integrity"])
        yield from _parameters(detail, closed)


def _stage(run: dict[str, Any]) -> Finding:
    words = f"{run['stage']} at step {run['last_update']['step']}" + (f" ({run['why']})" if run["why"] else "")
    if run["stage"] == "terminal":
        return problem(run["run"], words, "see the runbook: TriageRunTerminal")
    if run["stage"] == "not_observable":
        return problem(run["run"], words, "see `findings` in GET /v1/runs/RUN: the columns are no basis for a verdict")
    return good(run["run"], words)


def _pace(run: dict[str, Any], now: float, closed: list[float]) -> Iterator[Finding]:
    gaps = [later - earlier for earlier, later in pairwise(closed)]
    allowed = max(LEAST_SECONDS, INTERVALS * median(gaps)) if len(gaps) >= 2 else YOUNG_SECONDS
    silent = now - run["last_update"]["closed_at"]
    if silent > allowed:
        fix = "is the trainer running, does its Monitor reach this server? If it is over: action `retire`"
        yield problem(run["run"], f"no update for {silent:.0f} s, {allowed:.0f} s would be usual", fix)


def _integrity(name: str, integrity: dict[str, Any]) -> Iterator[Finding]:
    if integrity["partial_updates"]:
        yield problem(name, f"{integrity['partial_updates']} updates lack shards", "does every rank report?")
    if integrity["conflicting_shards"]:
        what = f"{integrity['conflicting_shards']} shards conflicted with what was sent before"
        yield problem(name, what, "a resumed trainer needs its own attempt")
    if integrity["client_dropped"]:
        told = ", ".join(f"{reason} {count}" for reason, count in integrity["client_dropped"].items())
        yield problem(name, f"the trainer dropped updates: {told}", "see `monitor.stats` in the trainer")
    if integrity["refused_params"]:
        what = f"the trainer refused {integrity['refused_params']} parameter sets"
        yield problem(name, what, "widen its `limits`, or set other parameters")


def _parameters(run: dict[str, Any], closed: list[float]) -> Iterator[Finding]:
    name, version, applied = run["run"], run["params_version"], run["params_applied"]
    in_force = None if applied is None else applied["version"]
    since = sum(at > run["params_at"] for at in closed)
    if in_force == version:
        yield good(name, f"parameters {version} are in force at the trainer")
    elif since >= UNACKNOWLEDGED_UPDATES:
        what = f"parameters {version} are not acknowledged after {since} updates (in force: {in_force or 'unknown'})"
        yield problem(name, what, "rank 0 must call `monitor.apply(step)` at every update")
    else:
        yield note(name, f"parameters {version} are not acknowledged yet")
    if run["fenced_by"] is not None:
        what = f"its trainer obeys a monitor of epoch {run['fenced_by']}, this one has {run['epoch']}"
        yield problem(name, what, "stop one of the two; start the one that shall command it with `serve --take-over`")
    if run["held_by"]:
        fix = f"`triage-monitor params {name} --release` lets the policy act again"
        yield note(name, f"parameters are held by {run['held_by']}", fix)
