"""Asks every alarm about every run once, and chooses each one's parameter on the development runs.

The choice: among the parameters whose false-alarm rate there is within the budget, the highest share of collapses
detected, then the longest median lead (misses as 0), then the fewest false alarms; if none is within it, the fewest
false alarms come first. Of parameters equal in all this the middle one is taken: it stands furthest from where the
development runs would have been judged otherwise. Where several alarms compete for one row of the table (an indicator
in several forms) the choice is over all of them together. Held-out runs take no part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triage_monitor.evaluation.rivals_level import Level
from triage_monitor.evaluation.scoring import NEVER, Alarm, Answer, Runs, Steps, sweep
from triage_monitor.evaluation.series import RunSeries
from triage_monitor.testbed.outcome import CollapseRule

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the table: the alarms that compete for it; `tuned` False keeps the only candidate's fixed value."""

    title: str
    family: str
    candidates: tuple[Alarm, ...]
    tuned: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """All answers of one alarm: arrays [parameters, runs]."""

    parameters: tuple[float, ...]
    first: Steps
    episodes: Steps

    def at(self, place: int, chosen: NDArray[np.bool_]) -> Answer:
        return Answer(self.first[place, chosen], self.episodes[place, chosen])


@dataclass(frozen=True, slots=True)
class Trial:
    """What one parameter did on the development runs."""

    detection: float
    lead_with_misses: float
    false_alarm_rate: float

    def rank(self, budget: float) -> tuple[float, ...]:
        """Larger is better."""
        wanted = (self.detection, self.lead_with_misses, -self.false_alarm_rate)
        return (1.0, *wanted) if self.within(budget) else (0.0, -self.false_alarm_rate, *wanted[:2])

    def within(self, budget: float) -> bool:
        return self.false_alarm_rate <= budget


@dataclass(frozen=True, slots=True)
class Choice:
    entry: Entry
    alarm: Alarm
    place: int
    parameter: float
    trial: Trial


def ask(entries: Sequence[Entry], runs: Sequence[RunSeries], progress: Progress) -> dict[str, Answers]:
    """Alarm name -> its answers, over its grid and its fixed parameter."""
    answers: dict[str, Answers] = {}
    for number, entry in enumerate(entries, 1):
        progress(f"{number}/{len(entries)} {entry.title}")
        for alarm in entry.candidates:
            if alarm.name not in answers:
                answers[alarm.name] = _ask(alarm, runs)
    return answers


def _ask(alarm: Alarm, runs: Sequence[RunSeries]) -> Answers:
    parameters = tuple(sorted({*alarm.grid, *(() if alarm.fixed is None else (alarm.fixed,))}))
    swept = [sweep(_on(alarm, run, parameters)) for run in runs]
    first, count = (np.stack(columns, axis=1) for columns in zip(*swept, strict=True))
    return Answers(parameters, first, count)


def _on(alarm: Alarm, run: RunSeries, parameters: Sequence[float]) -> NDArray[np.bool_]:
    if isinstance(alarm, Level):
        return alarm.held(run) > np.array(parameters)[:, None]
    on = np.zeros((len(parameters), len(run.steps)), bool)
    for row, parameter in enumerate(parameters):
        on[row, list(alarm.alarms(run, parameter))] = True
    return on


def ends(runs: Sequence[RunSeries], rule: CollapseRule) -> Runs:
    collapses = [run.collapse(rule) for run in runs]
    return Runs(
        tuple(run.name for run in runs),
        np.array([NEVER if step is None else step for step in collapses], np.int64),
        np.array([len(run.steps) for run in runs], np.int64),
    )


def part(runs: Runs, chosen: NDArray[np.bool_]) -> Runs:
    names = tuple(name for name, keep in zip(runs.names, chosen, strict=True) if keep)
    return Runs(names, runs.collapse[chosen], runs.updates[chosen])


def choose(
    entry: Entry, answers: Mapping[str, Answers], development: Runs, chosen: NDArray[np.bool_], budget: float
) -> Choice:
    """`development` are the runs of `chosen`, a mask over the runs that `answers` are about."""
    options = [
        Choice(entry, alarm, place, answers[alarm.name].parameters[place], trial)
        for alarm in entry.candidates
        for place, trial in enumerate(trials(answers[alarm.name], development, chosen))
        if entry.tuned or answers[alarm.name].parameters[place] == alarm.fixed
    ]
    best = max(option.trial.rank(budget) for option in options)
    equals = [option for option in options if option.trial.rank(budget) == best]
    of_first = [option for option in equals if option.alarm.name == equals[0].alarm.name]
    return of_first[len(of_first) // 2]


def trials(answers: Answers, runs: Runs, chosen: NDArray[np.bool_]) -> list[Trial]:
    """One a parameter, on the runs of `chosen`; detection and lead are 0 where no run collapses."""
    first, collapse = answers.first[:, chosen][:, runs.warnable], runs.collapse[runs.warnable]
    lead = collapse - np.minimum(first, collapse)
    nothing = np.zeros(len(first))
    detection, median = ((lead > 0).mean(axis=1), np.median(lead, axis=1)) if collapse.size else (nothing, nothing)
    false = answers.episodes[:, chosen][:, runs.survived].sum(axis=1)
    exposure = int(runs.healthy_updates.sum())
    rate = 1000 * false / exposure if exposure else nothing
    return [Trial(*map(float, row)) for row in zip(detection, median, rate, strict=True)]
