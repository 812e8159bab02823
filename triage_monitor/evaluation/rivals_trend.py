"""Trend rules on the mean abs gap of single updates, over the trailing `length` updates.

slope    the least-squares slope over its standard error (independent residuals: the tuned level makes up for them)
growth   the slope times `length`, over the mean: how much of itself it gained in that time
ranks    the Mann-Kendall statistic, continuity-corrected, over its standard deviation without ties
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from triage_monitor.evaluation.rivals_level import Level, Statistic, spaced
from triage_monitor.evaluation.scoring import Floats
from triage_monitor.evaluation.series import RunSeries

LENGTHS = (25, 50)


def mean_abs_gap(run: RunSeries) -> Floats:
    return run.update["abs_delta_mean"]


@dataclass(frozen=True, slots=True)
class Trend:
    read: Statistic
    kind: Literal["slope", "growth", "ranks"]
    length: int

    def __call__(self, run: RunSeries) -> Floats:
        values = self.read(run)
        result = np.full(values.shape, np.nan)
        if values.size >= self.length:
            windows = sliding_window_view(values, self.length)
            result[self.length - 1 :] = ranks(windows) if self.kind == "ranks" else slopes(windows, self.kind)
        return result


def slopes(windows: Floats, kind: Literal["slope", "growth"]) -> Floats:
    length = windows.shape[1]
    time = np.arange(length) - (length - 1) / 2
    squares = float(time @ time)
    slope = windows @ time / squares
    mean = windows.mean(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        if kind == "growth":
            return np.asarray(slope * length / mean)
        residual = windows - mean[:, None] - slope[:, None] * time
        variance = (residual**2).sum(axis=1) / (length - 2)
        return np.asarray(slope / np.sqrt(variance / squares))


def ranks(windows: Floats) -> Floats:
    length = windows.shape[1]
    earlier, later = np.triu_indices(length, 1)
    total = np.sign(windows[:, later] - windows[:, earlier]).sum(axis=1)
    deviation = np.sqrt(length * (length - 1) * (2 * length + 5) / 18)
    return np.asarray((total - np.sign(total)) / deviation)


def slope_rules(read: Statistic, family: str, title: str) -> tuple[Level, ...]:
    return tuple(
        Level(f"{title} (slope, {length})", family, Trend(read, "slope", length), spaced(0.5, 60.0))
        for length in LENGTHS
    ) + tuple(
        Level(f"{title} (growth, {length})", family, Trend(read, "growth", length), spaced(0.02, 3.0))
        for length in LENGTHS
    )


def rank_rules(read: Statistic, family: str, title: str) -> tuple[Level, ...]:
    return tuple(
        Level(f"{title} (ranks, {length})", family, Trend(read, "ranks", length), spaced(0.5, 9.0))
        for length in LENGTHS
    )
