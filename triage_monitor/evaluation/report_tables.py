"""The benchmark's document as tables for a terminal. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Document = Mapping[str, Any]
PLAIN_WIDTH = 160


def render(document: Document, *, by_run: bool) -> RenderableType:
    parts: list[RenderableType] = [_head(document), _main(document), _trade(document), _sensitivity(document)]
    if by_run:
        parts.append(_by_run(document))
    parts += [_failures(item) for item in document["failures"][:1]]
    return Group(*parts)


def _head(document: Document) -> Text:
    runs, counting = document["runs"], document["counting"]
    lines = [
        f"{part.replace('_', '-')}: {ends['runs']} runs, {ends['collapses']} collapse "
        f"({ends['too_early_to_warn']} too early to warn of), {ends['survivors']} survive "
        f"with {ends['healthy_updates']:,} healthy updates"
        for part, ends in runs.items()
    ]
    lines += [
        f"collapse: reward below {document['collapse']['ratio']:g} of its best for "
        f"{document['collapse']['sustained']} updates, or a gradient that is not finite",
        f"tuned on development to at most {document['budget']:g} false alarms per 1,000 healthy updates; "
        f"intervals {counting['intervals']}",
        f"healthy updates: {counting['healthy_updates']}; an alarm counts anew after {counting['silence_updates']} "
        "silent updates",
    ]
    rate = runs["held_out"]["always_on_rate"]
    if rate is not None:
        lines.append(
            f"an alarm that is always on counts once a run: {rate:.1f} per 1,000, where false alarms end to tell"
        )
    return Text("\n".join(lines))


def _main(document: Document) -> Table:
    table = _table("Held-out runs; leads in updates before the collapse")
    heads = ("level", "found", "%", "lead", "quartiles", "misses as 0", "ahead of *", "false/1,000", "alarmed")
    _columns(table, ("alarm", *heads))
    for family, rows in groupby(document["rows"], key=lambda row: row["family"]):
        table.add_section()
        table.add_row(Text(family, style="dim"))
        for row in rows:
            mark = " *" if row["title"] == document["best_magnitude"] and family == "magnitude" else ""
            table.add_row(f"{row['alarm']}{mark}", *_scores(row), style="bold" if family == "ours" else "")
    table.caption = (
        "* the magnitude rule that development would have us choose   + no level tried meets the budget there\n"
        "alarmed: survivors with an alarm   window: trailing 25 updates   update: single ones, three in a row\n"
        "abs: as it is   rel: over the run's own first 40 updates   dev: in robust deviations from them"
    )
    return table


def _scores(row: Document) -> list[str]:
    quartiles = row["lead_quartiles"]
    alarmed = row["survivors_alarmed"]["value"]
    return [
        f"{row['parameter']:.3g}" + ("+" if row["tuned"] and not row["within_budget"] else ""),
        f"{row['detected']}/{row['collapses'] - row['too_early']}",
        share(row["detection"]),
        estimate(row["lead"]),
        "-" if quartiles is None else f"{quartiles[0]:.0f} to {quartiles[1]:.0f}",
        estimate(row["lead_with_misses"]),
        estimate(row["ahead"], "+.0f"),
        estimate(row["false_alarm_rate"], ".1f"),
        "-" if alarmed is None else f"{round(alarmed * row['survivors'])}/{row['survivors']}",
    ]


def _trade(document: Document) -> Table:
    table = _table("Lead against false alarms: tuned on development to other budgets, scored on held-out")
    _columns(table, ("alarm", "budget", "level", "false/1,000", "found, %", "lead, misses as 0"))
    for _, rows in groupby(document["trade"], key=lambda row: row["title"]):
        table.add_section()
        for row in rows:
            over = row["development_rate"] > row["budget"]
            table.add_row(
                row["title"],
                f"{row['budget']:g}" + (" (not met)" if over else ""),
                f"{row['parameter']:.3g}",
                estimate(row["false_alarm_rate"], ".1f"),
                share(row["detection"]),
                estimate(row["lead_with_misses"]),
            )
    return table


def _sensitivity(document: Document) -> Table:
    table = _table("What hangs on the definition: reward below this share of its best (tuned anew for each)")
    _columns(table, ("alarm", "share", "collapses", "found, %", "of all, %", "lead", "ahead of *", "false/1,000"))
    for item in document["sensitivity"]:
        table.add_section()
        for row in item["rows"]:
            table.add_row(
                row["title"],
                f"{item['ratio']:g}",
                str(item["held_out"]["collapses"]),
                share(row["detection"]),
                share(row["detection_all"]),
                estimate(row["lead"]),
                estimate(row["ahead"], "+.0f"),
                estimate(row["false_alarm_rate"], ".1f"),
            )
    return table


def _by_run(document: Document) -> Table:
    table = _table("Held-out runs one by one: lead, or the first alarm of a survivor")
    titles = list(document["by_run"][0]["first_alarm"])
    _columns(table, ("run", "updates", "collapse", *titles))
    for run in document["by_run"]:
        collapse = run["collapse"]
        cells = [_told(first, collapse) for first in run["first_alarm"].values()]
        table.add_row(run["run"], str(run["updates"]), "-" if collapse is None else str(collapse), *cells)
    return table


def _told(first: int | None, collapse: int | None) -> str:
    if collapse is None:
        return "-" if first is None else f"false at {first}"
    return "missed" if first is None or first >= collapse else f"{collapse - first}"


def _failures(failures: Document) -> Text:
    lines = [f"Failures of {failures['title']} on held-out runs"]
    for miss in failures["missed"]:
        after = "never alarmed" if miss["alarm_after"] is None else f"alarmed at {miss['alarm_after']}"
        lines.append(f"  missed: {miss['run']}, collapse at {miss['collapse']}, {after}")
    for run, steps in failures["false_alarms"].items():
        lines.append(f"  false alarm: {run}, at {', '.join(map(str, steps))}")
    lines += [f"  too early to warn of: {run}" for run in failures["too_early_to_warn"]]
    return Text("\n".join(lines if len(lines) > 1 else [*lines, "  none"]))


def share(values: Document) -> str:
    """In percent."""
    return estimate({name: None if value is None else 100 * value for name, value in values.items()})


def estimate(values: Document, form: str = ".0f") -> str:
    """`31 [22, 45]`, or - for what is not known."""
    if values["value"] is None:
        return "-"
    return f"{values['value']:{form}} [{values['low']:{form}}, {values['high']:{form}}]"


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", caption_justify="left", box=None, pad_edge=False, header_style="bold"
    )


def _columns(table: Table, names: Sequence[str]) -> None:
    for place, name in enumerate(names):
        table.add_column(name, justify="right" if place else "left", no_wrap=place > 0)
