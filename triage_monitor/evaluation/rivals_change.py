"""Change-point rules on the mean abs gap of single updates, measured against the run's own first updates.

    CUSUM          S = max(0, S + z - allowance), on while S is above the tuned level; z in baseline deviations
    ADWIN          river's adaptive window, checked at every update; the tuned number is its `delta`
    Page-Hinkley   river's, upwards; the tuned number is its `threshold`

ADWIN is two-sided and is heard only when the mean it kept rose. Both of river's take the series relative to its
baseline, and in its deviations (the bound of ADWIN supposes values about 1 in size).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from triage_monitor.errors import ConfigError
from triage_monitor.evaluation.rivals_level import BASELINE, Form, Level, in_form, spaced
from triage_monitor.evaluation.rivals_trend import mean_abs_gap
from triage_monitor.evaluation.scoring import Floats
from triage_monitor.evaluation.series import RunSeries

ALLOWANCES = (0.5, 1.0, 2.0, 4.0, 8.0)
TOLERANCES: dict[Form, tuple[float, ...]] = {"rel": (0.005, 0.1, 0.3), "dev": (0.5, 2.0, 5.0)}


@dataclass(frozen=True, slots=True)
class Cusum:
    allowance: float

    def __call__(self, run: RunSeries) -> Floats:
        deviations = in_form(mean_abs_gap(run), "dev")
        sums, so_far = np.full(deviations.shape, np.nan), 0.0
        for step in range(BASELINE, deviations.size):
            if np.isfinite(deviations[step]):
                so_far = max(0.0, so_far + float(deviations[step]) - self.allowance)
                sums[step] = so_far
        return sums


def cusum() -> tuple[Level, ...]:
    return tuple(
        Level(f"CUSUM (allowance {allowance:g})", "change point", Cusum(allowance), spaced(1.0, 100_000.0, 60))
        for allowance in ALLOWANCES
    )


@dataclass(frozen=True, slots=True)
class Streamed:
    """A detector of river's, fed one value an update from the first that counts on."""

    name: str
    kind: Literal["adwin", "page-hinkley"]
    form: Form
    grid: tuple[float, ...]
    tolerance: float = 0.0  # of Page-Hinkley alone
    family: str = "change point"
    fixed: float | None = None

    def alarms(self, run: RunSeries, parameter: float) -> list[int]:
        values = in_form(mean_abs_gap(run), self.form)
        known = [(int(step), float(values[step])) for step in np.flatnonzero(np.isfinite(values))]
        if self.kind == "adwin":
            return list(_adwin(known, parameter))
        return list(_page_hinkley(known, parameter, self.tolerance))


def _adwin(values: Iterable[tuple[int, float]], delta: float) -> Iterable[int]:
    detector = _river().ADWIN(delta=delta, clock=1)
    for step, value in values:
        before = detector.estimation
        detector.update(value)
        if detector.drift_detected and detector.estimation > before:
            yield step


def _page_hinkley(values: Iterable[tuple[int, float]], threshold: float, tolerance: float) -> Iterable[int]:
    detector = _river().PageHinkley(min_instances=10, delta=tolerance, threshold=threshold, mode="up")
    for step, value in values:
        detector.update(value)
        if detector.drift_detected:
            yield step


def _river() -> Any:
    try:
        from river import drift
    except ImportError as error:
        raise ConfigError(
            "ADWIN and Page-Hinkley come from river, which is not installed: pip install 'triage-monitor[bench]'"
        ) from error
    return drift


def adwin() -> tuple[Streamed, ...]:
    confidences = spaced(1e-12, 0.9, 8)
    return tuple(Streamed(f"ADWIN ({form})", "adwin", form, confidences) for form in ("rel", "dev"))


def page_hinkley() -> tuple[Streamed, ...]:
    grids: dict[Form, tuple[float, ...]] = {"rel": spaced(0.1, 300.0, 24), "dev": spaced(2.0, 200_000.0, 30)}
    return tuple(
        Streamed(f"Page-Hinkley ({form}, {tolerance:g})", "page-hinkley", form, grid, tolerance)
        for form, grid in grids.items()
        for tolerance in TOLERANCES[form]
    )
