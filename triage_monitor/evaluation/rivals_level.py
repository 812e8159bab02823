"""The plainest alarm: on while a statistic of the run stands above a level, `sustained` updates in a row.

A statistic is a series over the run in one of three forms, of a quantity that grows with trouble:

    abs   x
    rel   x / median of x over the run's own first BASELINE updates, undefined where that is not positive
    dev   (x - that median) / (1.4826 * MAD over the same updates)

The baseline is complete before the first update that counts (`scoring.WARMUP`), and the last two forms are undefined
until then. An undefined statistic raises nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from triage_monitor.errors import InputError
from triage_monitor.evaluation.scoring import WARMUP, Floats
from triage_monitor.evaluation.series import RunSeries
from triage_monitor.summary.window import DEFAULT_WINDOW_UPDATES

BASELINE = WARMUP
LEAST_KNOWN = 10  # defined values that a baseline needs
MAD_TO_SIGMA = 1.4826
GRID = 40

Scope = Literal["update", "window"]
Form = Literal["abs", "rel", "dev"]
Statistic = Callable[[RunSeries], Floats]


@dataclass(frozen=True, slots=True)
class Level:
    name: str
    family: str
    statistic: Statistic
    grid: tuple[float, ...]
    sustained: int = 1
    fixed: float | None = None

    def alarms(self, run: RunSeries, parameter: float) -> list[int]:
        return [int(step) for step in np.flatnonzero(self.held(run) > parameter)]

    def held(self, run: RunSeries) -> Floats:
        """The level that the last `sustained` values all stood above; NaN where one of them is undefined."""
        values = self.statistic(run)
        if self.sustained == 1:
            return values
        held = np.full(values.shape, np.nan)
        if values.size >= self.sustained:
            held[self.sustained - 1 :] = sliding_window_view(values, self.sustained).min(axis=1)
        return held


@dataclass(frozen=True, slots=True)
class Indicator:
    """Reads an indicator and turns it so that it is positive and grows with trouble."""

    name: str
    turn: Callable[[Floats], Floats]

    def read(self, run: RunSeries, scope: Scope) -> Floats:
        values: Floats | None = getattr(run, scope).get(self.name)
        if values is None:
            raise InputError("missing_column", f"run {run.name} has no such series", column=f"{scope}.{self.name}")
        return self.turn(values)


@dataclass(frozen=True, slots=True)
class InForm:
    """An indicator's series in one of the forms."""

    indicator: Indicator
    scope: Scope
    form: Form

    def __call__(self, run: RunSeries) -> Floats:
        first = DEFAULT_WINDOW_UPDATES - 1 if self.scope == "window" else 0
        return in_form(self.indicator.read(run, self.scope), self.form, first)


def in_form(values: Floats, form: Form, first: int = 0) -> Floats:
    """`first` is the index at which the baseline begins."""
    if form == "abs":
        return values
    known = values[first:BASELINE]
    known = known[np.isfinite(known)]
    result = np.full(values.shape, np.nan)
    if values.size <= BASELINE or known.size < LEAST_KNOWN:
        return result
    middle = float(np.median(known))
    unit = middle if form == "rel" else MAD_TO_SIGMA * float(np.median(np.abs(known - middle)))
    if unit > 0:
        shift = 0.0 if form == "rel" else middle
        result[BASELINE:] = (values[BASELINE:] - shift) / unit
    return result


def spaced(low: float, high: float, count: int = GRID) -> tuple[float, ...]:
    return tuple(float(value) for value in np.geomspace(low, high, count))


RELATIVE_GRID = spaced(1.03, 1_000.0, 60)
DEVIATION_GRID = spaced(1.0, 10_000.0, 60)


def forms(title: str, family: str, indicator: Indicator, low: float, high: float) -> tuple[Level, ...]:
    """The indicator over the trailing window and over three updates in a row, each in every form."""
    grids: dict[Form, tuple[float, ...]] = {
        "abs": spaced(low, high),
        "rel": RELATIVE_GRID,
        "dev": DEVIATION_GRID,
    }
    scopes: tuple[tuple[Scope, int], ...] = (("window", 1), ("update", 3))
    return tuple(
        Level(f"{title} ({scope}, {form})", family, InForm(indicator, scope, form), grid, sustained)
        for scope, sustained in scopes
        for form, grid in grids.items()
    )
