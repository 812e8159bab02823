"""The README's reference tables, made from the code they describe.

    python -m triage_monitor.cli.tables README.md

rewrites what stands between the markers `<!-- table: NAME -->` and `<!-- end -->`; a test holds the README to it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any


def indicator_table() -> str:
    from triage_monitor.judge.indicators import INDICATORS

    rows = [
        f"| `{row.name}` | {row.family} | {row.unit} | {row.help} |"
        for row in INDICATORS
        if _names_its_own_row(row.name)
    ]
    return "\n".join(["| indicator | family | unit | what it is |", "|---|---|---|---|", *rows])


def _names_its_own_row(name: str) -> bool:
    """The restricted segment families repeat the plain rows; one line of text says so."""
    return not (name.endswith(("_a_neg", "_a_pos")) and not name.startswith("mass_"))


def reason_table() -> str:
    from triage_monitor.judge.table import REASONS

    rows = [f"| `{name}` | {text} |" for name, text in REASONS.items()]
    return "\n".join(["| reason | there is no value because |", "|---|---|", *rows])


def parameter_table() -> str:
    from triage_monitor.parameters import BOUNDS, TriageParams, flatten

    rows = []
    for name, value in flatten(TriageParams()).items():
        if name in ("version", "issued_at_step", "reason"):
            continue
        low, high = BOUNDS.get(name, ("", ""))
        bounds = "" if low == "" else f"{low:g} to {high:g}"
        rows.append(f"| `{name}` | `{str(value).lower() if isinstance(value, bool) else value}` | {bounds} |")
    return "\n".join(["| parameter | default | accepted |", "|---|---|---|", *rows])


def setting_table() -> str:
    from triage_monitor.config import Settings

    rows = [f"| `{name}` | `{value}` |" for name, value in _leaves("", Settings()) if not name.startswith("judge.")]
    return "\n".join(["| setting | default |", "|---|---|", *rows])


def cause_table() -> str:
    from triage_monitor.judge.causes_table import CAUSES

    rows = [f"| `{cause.name}` | {cause.kind} | {cause.shows} | {cause.remedy} |" for cause in CAUSES]
    return "\n".join(["| cause | kind | named when | what to do |", "|---|---|---|---|", *rows])


def runbook() -> str:
    from triage_monitor.service.alerts import ALERTS

    return "\n".join(
        f"### {item.name}\n\n{item.severity.capitalize()}. {item.means} {item.remedy}\n" for item in ALERTS
    )


def framework_table() -> str:
    from triage_monitor.trainer.adapters.frameworks import FRAMEWORKS

    rows = [
        f"| {name} | {item.version} | {item.activation} | {item.act} | {item.proof} |"
        for name, item in FRAMEWORKS.items()
    ]
    head = "| framework | read at | activated by (observes every update) | acts | how proven |"
    return "\n".join([head, "|---|---|---|---|---|", *rows])


def name_table() -> str:
    from triage_monitor.trainer.adapters.names import NAMES

    rows = [
        f"| {row.framework} | `{row.theirs}` | {f'`{row.ours}`' if row.ours else 'none'} | {row.difference or 'equal'} "
        f"| {row.checked} |"
        for row in NAMES
    ]
    return "\n".join(["| framework | its name | ours | difference | checked |", "|---|---|---|---|---|", *rows])


def trap_table() -> str:
    from triage_monitor.trainer.adapters.names import TRAPS

    rows = [f"| {row.trap} | {row.handled} |" for row in TRAPS]
    return "\n".join(["| trap | where it goes |", "|---|---|", *rows])


def route_table() -> str:
    from triage_monitor.config import Settings
    from triage_monitor.service.app import create_app
    from triage_monitor.storage.memory import MemoryStore

    paths = create_app(Settings(), MemoryStore()).openapi()["paths"]
    rows = [
        f"| `{method.upper()} {path}` | {' '.join(route.get('description', '').split(chr(10) * 2)[0].split())} |"
        for path, methods in paths.items()
        for method, route in methods.items()
    ]
    return "\n".join(["| call | does |", "|---|---|", *rows])


def _leaves(prefix: str, value: Any) -> list[tuple[str, Any]]:
    if not is_dataclass(value):
        return [] if value == {} else [(prefix, value)]
    return [
        leaf
        for item in fields(value)
        for leaf in _leaves(f"{prefix}.{item.name}".lstrip("."), getattr(value, item.name))
    ]


def _between(rows: str, found: re.Match[str]) -> str:
    return f"{found[1]}{rows}\n{found[2]}"


TABLES: dict[str, Callable[[], str]] = {
    "indicators": indicator_table,
    "reasons": reason_table,
    "parameters": parameter_table,
    "settings": setting_table,
    "causes": cause_table,
    "runbook": runbook,
    "frameworks": framework_table,
    "names": name_table,
    "traps": trap_table,
    "http": route_table,
}


def refreshed(text: str) -> str:
    """The text with every marked table as the code has it now."""
    for name, table in TABLES.items():
        marked = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = marked.sub(partial(_between, table()), text)
    return text


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
