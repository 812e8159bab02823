"""The numbers of `judge/alarm_rate.py`, made from the development runs that survived.

For each set of signals a trainer may send: the detector's scores in e-folds, before division by their threshold; the
number of alarms they would have raised at each threshold h, with the alarm rule's own hysteresis; and the line
ln(alarms a 1,000 updates) = intercept - slope h by Poisson regression over a grid of h. Alarm counts at neighbouring
thresholds come from the same runs, so the line is a smooth summary, not a test.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from triage_monitor.evaluation.ours import states
from triage_monitor.evaluation.series import RunSeries
from triage_monitor.judge.defaults import DetectorSettings
from triage_monitor.judge.rules import Hysteresis, HysteresisState

GRID = 60
MOST_ALARMS = 20.0  # a 1,000 updates: below that threshold a line says nothing about alarms


@dataclass(frozen=True, slots=True)
class Fit:
    intercept: float
    slope: float
    runs: int
    updates: int


def raw_scores(run: RunSeries, without: Collection[str] = ()) -> NDArray[np.float64]:
    """The score before division by its threshold, an entry an update; NaN before there is one, 0 without a tail."""
    settings = DetectorSettings()
    tails = run.window["q0.001_all"]
    raw = [math.nan if state.score is None else state.score.raw for state in states(run, settings, without)]
    return np.where(-tails < settings.material_tail_nats, 0.0, np.array(raw))


def alarms_above(scores: NDArray[np.float64], threshold: float) -> int:
    rule = DetectorSettings().pre_terminal
    criterion = rule.criteria[0]
    gate = Hysteresis(threshold * criterion.level, threshold * criterion.leave, rule.enter_updates, rule.leave_updates)
    state = HysteresisState()
    seen = [state := gate.advance(state, None if math.isnan(score) else float(score)) for score in scores]
    return int(seen[0].inside) + sum(now.inside and not before.inside for before, now in pairwise(seen))


def fit(runs: Sequence[RunSeries], without: Collection[str] = ()) -> Fit:
    """From the runs given that survived."""
    scores = [raw_scores(run, without) for run in runs if run.collapse() is None]
    updates = sum(int(np.isfinite(item).sum()) for item in scores)
    highest = max(float(np.nanmax(item)) for item in scores)
    grid = np.linspace(highest / GRID, highest * 1.05, GRID)
    counts = np.array([sum(alarms_above(item, float(h)) for item in scores) for h in grid])
    used = 1000 * counts / updates <= MOST_ALARMS
    used &= np.maximum.accumulate(counts[::-1])[::-1] == counts  # where a higher threshold never alarms more often
    intercept, slope = _poisson_line(grid[used], counts[used], updates / 1000)
    return Fit(intercept, slope, len(scores), updates)


def _poisson_line(x: NDArray[np.float64], counts: NDArray[np.int64], exposure: float) -> tuple[float, float]:
    """ln(count / exposure) = intercept - slope x, by iteratively reweighted least squares."""
    design = np.column_stack([np.ones_like(x), -x])
    beta = np.array([math.log(max(counts.max(), 1) / exposure), 1.0 / max(float(np.ptp(x)), 1e-9)])
    for _ in range(100):
        mean = exposure * np.exp(design @ beta)
        step = np.linalg.solve(design.T @ (design * mean[:, None]), design.T @ (counts - mean))
        beta += step
        if np.abs(step).max() < 1e-10:
            break
    return float(beta[0]), float(beta[1])
