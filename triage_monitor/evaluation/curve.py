"""The benchmark's picture: lead and detection against false alarms, on held-out runs.

A line shows what an alarm can do there over all its settings: the best value at no more than so many false alarms. The
large mark is what one would have had: the setting chosen on the development runs, with the interval of its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from triage_monitor.errors import ConfigError
from triage_monitor.evaluation.bootstrap import Estimate
from triage_monitor.evaluation.contest import Asked, Contest, Row
from triage_monitor.evaluation.scoring import Floats
from triage_monitor.evaluation.tuning import trials

# Colour (Okabe and Ito, told apart with any common colour vision), mark and dash by family: each alone tells them apart
STYLES: dict[str, tuple[str, str, str]] = {
    "ours": ("#D55E00", "o", "-"),
    "magnitude": ("#0072B2", "s", "--"),
    "direction": ("#009E73", "^", "-."),
    "change point": ("#444444", "D", ":"),
}
LABELS = {"magnitude": "best magnitude rule: ", "direction": "best directional indicator: "}
MARK_SHARE = 0.013  # of the axis, taken by a mark
GREY = "#666666"


def frontier(asked: Asked, contest: Contest, row: Row) -> tuple[Floats, Floats, Floats]:
    """(false alarms per 1,000, best detection, best median lead) at no more than so many, on held-out runs."""
    chosen = asked.of("held-out")
    done = [
        item
        for alarm in row.choice.entry.candidates
        for item in trials(asked.answers[alarm.name], contest.held_out, chosen)
    ]
    done.sort(key=lambda item: item.false_alarm_rate)
    rates, detections, leads = np.array(
        [(item.false_alarm_rate, item.detection, item.lead_with_misses) for item in done]
    ).T
    last = np.append(np.diff(rates) > 0, True)  # of those with the same rate, the one that has seen them all
    return rates[last], np.maximum.accumulate(detections)[last], np.maximum.accumulate(leads)[last]


def draw(asked: Asked, contest: Contest, path: Path) -> None:
    """Writes a PNG. Raises ConfigError when matplotlib is not installed."""
    figure = _matplotlib()(figsize=(9.0, 7.2), dpi=150, layout="constrained")
    leads, detections = figure.subplots(2, 1, sharex=True)
    rates_had = [row.score.false_alarm_rate.value or 0.0 for row in contest.featured]
    most = 1.05 * max(contest.held_out.always_on_rate or 1.0, contest.budget, *rates_had)
    places = _apart(rates_had, MARK_SHARE * most)
    for row, place in zip(contest.featured, places, strict=True):
        style = STYLES[row.family]
        rates, best_detection, best_lead = frontier(asked, contest, row)
        _line(leads, rates, best_lead, style, most)
        _line(detections, rates, 100 * best_detection, style, most)
        _mark(leads, place, row.score.lead_with_misses, style, 1.0)
        label = LABELS.get(row.family, "") + row.choice.entry.title
        leads.plot([], [], color=style[0], marker=style[1], linestyle=style[2], markersize=8, label=label)
        _mark(detections, place, row.score.detection, style, 100.0)
    _dress(leads, contest, most, "median lead in updates\n(a missed collapse is 0)")
    _dress(detections, contest, most, "collapses detected, %")
    leads.set_ylim(bottom=0)
    detections.set_ylim(0, 105)
    detections.set_xlabel("false alarms per 1,000 healthy updates, on held-out runs")
    leads.set_title(_title(contest), loc="left", fontsize=11, pad=16)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=10)
    figure.savefig(path, format="png")


def _apart(rates: Sequence[float], width: float) -> list[float]:
    """Marks of equal rates side by side, so that none hides another."""
    nearby = [sum(abs(rate - other) < width for other in rates[:place]) for place, rate in enumerate(rates)]
    return [rate + width * before for rate, before in zip(rates, nearby, strict=True)]


def _title(contest: Contest) -> str:
    held_out = contest.held_out
    return (
        f"Early warning on {len(held_out.names)} held-out runs, {int((~held_out.survived).sum())} of which collapse\n"
        "lines: the best any setting does on these runs; large marks: the setting tuned on other runs, 95% interval"
    )


def _line(axes: Any, rates: Floats, values: Floats, style: Sequence[str], most: float) -> None:
    color, _, dash = style
    edge = max(most, float(rates[-1]))
    across, up = [*rates, edge], [*values, values[-1]]
    axes.step(across, up, where="post", color=color, linestyle=dash, linewidth=2)


def _mark(axes: Any, across: float, up: Estimate, style: Sequence[str], scale: float) -> None:
    if up.value is None or up.low is None or up.high is None:
        return
    color, mark, _ = style
    below, above = max(up.value - up.low, 0.0), max(up.high - up.value, 0.0)
    axes.errorbar(
        across,
        scale * up.value,
        yerr=[[scale * below], [scale * above]],
        color=color,
        marker=mark,
        markersize=11,
        markeredgecolor="white",
        elinewidth=1.5,
        capsize=3,
        zorder=5,
        clip_on=False,
    )


def _dress(axes: Any, contest: Contest, most: float, label: str) -> None:
    where = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "va": "bottom"}
    for name, rate in (("budget", contest.budget), ("always on", contest.held_out.always_on_rate)):
        if rate is not None:
            axes.axvline(rate, color="#999999", linewidth=1)
            axes.annotate(name, (rate, 1.0), (0, 1), ha="center", color=GREY, fontsize=9, **where)
    axes.set_xlim(-MARK_SHARE * most, most)
    axes.set_ylabel(label, fontsize=10)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _matplotlib() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "the picture needs matplotlib, which is not installed: pip install 'triage-monitor[plots]'"
        ) from error
    return Figure
