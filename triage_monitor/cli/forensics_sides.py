"""One of the two runs of `diff`, from a server or a recording: its updates by step, settings and changes of stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triage_monitor.cli.operator import call, run_path

PAGE = 500


@dataclass(frozen=True, slots=True)
class Side:
    """`updates`: the reports in force by step, each update by itself."""

    name: str
    settings: Mapping[str, Any]
    updates: Mapping[int, Mapping[str, Any]]
    transitions: Sequence[Mapping[str, Any]]


def served_side(url: str, run: str) -> Side:
    detail = call("GET", url, run_path(run), holds="window").json()
    updates: dict[int, Mapping[str, Any]] = {}
    bound = ""
    while True:
        page = call("GET", url, f"{run_path(run)}/updates?limit={PAGE}{bound}", holds="updates").json()["updates"]
        updates |= {item["step"]: item for item in page}
        if len(page) < PAGE or page[0]["step"] == 0:
            break
        bound = f"&to={page[0]['step'] - 1}"
    settings: dict[str, Any] = {name: ", ".join(told) for name, told in detail.get("settings", {}).items()}
    settings |= {f"params.{name}": value for name, value in flat(detail["params"]).items()}
    settings |= {f"judge.{name}": value for name, value in flat(detail["thresholds"]).items()}
    transitions = call("GET", url, f"{run_path(run)}/transitions?limit=1000", holds="transitions").json()["transitions"]
    return Side(run, settings, dict(sorted(updates.items())), transitions)


def recorded_side(path: str, window: int) -> Side:
    from triage_monitor.cli.analysis import analyse
    from triage_monitor.storage.recordings import iter_updates
    from triage_monitor.summary.spec import SummarySpec

    result = analyse(iter_updates([path]), spec=SummarySpec(), window=window)
    updates = {item["step"]: item for item in result.document["updates"]}
    transitions = [item.to_dict() for item in result.story.transitions]
    return Side(result.document["run"] or path, result.story.settings, dict(sorted(updates.items())), transitions)


def flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        found |= flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {before + name: value}
    return found
