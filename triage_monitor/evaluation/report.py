"""The benchmark's result as one document: what `--json` prints and what the tables are drawn from.

Main part: every row scored on the held-out runs under the chosen collapse rule and budget. Beside it: how much hangs
on the definition of a collapse, how lead and false alarms trade when tuned to other budgets, and what went wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from triage_monitor.evaluation.contest import Asked, Contest, Row, begun, held_out_answer, hold, tuned
from triage_monitor.evaluation.scoring import NEVER, SILENCE, WARMUP, Runs, score
from triage_monitor.evaluation.tuning import Choice
from triage_monitor.testbed.outcome import CollapseRule

DEFINITIONS = (0.5, 0.75, 0.9)
BUDGETS = (0.0, 0.5, 1.0, 2.0, 3.0)


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    document: dict[str, Any]
    contest: Contest


def report(asked: Asked, definition: float, budget: float, horizon: int | None = None) -> Report:
    """`definition` is the share of its best below which a reward has collapsed."""
    contest = hold(asked, replace(CollapseRule(), ratio=definition), budget, horizon)
    others = {ratio: hold(asked, replace(CollapseRule(), ratio=ratio), budget) for ratio in DEFINITIONS}
    document = {
        "collapse": asdict(contest.rule),
        "budget": budget,
        "counting": _counting(),
        "runs": {"development": _ends(contest.development), "held_out": _ends(contest.held_out)},
        "rows": [_row(row, budget) for row in contest.rows],
        "best_magnitude": contest.best_magnitude.choice.entry.title,
        "sensitivity": [_sensitivity(ratio, other) for ratio, other in others.items()],
        "trade": [_trade(asked, contest, row, limit) for row in contest.featured for limit in BUDGETS],
        "failures": [_failures(asked, contest, row) for row in contest.featured],
        "by_run": _by_run(asked, contest),
    }
    return Report(document, contest)


def _counting() -> dict[str, Any]:
    return {
        "warmup_updates": WARMUP,
        "silence_updates": SILENCE,
        "healthy_updates": f"updates from {WARMUP} on of held-out runs that do not collapse, to their last",
        "detected": f"an alarm on at some update from {WARMUP} on and before the collapse",
        "intervals": "95%, runs resampled 2,000 times; one-sided exact bound where all runs agree",
    }


def _ends(runs: Runs) -> dict[str, int | float | None]:
    return {
        "runs": len(runs.names),
        "collapses": int((~runs.survived).sum()),
        "too_early_to_warn": int(runs.too_early.sum()),
        "survivors": int(runs.survived.sum()),
        "healthy_updates": int(runs.healthy_updates.sum()),
        "always_on_rate": runs.always_on_rate,
    }


def _row(row: Row, budget: float) -> dict[str, Any]:
    choice = row.choice
    return {
        "title": choice.entry.title,
        "family": choice.entry.family,
        "alarm": choice.alarm.name,
        "parameter": choice.parameter,
        "tuned": choice.entry.tuned,
        "within_budget": choice.trial.within(budget),
        "development": asdict(choice.trial),
        **asdict(row.score),
    }


def _sensitivity(ratio: float, contest: Contest) -> dict[str, Any]:
    return {
        "ratio": ratio,
        "held_out": _ends(contest.held_out),
        "rows": [_row(row, contest.budget) for row in contest.featured],
    }


def _trade(asked: Asked, contest: Contest, row: Row, budget: float) -> dict[str, Any]:
    entry = replace(row.choice.entry, tuned=bool(row.choice.alarm.grid))
    choice = tuned(asked, entry, contest.development, budget)
    result = score(held_out_answer(asked, choice), contest.held_out)
    return {
        "title": row.choice.entry.title,
        "budget": budget,
        "parameter": choice.parameter,
        "development_rate": choice.trial.false_alarm_rate,
        **asdict(result),
    }


def _failures(asked: Asked, contest: Contest, row: Row) -> dict[str, Any]:
    runs, alarms = contest.held_out, begun(asked, row.choice)
    missed, false = [], {}
    for name, collapse in zip(runs.names, runs.collapse.tolist(), strict=True):
        started = alarms[name]
        if collapse == NEVER and started:
            false[name] = started
        elif collapse != NEVER and collapse > WARMUP and not (started and started[0] < collapse):
            missed.append({"run": name, "collapse": collapse, "alarm_after": started[0] if started else None})
    too_early = [name for name, early in zip(runs.names, runs.too_early, strict=True) if early]
    return {"title": row.choice.entry.title, "missed": missed, "false_alarms": false, "too_early_to_warn": too_early}


def _by_run(asked: Asked, contest: Contest) -> list[dict[str, Any]]:
    runs = contest.held_out
    firsts = {row.choice.entry.title: _firsts(asked, row.choice) for row in contest.featured}
    return [
        {
            "run": name,
            "updates": int(runs.updates[place]),
            "collapse": None if runs.collapse[place] == NEVER else int(runs.collapse[place]),
            "first_alarm": {title: first[place] for title, first in firsts.items()},
        }
        for place, name in enumerate(runs.names)
    ]


def _firsts(asked: Asked, choice: Choice) -> Sequence[int | None]:
    first = held_out_answer(asked, choice).first
    return [None if step == NEVER else int(step) for step in np.asarray(first)]
