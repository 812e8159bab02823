"""The table of `analyze`: updates and their trailing windows side by side, thinned out when the run is long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from triage_monitor.judge.observation import direction_numbers

PLAIN_WIDTH = 150
STAGE_STYLES = {"healthy": "green", "drift": "yellow", "pre_terminal": "red", "terminal": "bold red"}
FACTORS = ("advantage_mass_ratio", "sign_odds_blind", "rho_excess", "rho_pressure", "near_zero_fraction")
HEADS = ("rho_asym", "[95%]", "adv mass", "sign odds", "excess", "pressure", "near zero", "q0.001", "q0.05", "reward")


def render(document: Mapping[str, Any], *, rows: int, window: int) -> RenderableType:
    updates, windows = document["updates"], document["windows"]
    places = chosen(windows, rows)
    attempts = len({update["attempt"] for update in updates}) > 1
    head = f"run {document['run']}: {len(updates)} updates"
    if len(places) < len(updates):
        head += f", {len(places)} shown (first, last, changes of stage, and evenly between)"
    parts: list[RenderableType] = [
        Text(head, style="bold"),
        _table("each update by itself", [updates[index] for index in places], attempts, window=False),
        _table(
            f"trailing windows of up to {window} updates", [windows[index] for index in places], attempts, window=True
        ),
    ]
    parts += [_finding(item) for item in document["findings"]]
    return Group(*parts)


def chosen(windows: Sequence[Mapping[str, Any]], rows: int) -> list[int]:
    count = len(windows)
    if count <= rows:
        return list(range(count))
    even = {round(index * (count - 1) / (rows - 1)) for index in range(rows)} if rows > 1 else {count - 1}
    stages = [window["stage"] for window in windows]
    changes = [place for place, (before, after) in enumerate(pairwise(stages), 1) if before != after]
    return sorted(even | set(changes[:rows]))


def _table(title: str, rows: Sequence[Mapping[str, Any]], attempts: bool, *, window: bool) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name in ("step", *(("updates", "stage") if window else ("tokens",)), *HEADS):
        table.add_column(name, justify="left" if name in ("stage", "[95%]") else "right", no_wrap=True)
    for row in rows:
        place = f"{row['attempt']}:{row['step']}" if attempts else str(row["step"])
        if window:
            stage = row["stage"]
            own = [Text(str(row["updates"])), Text(stage, style=STAGE_STYLES.get(stage, "dim"))]
        else:
            own = [Text(f"{row['counts']['valid_tokens']:,}")]
        table.add_row(place, *own, *_numbers(row))
    return table


def _numbers(row: Mapping[str, Any]) -> list[str]:
    values = row["indicators"]
    direction = direction_numbers(values)
    interval = f"[{direction['low']:.3g}, {direction['high']:.3g}]" if "low" in direction else ""
    quantiles = row["quantiles"]["all"]
    return [
        _number(values.get("rho_asym")),
        interval,
        *(_number(values.get(name)) for name in FACTORS),
        _number(quantiles.get("0.001")),
        _number(quantiles.get("0.05")),
        _number(values.get("reward_mean")),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _finding(finding: Mapping[str, Any]) -> Text:
    evidence = ", ".join(f"{name} {evidence_text(value)}" for name, value in finding["evidence"].items())
    head = f"finding: {finding['cause']} from step {finding['step']}, {finding['confidence']} confidence"
    style = "yellow" if finding["kind"] == "fault" else "cyan"
    return Text(f"{head}: {finding['text']}\n  ({evidence})\n  what to do: {finding['remedy']}", style=style)


def evidence_text(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(str(item) for item in value[:8]) + ("/.." if len(value) > 8 else "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)
