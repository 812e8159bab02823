"""What an alarm is, and what it was worth on runs whose ends are known.

An alarm answers, update by update and from what came before alone, whether it is on. Its updates make episodes: a new
one begins after at least SILENCE updates of silence. What happens before update WARMUP counts neither for an alarm nor
against it, since no one has seen normal yet; an alarm still on at WARMUP begins there.

    detected    a collapsing run with an alarm on at some update in [WARMUP, collapse)
    lead        collapse minus the first such update; a missed run has none, and is 0 where misses are to count
    false       an episode beginning anywhere in [WARMUP, end) of a surviving run, also near its end, where it may yet
                have been right; per 1,000 of those updates. Collapsing runs add neither events nor exposure.

A collapse at or before WARMUP is too early to warn of: reported by itself, and as a miss in `detection_all`. When the
reward collapses is `CollapseRule`'s to say; no alarm takes part in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from triage_monitor.evaluation import bootstrap
from triage_monitor.evaluation.bootstrap import UNKNOWN, Estimate
from triage_monitor.evaluation.series import RunSeries

WARMUP = 40
SILENCE = 25
NEVER = int(np.iinfo(np.int64).max)

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]


class Alarm(Protocol):
    """One way to raise an alarm, with one number to tune.

    `name` is unique. `grid` holds the parameters worth trying, `fixed` the one that is used without tuning. `alarms`
    returns the indices of all updates at which the alarm is on, ascending; what it says of update k may depend on
    updates up to k only.
    """

    @property
    def name(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def grid(self) -> Sequence[float]: ...
    @property
    def fixed(self) -> float | None: ...
    def alarms(self, run: RunSeries, parameter: float) -> Sequence[int]: ...


def episodes(on: Sequence[int]) -> list[int]:
    """The updates at which an episode begins, out of those at which the alarm is on."""
    begun: list[int] = []
    last = -SILENCE - 1
    for step in on:
        if step >= WARMUP:
            if step - last > SILENCE:
                begun.append(step)
            last = step
    return begun


def sweep(on: NDArray[np.bool_]) -> tuple[Steps, Steps]:
    """The same for many parameters at once: `on` [parameters, updates] -> first counted update or NEVER, episodes."""
    counted = on.copy()
    counted[:, :WARMUP] = False
    steps = np.arange(on.shape[1])
    newest = np.maximum.accumulate(np.where(counted, steps, -SILENCE - 1), axis=1)
    before = np.concatenate([np.full((len(on), 1), -SILENCE - 1), newest[:, :-1]], axis=1)
    begun = counted & (steps - before > SILENCE)
    return np.where(begun.any(axis=1), begun.argmax(axis=1), NEVER), begun.sum(axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The ends of some runs under one rule, as arrays over those runs. `collapse` is NEVER for a survivor."""

    names: tuple[str, ...]
    collapse: Steps
    updates: Steps

    @property
    def survived(self) -> NDArray[np.bool_]:
        return np.equal(self.collapse, NEVER)

    @property
    def warnable(self) -> NDArray[np.bool_]:
        return (self.collapse > WARMUP) & ~self.survived

    @property
    def too_early(self) -> NDArray[np.bool_]:
        return self.collapse <= WARMUP

    @property
    def healthy_updates(self) -> Steps:
        """Updates of each run that count towards the false-alarm rate."""
        return np.where(self.survived, np.maximum(self.updates - WARMUP, 0), 0)

    @property
    def always_on_rate(self) -> float | None:
        """False alarms per 1,000 of an alarm that never stops: one episode a run. Rates near it say nothing."""
        exposure = int(self.healthy_updates.sum())
        return 1000 * int((self.healthy_updates > 0).sum()) / exposure if exposure else None


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One alarm under one parameter over the same runs: first counted update of an alarm (or NEVER), and episodes."""

    first: Steps
    episodes: Steps

    def lead(self, runs: Runs) -> Floats:
        """Of the warnable runs, in order; NaN for a miss."""
        first, collapse = self.first[runs.warnable], runs.collapse[runs.warnable]
        return np.where(first < collapse, (collapse - np.minimum(first, collapse)).astype(np.float64), np.nan)

    def false_alarms(self, runs: Runs) -> Steps:
        return np.where(runs.survived, self.episodes, 0)


@dataclass(frozen=True, slots=True)
class Score:
    """Leads in updates; `false_alarm_rate` per 1,000 healthy updates of surviving runs.

    `lead` is over detected runs, `lead_with_misses` counts a miss as 0, `ahead` is the median over runs of the lead
    minus a rival's, misses as 0. `survivors` are those with a counted update. `by_chance` is the share of collapses
    that an unrelated alarm of the same false-alarm rate would have hit. `beyond_horizon` counts detections further
    ahead than a horizon, when one is set.
    """

    collapses: int
    too_early: int
    detected: int
    detection: Estimate
    detection_all: Estimate
    lead: Estimate
    lead_quartiles: tuple[float, float] | None
    lead_with_misses: Estimate
    ahead: Estimate
    survivors: int
    healthy_updates: int
    false_alarms: int
    false_alarm_rate: Estimate
    survivors_alarmed: Estimate
    by_chance: float | None
    beyond_horizon: int | None


def score(answer: Answer, runs: Runs, rival: Answer | None = None, horizon: int | None = None) -> Score:
    """Scores one answer on `runs`; `rival` answers for the same runs."""
    lead = answer.lead(runs)
    hit = np.isfinite(lead)
    watched = runs.healthy_updates > 0
    false, exposure = answer.false_alarms(runs)[watched], runs.healthy_updates[watched]
    false_alarm_rate = bootstrap.rate(false, exposure / 1000)
    return Score(
        collapses=int(runs.warnable.sum() + runs.too_early.sum()),
        too_early=int(runs.too_early.sum()),
        detected=int(hit.sum()),
        detection=bootstrap.share(hit),
        detection_all=bootstrap.share(np.concatenate([hit, np.zeros(int(runs.too_early.sum()), bool)])),
        lead=bootstrap.median(lead),
        lead_quartiles=_quartiles(lead[hit]),
        lead_with_misses=bootstrap.median(np.nan_to_num(lead)),
        ahead=UNKNOWN if rival is None else bootstrap.median(np.nan_to_num(lead) - np.nan_to_num(rival.lead(runs))),
        survivors=int(watched.sum()),
        healthy_updates=int(exposure.sum()),
        false_alarms=int(false.sum()),
        false_alarm_rate=false_alarm_rate,
        survivors_alarmed=bootstrap.share(false > 0),
        by_chance=_by_chance(false_alarm_rate.value, runs),
        beyond_horizon=None if horizon is None else int((lead[hit] > horizon).sum()),
    )


def _quartiles(lead: Floats) -> tuple[float, float] | None:
    if not lead.size:
        return None
    low, high = np.quantile(lead, [0.25, 0.75])
    return float(low), float(high)


def _by_chance(rate: float | None, runs: Runs) -> float | None:
    exposed = runs.collapse[runs.warnable] - WARMUP
    return None if rate is None or not exposed.size else float(np.mean(1 - np.exp(-rate * exposed / 1000)))
