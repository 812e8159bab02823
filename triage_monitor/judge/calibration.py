"""Thresholds of the summary's spec from a healthy stretch of the run itself.

    tau_ana   the 95% quantile of abs(gap): the tail is a twentieth of the tokens, as the near-zero share of the paper's
              healthy windows suggests
    tau_tail  the 5% quantile of the gap, for the gate's deep tail
    phi       the smallest share of amplifying-tail tokens in a segment that leaves at most 5% of segments heavy, at the
              tau_ana that the stretch was summarised with

All three describe one model at one precision. A summary cannot be re-cut: a changed tau_ana or phi is another spec, and
belongs to a new attempt (estimands section 2 and 4). phi is exact for the tau_ana in force; after changing tau_ana,
summarise again before choosing phi.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from triage_monitor.summary import sketch
from triage_monitor.summary.step import StepSummary

TAIL_SHARE = 0.05
HEAVY_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Calibration:
    """None where the stretch holds nothing to learn it from."""

    tau_ana: float | None
    tau_tail: float | None
    phi: float | None

    def to_dict(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def calibrate(summary: StepSummary) -> Calibration:
    """From the merged summary of healthy updates (a window's, or a whole stretch's)."""
    counts = summary.histograms["gap"].sum(axis=0)
    planes = ("gap_neg", "gap_pos", "gap_none")
    low, high = min(map(summary.minimum, planes)), max(map(summary.maximum, planes))
    magnitude = counts[sketch.ZERO_BIN :].copy()
    magnitude[1:] += counts[: sketch.ZERO_BIN][::-1]
    tau_ana = _quantile_of_magnitude(magnitude, 1.0 - TAIL_SHARE, max(abs(low), abs(high)))
    tau_tail = sketch.quantile(counts, TAIL_SHARE, low, high)
    negative = tau_tail if tau_tail is not None and tau_tail < 0 else None
    return Calibration(tau_ana or None, negative, _phi(summary))


def _quantile_of_magnitude(magnitude: NDArray[np.int64], q: float, largest: float) -> float | None:
    mirrored = np.concatenate([np.zeros(sketch.ZERO_BIN, np.int64), magnitude])
    return sketch.quantile(mirrored, q, 0.0, largest)


def _phi(summary: StepSummary) -> float | None:
    cells = summary.histograms["segment"][0]
    n, c = np.nonzero(cells)
    if not len(n):
        return None
    shares, weights = c / n, cells[n, c]
    order = np.argsort(shares)[::-1]
    heavy = np.cumsum(weights[order]) / weights.sum()
    # The share just above the last one that still fits; nothing fits when the worst value alone is too common.
    fits = heavy <= HEAVY_SHARE
    distinct = np.append(np.diff(shares[order]) != 0, True)
    usable = shares[order][fits & distinct & (shares[order] > 0)]
    return float(usable.min()) if len(usable) else None
