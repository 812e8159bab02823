"""The benchmark itself: everyone is tuned on the development runs and scored on the held-out ones.

`Asked` holds what every alarm said of every run; it is asked once and serves every collapse rule and every budget.
The best rule of a family is the one that the development runs would have had us choose, not the one that turned out
best on the held-out runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triage_monitor.errors import InputError
from triage_monitor.evaluation.scoring import Answer, Runs, Score, episodes, score
from triage_monitor.evaluation.series import RunSeries
from triage_monitor.evaluation.tuning import Answers, Choice, Entry, Progress, ask, choose, ends, part
from triage_monitor.testbed.outcome import CollapseRule

FAMILIES = (
    "ours",
    "magnitude",
    "field line",
    "tail",
    "direction",
    "segment",
    "trend",
    "change point",
    "loss",
    "reward",
)
SPLITS = ("development", "held-out")


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    entries: tuple[Entry, ...]
    runs: tuple[RunSeries, ...]
    answers: dict[str, Answers]

    def of(self, split: str) -> NDArray[np.bool_]:
        return np.array([run.split == split for run in self.runs])


@dataclass(frozen=True, slots=True)
class Row:
    choice: Choice
    score: Score

    @property
    def family(self) -> str:
        return self.choice.entry.family


@dataclass(frozen=True, slots=True, eq=False)
class Contest:
    """`rows` by family, the best on the held-out runs first; `featured` are the few that figures and lists show."""

    rule: CollapseRule
    budget: float
    development: Runs
    held_out: Runs
    rows: tuple[Row, ...]
    best_magnitude: Row
    featured: tuple[Row, ...]


def ask_all(entries: Sequence[Entry], runs: Sequence[RunSeries], progress: Progress) -> Asked:
    splits = {run.split for run in runs}
    if splits != set(SPLITS):
        raise InputError("split", f"the corpus needs development and held-out runs and nothing else, not {splits}")
    return Asked(tuple(entries), tuple(runs), ask(entries, runs, progress))


def hold(asked: Asked, rule: CollapseRule, budget: float, horizon: int | None = None) -> Contest:
    """`budget` is in false alarms per 1,000 healthy updates."""
    everyone = ends(asked.runs, rule)
    development, held_out = (part(everyone, asked.of(split)) for split in SPLITS)
    choices = [tuned(asked, entry, development, budget) for entry in asked.entries]
    magnitude = _best(choices, "magnitude", budget)
    if magnitude is None:
        raise InputError("contestants", "no magnitude rule takes part, so there is nothing to be ahead of")
    rival = held_out_answer(asked, magnitude)
    rows = [Row(choice, score(held_out_answer(asked, choice), held_out, rival, horizon)) for choice in choices]
    rows.sort(key=_order)
    shown = (_shipped(choices), magnitude, _best(choices, "direction", budget), _titled(choices, "CUSUM"))
    featured = tuple(row for choice in shown if choice for row in rows if row.choice is choice)
    best = next(row for row in rows if row.choice is magnitude)
    return Contest(rule, budget, development, held_out, tuple(rows), best, featured)


def tuned(asked: Asked, entry: Entry, development: Runs, budget: float) -> Choice:
    return choose(entry, asked.answers, development, asked.of("development"), budget)


def held_out_answer(asked: Asked, choice: Choice) -> Answer:
    return asked.answers[choice.alarm.name].at(choice.place, asked.of("held-out"))


def begun(asked: Asked, choice: Choice) -> dict[str, list[int]]:
    """Held-out run -> updates at which an episode of the chosen alarm begins."""
    return {
        run.name: episodes(choice.alarm.alarms(run, choice.parameter)) for run in asked.runs if run.split == "held-out"
    }


def _best(choices: Sequence[Choice], family: str, budget: float) -> Choice | None:
    of_family = [choice for choice in choices if choice.entry.family == family and choice.entry.tuned]
    return max(of_family, key=lambda choice: choice.trial.rank(budget), default=None)


def _shipped(choices: Sequence[Choice]) -> Choice | None:
    return next((choice for choice in choices if choice.entry.family == "ours"), None)


def _titled(choices: Sequence[Choice], title: str) -> Choice | None:
    return next((choice for choice in choices if choice.entry.title == title), None)


def _order(row: Row) -> tuple[float, ...]:
    place = FAMILIES.index(row.family)
    if row.family == "ours":
        return (place,)
    known = (row.score.detection.value, row.score.lead_with_misses.value)
    return (place, *(-(value or 0.0) for value in known))
