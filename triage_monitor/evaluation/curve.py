"""The benchmark's picture: lead and detection against false alarms, on held-out runs.

A line shows what an alarm can do there over all its parameters: the best value at no more than so many false alarms.
The large mark is what one would have had: the parameter chosen on the development runs, with its intervals.
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
from triage_monitor.evaluation.tuning import trial

# Okabe and Ito's colours, told apart by people with any common colour vision; the marks differ as well
STYLES = (("#D55E00", "o", "-"), ("#0072B2", "s", "--"), ("#009E73", "^", "-."), ("#444444", "D", ":"))
MOST_SHOWN = 10.0


def frontier(asked: Asked, contest: Contest, row: Row) -> tuple[Floats, Floats, Floats]:
    """(false alarms per 1,000, best detection, best median lead) at no more than so many, on held-out runs."""
    answers, chosen = asked.answers[row.choice.alarm.name], asked.of("held-out")
    trials = [trial(answers.at(place, chosen), contest.held_out) for place in range(len(answers.parameters))]
    trials.sort(key=lambda item: item.false_alarm_rate)
    rates, detections, leads = np.array(
        [(item.false_alarm_rate, item.detection, item.lead_with_misses) for item in trials]
    ).T
    return rates, np.maximum.accumulate(detections), np.maximum.accumulate(leads)


def draw(asked: Asked, contest: Contest, path: Path) -> None:
    """Writes a PNG. Raises ConfigError when matplotlib is not installed."""
    figure_class = _matplotlib()
    figure = figure_class(figsize=(9.0, 7.0), dpi=150, layout="constrained")
    leads, detections = figure.subplots(2, 1, sharex=True)
    for row, style in zip(contest.featured, STYLES, strict=False):
        rates, best_detection, best_lead = frontier(asked, contest, row)
        _line(leads, rates, best_lead, style, _label(row))
        _line(detections, rates, 100 * best_detection, style, None)
        _mark(leads, row.score.false_alarm_rate, row.score.lead_with_misses, style, 1.0)
        _mark(detections, row.score.false_alarm_rate, row.score.detection, style, 100.0)
    _dress(leads, contest, "median lead in updates\n(a missed collapse is 0)")
    _dress(detections, contest, "collapses detected, %")
    leads.set_ylim(bottom=0)
    detections.set_ylim(0, 104)
    detections.set_xlabel("false alarms per 1,000 healthy updates, held-out runs")
    leads.set_title(_title(contest), loc="left", fontsize=11)
    leads.legend(frameon=False, fontsize=10, loc="best")
    figure.savefig(path, format="png")


def _title(contest: Contest) -> str:
    held_out = contest.held_out
    return (
        f"Early warning on {len(held_out.names)} held-out runs, {int((~held_out.survived).sum())} of which collapse\n"
        "lines: best on these runs at that rate; large marks: tuned on other runs, with 95% intervals"
    )


def _label(row: Row) -> str:
    family = {"magnitude": "best magnitude rule: ", "direction": "best directional indicator: "}
    return family.get(row.family, "") + row.choice.entry.title


def _line(axes: Any, rates: Floats, values: Floats, style: Sequence[str], label: str | None) -> None:
    color, mark, dash = style
    edge = max(MOST_SHOWN, float(rates[-1]))
    axes.step(
        [*rates, edge],
        [*values, values[-1]],
        where="post",
        color=color,
        linestyle=dash,
        linewidth=2,
        marker=mark,
        markevery=[0],
        label=label,
    )


def _mark(axes: Any, across: Estimate, up: Estimate, style: Sequence[str], scale: float) -> None:
    if across.value is None or up.value is None:
        return
    color, mark, _ = style
    axes.errorbar(
        across.value,
        scale * up.value,
        xerr=[[_gap(across.value, across.low)], [_gap(across.high, across.value)]],
        yerr=[[scale * _gap(up.value, up.low)], [scale * _gap(up.high, up.value)]],
        color=color,
        marker=mark,
        markersize=11,
        markeredgecolor="white",
        elinewidth=1,
        zorder=5,
        clip_on=False,
    )


def _gap(high: float | None, low: float | None) -> float:
    return 0.0 if high is None or low is None else max(high - low, 0.0)


def _dress(axes: Any, contest: Contest, label: str) -> None:
    axes.axvline(contest.budget, color="#999999", linewidth=1)
    axes.annotate(
        "budget",
        (contest.budget, 1),
        (4, -10),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        color="#666666",
        fontsize=9,
    )
    axes.set_xscale("symlog", linthresh=1.0)
    axes.set_xlim(-0.03, MOST_SHOWN)
    ticks = [0, 0.5, 1, 2, 5, 10]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
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
