"""The one table of indicators, and the values of a merged summary under it.

Prometheus help texts, the README's table, `analyze` and the detector all derive from INDICATORS. A ratio is formed
here, once, from merged sums; an indicator without a value is None with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from triage_monitor.judge import concentration, direction, magnitude
from triage_monitor.judge.table import Indicator, Undefined, undefined
from triage_monitor.summary import sketch
from triage_monitor.summary.step import REGIONS, StepSummary

INDICATORS: tuple[Indicator, ...] = (
    *direction.ROWS,
    *magnitude.MARGINAL_ROWS,
    *concentration.ROWS,
    *magnitude.MAGNITUDE_ROWS,
    *magnitude.INTEGRITY_ROWS,
)
INDICATOR_NAMES: tuple[str, ...] = tuple(row.name for row in INDICATORS)

QUANTILES: tuple[float, ...] = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
_PLANES = {"all": ("gap_neg", "gap_pos", "gap_none"), "neg": ("gap_neg",), "pos": ("gap_pos",)}
_PLANE_INDEX = {"gap_neg": 0, "gap_pos": 1, "gap_none": 2}

# Counts of the public contract; the summary holds more.
REPORTED_COUNTS: tuple[str, ...] = (
    "responses",
    "empty_responses",
    "tokens",
    "valid_tokens",
    "missing",
    "nan",
    "pos_inf",
    "neg_inf",
    "unusable_advantage",
    "segments",
    "eligible_segments",
    "heavy_segments",
    "overflow_tokens",
    "unusable_responses",
    "zero_advantage_responses",
    "padding_rows",
    "group_split",
)


@dataclass(frozen=True, slots=True)
class Indicators(Mapping[str, float | None]):
    """Name -> value or None; `reasons` says why for each None."""

    values_by_name: dict[str, float | None]
    reasons: dict[str, str]

    def __getitem__(self, name: str) -> float | None:
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)


def indicators(summary: StepSummary) -> Indicators:
    """Every indicator of a merged summary (an update's, or a window's)."""
    values: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for row in INDICATORS:
        try:
            values[row.name] = _finite(row.compute, summary)
        except Undefined as absence:
            values[row.name] = None
            reasons[row.name] = absence.reason
    return Indicators(values, reasons)


def _finite(compute: Callable[[StepSummary], float], summary: StepSummary) -> float:
    """Sums of absurd inputs (gaps of 1e155, advantages of 1e-162) overflow or vanish: then there is no value."""
    try:
        value = float(compute(summary))
    except (OverflowError, ZeroDivisionError):
        undefined("out_of_range")
    return value if math.isfinite(value) else undefined("out_of_range")


def quantiles(summary: StepSummary) -> dict[str, dict[str, float | None]]:
    """Signed quantiles of the gap for all tokens and by the sign of A; None for a side without tokens."""
    result: dict[str, dict[str, float | None]] = {}
    gap = summary.histograms["gap"]
    for side, planes in _PLANES.items():
        counts = gap[[_PLANE_INDEX[plane] for plane in planes]].sum(axis=0)
        low = min(summary.minimum(plane) for plane in planes)
        high = max(summary.maximum(plane) for plane in planes)
        values = sketch.quantiles(counts, QUANTILES, low, high)
        result[side] = {str(q): value for q, value in zip(QUANTILES, values, strict=True)}
    return result


def masses(summary: StepSummary) -> dict[str, float | None]:
    """Sums of abs(A) by region; None for one that left float64."""
    sums = {**{region: summary.total(f"mass_{region}") for region in REGIONS}, "total": summary.total("mass_total")}
    return {region: value if math.isfinite(value) else None for region, value in sums.items()}


def counts(summary: StepSummary) -> dict[str, int]:
    held = summary.counts | {"heavy_segments": summary.count("heavy_segments_all")}
    return {name: held[name] for name in REPORTED_COUNTS}


def update_report(summary: StepSummary) -> dict[str, Any]:
    """The contract's UPDATE or WINDOW object, but for what names its place (step, attempt, ...)."""
    values = indicators(summary)
    return {
        "indicators": dict(values),
        "reasons": values.reasons,
        "quantiles": quantiles(summary),
        "masses": masses(summary),
        "counts": counts(summary),
    }
