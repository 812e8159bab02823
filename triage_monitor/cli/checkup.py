"""What `doctor` looks at: the server answers, its store takes writes, each run is alive and whole.

Every finding is one line that says what to do. A run that is retired is not expected to move.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from triage_monitor.errors import InputError

if TYPE_CHECKING:
    import httpx

SILENT_SECONDS = 900.0
Get = Callable[[str], "httpx.Response"]


def check_up(get: Get, say: Callable[[str], None]) -> int:
    """Says one line for everything that was looked at; returns how many need a person."""
    problems = 0
    for line, is_problem in _findings(get):
        say(("PROBLEM  " if is_problem else "ok       ") + line)
        problems += is_problem
    say(f"{problems} problem(s)" if problems else "nothing to do")
    return problems


def _findings(get: Get) -> Iterator[tuple[str, bool]]:
    ready = get("/readyz").json()
    if "store" not in ready:
        raise InputError("refused", "the server tells its state only to a token with the scope read; set TRIAGE_TOKEN")
    yield f"server is {ready['status']}, store: {ready['store']}", ready["status"] != "ready"
    if not ready["durable"]:
        yield "the store is in memory: a restart forgets everything (store.kind = 'sqlite' keeps it)", True
    if ready["corrupt_rows"]:
        yield f"{ready['corrupt_rows']} stored rows failed their checksum; check the disk", True
    if ready["damaged"]:
        text = (
            f"the store was found damaged {ready['damaged']} time(s), {ready['lost_writes']} acknowledged writes lost"
        )
        yield f"{text}; the damaged files are in the data directory under damaged/", True
    runs = get("/v1/runs").json()["runs"]
    yield f"{len(runs)} run(s)", False
    for run in runs:
        if not run["retired"]:
            yield from _of_run(get(f"/v1/runs/{run['run']}").json())


def _of_run(run: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    name, integrity = run["run"], run["integrity"]
    newest = run["last_update"]
    if newest is None:
        yield f"{name}: no update closed yet", False
        return
    silent = time.time() - newest["closed_at"]
    yield (
        f"{name}: {run['stage']} at step {newest['step']} ({run['why']})",
        run["stage"] in ("terminal", "not_observable"),
    )
    if silent > SILENT_SECONDS:
        yield f"{name}: no update for {silent:.0f} s; is the trainer running, does its Monitor reach this server?", True
    if integrity["partial_updates"]:
        yield f"{name}: {integrity['partial_updates']} updates lack shards; does every rank report?", True
    if integrity["conflicting_shards"]:
        yield (
            f"{name}: {integrity['conflicting_shards']} shards conflicted; a resumed trainer needs its own attempt",
            True,
        )
    if integrity["client_dropped"]:
        yield f"{name}: the trainer dropped updates: {integrity['client_dropped']}", True
    applied, version = run["params_applied"], run["params_version"]
    if applied is not None and applied["version"] < version:
        yield f"{name}: parameters {version} are not acknowledged yet (in force: {applied['version']})", False
    if run["held_by"]:
        yield f"{name}: parameters are held by {run['held_by']}; `params {name} --release` lets the policy act", False
