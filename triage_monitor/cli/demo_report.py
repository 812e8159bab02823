"""What the demo found: one row a run, the moments that mattered, and where to look further.

Collapse is judged by reward alone (the mean of 25 updates below half its running best for 20 updates), never by the
monitor's own signals. The report says what happened, also when the guarded run did no better.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from triage_monitor.cli.demo_view import REWARD_UPDATES, RunView, number

COLLAPSE_UPDATES = 20
ALARMS = ("drift", "pre_terminal", "terminal")


def refresh(view: RunView, address: str) -> None:
    """Asks the sidecar; a run it has not heard of yet stays blank."""
    import httpx

    try:
        with httpx.Client(base_url=address, timeout=5.0) as http:
            answer = http.get(f"/v1/runs/{view.name}")
            if answer.status_code == 200:
                view.detail = answer.json()
                view.events = _events(_get(http, view.name, "transitions"), _get(http, view.name, "params/history"))
    except httpx.HTTPError:
        return


def _get(http: Any, run: str, what: str) -> list[dict[str, Any]]:
    answer = http.get(f"/v1/runs/{run}/{what}", params={"limit": 1000})
    body = answer.json() if answer.status_code == 200 else {}
    found: list[dict[str, Any]] = body.get("transitions") or body.get("versions") or []
    return found


def _events(transitions: list[dict[str, Any]], versions: list[dict[str, Any]]) -> list[str]:
    timed = [(item["step"], f"update {item['step']}: {item['to_stage']}: {item['text']}") for item in transitions]
    timed += [
        (
            item["params"]["issued_at_step"],
            f"update {item['params']['issued_at_step']}: parameters v{item['params']['version']}: {item['reason']}",
        )
        for item in versions
    ]
    return [text for _, text in sorted(timed, key=lambda pair: pair[0])]


def gather(views: Mapping[str, RunView], address: str, home: Path, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Asks the sidecar for each run's history and puts it beside what the trainer said."""
    import httpx

    runs = {}
    with httpx.Client(base_url=address, timeout=10.0) as http:
        for name, view in views.items():
            transitions = _get(http, name, "transitions")
            versions = _get(http, name, "params/history")
            runs[name] = {
                "title": view.title,
                "updates": view.step + 1,
                "seconds_per_update": view.seconds / max(1, view.step + 1),
                **_rewards(view.rewards),
                "stage": view.detail.get("stage"),
                "q0.001": view.quantile("0.001"),
                "mismatch_energy": view.indicator("mismatch_energy"),
                "rho_asym": view.indicator("rho_asym"),
                "rho_excess": view.indicator("rho_excess"),
                "first_alarm": {stage: _first(transitions, stage) for stage in ALARMS},
                "transitions": transitions,
                "parameter_versions": versions,
                "params_applied": view.detail.get("params_applied"),
            }
    return {"directory": str(home), "sidecar": address, "plan": dict(plan), "runs": runs}


def _rewards(rewards: list[float]) -> dict[str, Any]:
    means = [
        sum(rewards[max(0, end - REWARD_UPDATES) : end]) / min(end, REWARD_UPDATES)
        for end in range(1, len(rewards) + 1)
    ]
    best, low, collapsed = 0.0, 0, None
    for step, mean in enumerate(means):
        best = max(best, mean) if step + 1 >= REWARD_UPDATES else best
        low = low + 1 if mean < best / 2 else 0
        if low == COLLAPSE_UPDATES and collapsed is None:
            collapsed = step - COLLAPSE_UPDATES + 1
    return {
        "reward_first": means[min(REWARD_UPDATES, len(means)) - 1] if means else None,
        "reward_best": best if means else None,
        "reward_last": means[-1] if means else None,
        "collapsed_at": collapsed,
    }


def _alarm(stage: str, run: Mapping[str, Any]) -> str:
    return number(run["first_alarm"][stage], "d")


def _first(transitions: list[dict[str, Any]], stage: str) -> int | None:
    return next((item["step"] for item in transitions if item["to_stage"] == stage), None)


_ROWS: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
    ("updates", lambda run: str(run["updates"])),
    ("seconds an update", lambda run: f"{run['seconds_per_update']:.2f}"),
    ("reward, first 25 updates", lambda run: number(run["reward_first"], ".3f")),
    ("best 25", lambda run: number(run["reward_best"], ".3f")),
    ("last 25", lambda run: number(run["reward_last"], ".3f")),
    ("collapsed at update", lambda run: number(run["collapsed_at"], "d")),
    *((f"first {stage.replace('_', ' ')} at", partial(_alarm, stage)) for stage in ALARMS),
    ("q0.001 at the end", lambda run: number(run["q0.001"])),
    ("mismatch energy at the end", lambda run: number(run["mismatch_energy"])),
    ("parameter changes", lambda run: str(max(0, len(run["parameter_versions"]) - 1))),
)


def show(report: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="What happened", title_justify="left")
    table.add_column("")
    runs = list(report["runs"].values())
    for run in runs:
        table.add_column(run["title"], justify="right")
    for label, cell in _ROWS:
        table.add_row(label, *(cell(run) for run in runs))
    console.print(table)
    console.print(_verdict(report["runs"]), highlight=False)
    for name, run in report["runs"].items():
        for event in _events(run["transitions"], run["parameter_versions"]):
            console.print(f"  {name}: {event}", highlight=False, style="dim")
    console.print(_where(report), highlight=False)


def _verdict(runs: Mapping[str, Any]) -> str:
    free, held = runs["unguarded"], runs["guarded"]
    fates = [
        f"{name} collapsed at update {run['collapsed_at']}"
        if run["collapsed_at"] is not None
        else f"{name} did not collapse"
        for name, run in (("The unguarded run", free), ("the guarded run", held))
    ]
    difference = (held["reward_last"] or 0.0) - (free["reward_last"] or 0.0)
    earned = f"{abs(difference):.3f} {'more' if difference > 0 else 'less'}"
    return (
        f"{'; '.join(fates)}. Over the last {REWARD_UPDATES} updates the guarded run earned {earned} reward. "
        "One seed on one small task: an example, not evidence."
    )


def _where(report: Mapping[str, Any]) -> str:
    home = report["directory"]
    return (
        f"\nAll three runs started from the same weights, prompts and sampling seed. Kept in {home}:\n"
        f"  triage-monitor serve --config {home}/triage-monitor.toml --data-dir {home}/store   then /metrics\n"
        f"  triage-monitor analyze {home}/guarded/updates --segment 32 --tau-ana 0.25\n"
        f"  {home}/report.json holds this report, {home}/*/updates.jsonl each update's numbers"
    )


def load(path: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return report
