"""Dashboards as the JSON files in `dashboards/`: the same bytes every time, no nulls, one file a dashboard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from triage_monitor.config_access import is_web_address
from triage_monitor.errors import ConfigError

RUNBOOK, LINK = "README.md", "runbook_url: "
NAMES = ("fleet", "run", "research")
FOREIGN = ("id", "auto", "auto_count", "auto_min")  # of the SDK's variables; Grafana's schema has none of them


def dashboards(runbook: str = RUNBOOK) -> dict[str, dict[str, Any]]:
    """File name without its ending -> the dashboard as plain data; `runbook` is the page with the README's runbook.

    Raises ConfigError without the extra, or when that page is no web address."""
    try:
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
    except ModuleNotFoundError as error:
        raise ConfigError(
            "dashboards are built with grafana-foundation-sdk: pip install 'triage-monitor[grafana]'"
        ) from error

    from triage_monitor.dashboards.fleet import fleet
    from triage_monitor.dashboards.research import research
    from triage_monitor.dashboards.run import run

    made = {"fleet": fleet(), "run": run(), "research": research()}
    encoded = {name: JSONEncoder(sort_keys=True).encode(builder.build()) for name, builder in made.items()}
    boards = {name: _finished(_without_nulls(json.loads(text))) for name, text in encoded.items()}
    if runbook != RUNBOOK:
        for board in boards.values():
            _point(board, checked_runbook(runbook))
    return boards


def text_of(board: dict[str, Any]) -> str:
    return json.dumps(board, indent=2, sort_keys=True) + "\n"


def write(folder: Path, runbook: str = RUNBOOK, rules: Path | None = None) -> list[Path]:
    """Writes every dashboard, and Prometheus' `rules` with their links to this runbook; returns the files."""
    texts = {f"{name}.json": text_of(made) for name, made in dashboards(runbook).items()}
    if rules is not None:
        texts["rules.yml"] = rules_with(_read(rules), runbook)
        if (folder / "rules.yml").resolve() == rules.resolve():
            raise ConfigError(f"{rules} would be written over; give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def rules_with(text: str, runbook: str) -> str:
    """The rules with every runbook link under another page; an alert's name in lower case is its place there."""
    return text if runbook == RUNBOOK else text.replace(f"{LINK}{RUNBOOK}#", f"{LINK}{checked_runbook(runbook)}#")


def checked_runbook(address: str) -> str:
    if not is_web_address(address):
        form = "http(s)://host[:port]/path without credentials and fragment"
        raise ConfigError(f"the runbook's page {address!r} must be {form}")
    return address


def _read(rules: Path) -> str:
    try:
        return rules.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the rules {rules} cannot be read: {error}") from error


def _point(board: dict[str, Any], runbook: str) -> None:
    for variable in board["templating"]["list"]:
        if variable["name"] == "runbook":
            variable["query"] = runbook


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Every panel but the rows, those inside collapsed rows too."""
    flat = [inner for panel in board["panels"] for inner in (panel, *panel.get("panels", ()))]
    return [panel for panel in flat if panel["type"] != "row"]


def queries(board: dict[str, Any]) -> list[tuple[str, str]]:
    """(where, PromQL) of every panel's targets and every annotation."""
    found = [(panel["title"], target["expr"]) for panel in panels(board) for target in panel["targets"]]
    annotations = board.get("annotations", {}).get("list", ())
    return found + [(f"annotation {item['name']}", item["expr"]) for item in annotations if "expr" in item]


def _without_nulls(value: Any) -> Any:
    """Absent says the same to Grafana; its schema refuses null. A threshold's first value is null by definition."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None or key == "value"}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _finished(board: dict[str, Any]) -> dict[str, Any]:
    """Panels get ids by their order; variables keep what Grafana's schema knows."""
    del board["style"]  # gone from the schema; Grafana takes the viewer's theme
    for variable in board["templating"]["list"]:
        for name in FOREIGN:
            variable.pop(name, None)
    number = 0
    for panel in board["panels"]:
        for one in (panel, *panel.get("panels", ())):
            number += 1
            one["id"] = number
    return board
