"""Reading a symptoms' gap histogram: quantiles, shares and medians of the gap, by the size of a log-prob."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triage_monitor.summary.sketch import CELLS
from triage_monitor.summary.sketch import VALUES as FINE_VALUES
from triage_monitor.summary.symptoms import ENTROPIC, FINE_PER_BIN, LEVEL_EDGES, LEVELS, ZERO_GAP, Symptoms

Counts = NDArray[np.int64]
UNLIKELY = 5  # levels below: tokens to which the sampler gave a log-prob under -0.5
FEWEST_UNLIKELY = 8
CORE, FAR = 0.1, 0.25  # nats; `filling` below: a tail far from the core


def _bin_values() -> NDArray[np.float64]:
    """The middle of each bin's eight of the summary's; the outermost bin stands for what lies beyond."""
    cells = FINE_VALUES[CELLS + 1 :]
    first = np.minimum(np.arange(ZERO_GAP) * FINE_PER_BIN, len(cells) - 1)
    last = np.minimum(first + FINE_PER_BIN - 1, len(cells) - 1)
    positive = (cells[first] + cells[last]) / 2
    return np.concatenate([-positive[::-1], [0.0], positive])


VALUES = _bin_values()


@dataclass(frozen=True, slots=True)
class Gaps:
    """A histogram of gaps; a bin is 3 to 6% wide."""

    cells: Counts

    @property
    def count(self) -> int:
        return int(self.cells.sum())

    def quantile(self, q: float) -> float:
        """At rank ceil(q n); needs a token."""
        cumulative = np.cumsum(self.cells)
        rank = min(max(int(np.ceil(q * cumulative[-1])), 1), int(cumulative[-1]))
        return float(VALUES[int(np.searchsorted(cumulative, rank))])

    @property
    def median(self) -> float:
        return self.quantile(0.5)

    def share(self, low: float, high: float) -> float:
        """Share of tokens with low <= gap <= high."""
        return self.number(low, high) / max(self.count, 1)

    def number(self, low: float, high: float) -> int:
        return int(self.cells[(low <= VALUES) & (high >= VALUES)].sum())

    def positive(self) -> int:
        return int(self.cells[ZERO_GAP + 1 :].sum())

    def negative(self) -> int:
        return int(self.cells[:ZERO_GAP].sum())


def all_gaps(symptoms: Symptoms) -> Gaps:
    """Of all tokens in unsuspicious responses."""
    return Gaps(symptoms.gaps[2 * LEVELS])


def by_sampler(symptoms: Symptoms) -> Sequence[Gaps]:
    """By the sampler's level, only tokens that were a choice; the least likely first."""
    return [Gaps(symptoms.gaps[level]) for level in range(ENTROPIC)]


def choices(symptoms: Symptoms) -> Gaps:
    """Of the tokens that were a choice to the sampler; of all where log-probs were not sent."""
    if symptoms.count("pairs") == 0:
        return all_gaps(symptoms)
    return Gaps(symptoms.gaps[:ENTROPIC].sum(axis=0))


def filling(symptoms: Symptoms, core: float) -> float:
    """Tokens between the core and 1 nat over those beyond, either way: strangers have about as many in between, two
    engines that took different branches hardly any."""
    gaps = all_gaps(symptoms)
    beyond = gaps.number(-math.inf, -1.0) + gaps.number(1.0, math.inf)
    return (gaps.count - beyond - gaps.number(-core, core)) / max(beyond, 1)


def followed(symptoms: Symptoms) -> float | None:
    """Of tokens that were unlikely to the sampler, the share that is so to the learner too: off by at most half of
    their log-prob. Two paths of one model, however noisy, stay above a half; columns of other tokens, below a third.
    None where too few are unlikely, or only gaps were sent."""
    levels = list(zip(LEVEL_EDGES, by_sampler(symptoms), strict=False))[:UNLIKELY]
    count = sum(gaps.count for _, gaps in levels)
    near = sum(gaps.number(edge / 2, -edge / 2) for edge, gaps in levels)
    return near / count if count >= FEWEST_UNLIKELY else None
