"""A summary while it is being made: the only writable form, private to the builder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triage_monitor.summary.cells import Cells, Counts
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.summary.step import (
    COUNT_INDEX,
    MAX_INDEX,
    MIN_INDEX,
    SUM_INDEX,
    Floats,
    StepSummary,
    histogram_places,
    histogram_shapes,
)


@dataclass(slots=True)
class Draft:
    spec: SummarySpec
    counters: Counts
    totals: Floats
    minima: Floats
    maxima: Floats
    flat: Counts  # the histograms' cells, one after another
    histograms: dict[str, Counts]  # views of them

    @classmethod
    def blank(cls, spec: SummarySpec) -> Draft:
        empty = StepSummary.empty(spec)
        places, size = histogram_places(spec)
        flat = np.zeros(size, np.int64)
        views = {name: flat[places[name]].reshape(shape) for name, shape in histogram_shapes(spec).items()}
        return cls(
            spec,
            empty.counters.copy(),
            empty.totals.copy(),
            empty.minima.copy(),
            empty.maxima.copy(),
            flat,
            views,
        )

    def counted(self, name: str) -> int:
        return int(self.counters[COUNT_INDEX[name]])

    def count(self, name: str, amount: int) -> None:
        self.counters[COUNT_INDEX[name]] += amount

    def add(self, name: str, amount: float) -> None:
        self.totals[SUM_INDEX[name]] += amount

    def bound(self, name: str, values: NDArray[np.float64]) -> None:
        if not values.size:
            return
        if name in MIN_INDEX:
            self.minima[MIN_INDEX[name]] = min(self.minima[MIN_INDEX[name]], values.min())
        self.maxima[MAX_INDEX[name]] = max(self.maxima[MAX_INDEX[name]], values.max())

    def join(self, other: Draft) -> None:
        """Adds what another one of this spec holds."""
        self.counters += other.counters
        self.totals += other.totals
        self.flat += other.flat
        np.minimum(self.minima, other.minima, out=self.minima)
        np.maximum(self.maxima, other.maxima, out=self.maxima)

    def summary(self) -> StepSummary:
        cells = Cells.of(self.flat)
        return StepSummary(self.spec, self.counters, self.totals, self.minima, self.maxima, cells)
