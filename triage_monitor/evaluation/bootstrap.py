"""Intervals by resampling runs: a run is the unit, because updates of one run are anything but independent.

Each interval is the central 95% of a statistic over 2,000 resamples of its runs (percentile bootstrap, fixed seed).
Where every run had the same outcome a bootstrap has no width and would lie; there the exact one-sided 95% bound is
given instead: no event in an exposure e bounds the rate by -ln(0.05) / e (the rule of three), none or all of n runs
bound the share by 1 - 0.05**(1 / n) or 0.05**(1 / n).

Left out: runs of one group share a regime and, in part, start weights; the intervals speak of these regimes only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RESAMPLES = 2_000
SEED = 20_260
TAIL = 0.05  # outside a two-sided interval, and outside a one-sided bound


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its interval; all None when there was nothing to estimate from."""

    value: float | None
    low: float | None
    high: float | None


UNKNOWN = Estimate(None, None, None)


def draws(size: int, *, resamples: int = RESAMPLES, seed: int = SEED) -> NDArray[np.intp]:
    """Indices [resamples, size] of runs drawn with replacement."""
    return np.random.default_rng(seed).integers(0, size, (resamples, size))


def share(hits: NDArray[np.bool_], *, resamples: int = RESAMPLES, seed: int = SEED) -> Estimate:
    """Share of runs that are hits."""
    count = hits.size
    if count == 0:
        return UNKNOWN
    if not hits.any():
        return Estimate(0.0, 0.0, 1.0 - TAIL ** (1 / count))
    if hits.all():
        return Estimate(1.0, TAIL ** (1 / count), 1.0)
    means = hits[draws(count, resamples=resamples, seed=seed)].mean(axis=1)
    return Estimate(float(hits.mean()), *_central(means))


def median(values: Floats, *, resamples: int = RESAMPLES, seed: int = SEED) -> Estimate:
    """Median of the runs that have a value (NaN: none); a resample without any value is left out."""
    if not np.isfinite(values).any():
        return UNKNOWN
    drawn = values[draws(values.size, resamples=resamples, seed=seed)]
    drawn = drawn[np.isfinite(drawn).any(axis=1)]
    return Estimate(float(np.nanmedian(values)), *_central(np.nanmedian(drawn, axis=1)))


def rate(events: NDArray[np.int64], exposure: Floats, *, resamples: int = RESAMPLES, seed: int = SEED) -> Estimate:
    """Events per unit of exposure, each summed over runs before the division; `exposure` is positive."""
    total = float(exposure.sum())
    if total == 0:
        return UNKNOWN
    if not events.any():
        return Estimate(0.0, 0.0, -math.log(TAIL) / total)
    drawn = draws(events.size, resamples=resamples, seed=seed)
    return Estimate(float(events.sum()) / total, *_central(events[drawn].sum(axis=1) / exposure[drawn].sum(axis=1)))


def _central(statistics: Floats) -> tuple[float, float]:
    low, high = np.quantile(statistics, [TAIL / 2, 1 - TAIL / 2])
    return float(low), float(high)
