"""How `stationary_constants` was estimated; `python -m triage_monitor.evaluation.stationary_fit DIR...` prints it.

From recordings of stable testbed runs (fast-tis-s0, reuse-slow-s0, calm-s0, fast-triage-s0 of the development part;
64 responses of 128 tokens an update, nvfp4), updates 60 on, when the reward has settled. Per indicator and run:

    x_t         the value, its complement (shares near 1), or the log of it or of its negative (lower quantiles)
    r_t         x_t less its linear trend, which is the run's and not noise; by the mean where x_t is a value
    c_k         mean of r_t r_{t+k}, k = 0..30, by c_0, averaged over runs
    slow_share  lambda of the covariance lambda phi**k + (1 - lambda) [k = 0], such that what is expected of c_k once a
                linear trend is removed comes nearest; one phi for all indicators. The removal takes much of a slow part
                away, so c_k itself would give too short a memory (0.92 for 0.97)
    spread      the standard deviation that has c_0 left after the removal
    correlation of r_t's ranks over updates, as normal scores, averaged over runs

Wander slower than about a hundred updates is taken for trend and not in it. Level is the median over windows.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from triage_monitor.evaluation.series import RunSeries, series_of_recording
from triage_monitor.evaluation.stationary_constants import NOISES, Kind

SETTLED, LAGS = 60, 30

Floats = NDArray[np.float64]


def quantity(kind: Kind, values: Floats) -> Floats:
    """What is positive or additive about an indicator; gaps in a series are filled with its mean."""
    if kind is Kind.LOG_NEGATIVE:
        values = -values
    if kind is Kind.MEAN_COMPLEMENT:
        values = 1.0 - values
    filled: Floats = np.where(np.isfinite(values), values, np.nanmean(values))
    return filled


def residual(kind: Kind, values: Floats) -> Floats:
    """Less its linear trend; a pooled mean also in units of its mean."""
    own = quantity(kind, values)
    if kind in (Kind.LOG, Kind.LOG_NEGATIVE):
        own = np.log(own)
    t = np.arange(own.size)
    rest: Floats = own - np.polyval(np.polyfit(t, own, 1), t)
    return rest / own.mean() if kind in (Kind.MEAN, Kind.MEAN_COMPLEMENT) else rest


def covariances(rest: Floats) -> Floats:
    """[LAGS + 1]"""
    n = rest.size
    return np.array([rest[: n - k] @ rest[k:] / (n - k) for k in range(LAGS + 1)])


def expected(covariance_NN: Floats) -> Floats:
    """What `covariances` comes to, on average, of a series with this covariance less its linear trend."""
    n = len(covariance_NN)
    trend = np.linalg.qr(np.stack([np.ones(n), np.arange(n)], axis=1))[0]
    without = np.eye(n) - trend @ trend.T
    left = without @ covariance_NN @ without
    return np.array([np.diagonal(left, k).mean() for k in range(LAGS + 1)])


def slow_part(observed: Sequence[Floats], n: int) -> tuple[float, list[tuple[float, float]]]:
    """phi; of each indicator, given its c_k by c_0, the slow share and the variance kept of 1."""
    apart = np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    white = expected(np.eye(n))
    best: tuple[float, float, list[tuple[float, float]]] = (np.inf, 0.0, [])
    for phi in np.arange(0.85, 0.996, 0.01):
        slow = expected(phi**apart)
        mixes = [(share, share * slow + (1 - share) * white) for share in np.arange(0.0, 0.96, 0.01)]
        fits = [min((_miss(mix, item), share, mix[0]) for share, mix in mixes) for item in observed]
        best = min(best, (sum(item[0] for item in fits), float(phi), [item[1:] for item in fits]))
    return best[1:]


def _miss(mix: Floats, observed: Floats) -> float:
    return float(np.square(mix[1:] / mix[0] - observed[1:]).sum())


def normal_scores(rest: Floats) -> Floats:
    """Ranks as quantiles of a normal distribution."""
    quantiles = np.array([NormalDist().inv_cdf((rank + 0.5) / rest.size) for rank in range(rest.size)])
    return quantiles[np.argsort(np.argsort(rest))]


def estimate(runs: Sequence[RunSeries]) -> tuple[float, dict[str, tuple[float, float, float]], Floats]:
    """phi; per indicator level, spread and slow share; correlation [N, N] in the order of NOISES."""
    rests = [[residual(item.kind, run.update[name][SETTLED:]) for name, item in NOISES.items()] for run in runs]
    columns = list(zip(*rests, strict=True))
    observed = [
        np.mean([covariances(rest) / (rest @ rest / rest.size) for rest in column], axis=0) for column in columns
    ]
    phi, parts = slow_part(observed, min(rest.size for rest in columns[0]))
    rows = {}
    for name, column, (share, kept) in zip(NOISES, columns, parts, strict=True):
        level = float(np.mean([np.nanmedian(run.window[name][SETTLED:]) for run in runs]))
        rows[name] = (level, float(np.mean([rest.std() for rest in column])) / kept**0.5, share)
    scores = [np.corrcoef([normal_scores(rest) for rest in run]) for run in rests]
    return phi, rows, np.mean(scores, axis=0)


def main() -> None:
    runs = [series_of_recording(Path(item), Path(item).name, "", "development") for item in sys.argv[1:]]
    phi, rows, correlation = estimate(runs)
    print(f"AUTOCORRELATION = {phi:.3f}")
    for place, (name, (level, spread, share)) in enumerate(rows.items()):
        print(
            f'    "{name}": ({level:.4g}, {spread:.3g}, {share:.2f}),',
            *(f"{x:.2f}" for x in correlation[place, :place]),
        )


if __name__ == "__main__":
    main()
