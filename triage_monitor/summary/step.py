"""StepSummary: everything the monitor keeps of one update, in a size that does not depend on its tokens.

A summary is counts, float64 sums, extremes and integer histograms; `merge` adds, takes the smaller or larger, and adds.
The kernel of a whole batch therefore equals the merge of the kernel of any split of it between responses, in any
order: bit for bit in counts, extremes and histograms, to rounding in sums. Ratios are formed later, from merged values
only. Merging is not idempotent: whoever collects shards replaces by key before merging (see assembly in the service).

Histograms (rows `all`, `a_neg`, `a_pos` are the families of estimands section 4; n is a segment's valid tokens, c its
amplifying-tail tokens):

    gap        [3 signs of A: neg, pos, none][BINS]    the quantile sketch
    response   [BINS]                                  the same grid over a response's summed gap
    segment    [3 families][n][c]                      eligible segments, exact for any segment length
    pair       [3 families][level j][level j + 1]      adjacent eligible segments, level = floor(64 c / n)
    worst      [3 families][not masked, masked][level] responses by their worst segment; masked: abs(mean gap) small
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from triage_monitor.errors import SpecMismatch
from triage_monitor.summary.cells import Cells, Counts, merge_cells
from triage_monitor.summary.sketch import BINS
from triage_monitor.summary.spec import DEFAULT_SPEC, SummarySpec

FAMILIES = ("all", "a_neg", "a_pos")
REGIONS = ("a_neg", "a_pos", "c_neg", "c_pos")
LEVELS = 64
LAGS = ("0", "1", "2_plus")

# In the order of the kernel's arrays (booking), which is also theirs below.
FAMILY_COUNTS: tuple[str, ...] = (
    "heavy_segments",
    "adjacent_heavy_first",
    "adjacent_heavy_both",
    "heavy_responses",
    "masked_heavy_responses",
)
TOKEN_SUMS: tuple[str, ...] = (
    "gap",
    "gap_abs",
    "gap_sq",
    "k3",
    "k3_reverse",
    "mult_excess",
    "chi2",
    "rho",
    "weight",
    "weight_sq",
)
COUNT_NAMES: tuple[str, ...] = (
    "responses",
    "empty_responses",
    "unusable_responses",
    "unusable_advantage",
    "zero_advantage_responses",
    "outlier_responses",
    "padding_rows",
    "tokens",
    "valid_tokens",
    "missing",
    "nan",
    "pos_inf",
    "neg_inf",
    "gap_negative",
    "gap_positive",
    "gap_zero",
    "near_zero",
    "advantage_negative",
    "advantage_positive",
    "deep_neg",
    "deep_pos",
    "rho_above_2",
    "rho_below_half",
    "rho_below_1e4",
    "overflow_tokens",
    "segments",
    "eligible_segments",
    *(f"tail_tokens_{family}" for family in FAMILIES),
    *(f"{label}_{family}" for label in FAMILY_COUNTS for family in FAMILIES),
    "adjacent_segments",
    "units",
    "groups",
    "group_split",
    "grouped_responses",
    "responses_with_tokens",
    "reward_responses",
    "logprob_tokens",
    "logprob_responses",
    *(f"lag_tokens_{lag}" for lag in LAGS),
    "grad_norm_responses",
)
SUM_NAMES: tuple[str, ...] = (
    *TOKEN_SUMS,
    *(f"mass_{region}" for region in REGIONS),
    "mass_total",
    "mass_advantage_negative",
    "mass_advantage_positive",
    "tail_mass_a_neg",
    "tail_mass_a_pos",
    *(f"pressure_{region}" for region in REGIONS),
    *(f"{unit}_{moment}" for unit in ("unit", "group") for moment in ("xx", "yy", "xy")),
    "response_mean_gap",
    "response_mean_gap_abs",
    "geo_ratio",
    "reward",
    "prob_abs_diff",
    "prob_learner",
    "prob_sampler",
    "prob_learner_sq",
    "prob_sampler_sq",
    "prob_cross",
    "ppl_learner",
    "ppl_sampler",
    "lag_tokens_weighted",
    *(f"lag_mass_{region}_{lag}" for region in ("a_neg", "a_pos") for lag in LAGS),
    "log_grad_norm",
)
MIN_NAMES: tuple[str, ...] = ("gap_neg", "gap_pos", "gap_none", "response_mean_gap", "response_gap")
MAX_NAMES: tuple[str, ...] = (*MIN_NAMES, "prob_abs_diff")

COUNT_INDEX = {name: index for index, name in enumerate(COUNT_NAMES)}
SUM_INDEX = {name: index for index, name in enumerate(SUM_NAMES)}
MIN_INDEX = {name: index for index, name in enumerate(MIN_NAMES)}
MAX_INDEX = {name: index for index, name in enumerate(MAX_NAMES)}

Floats = NDArray[np.float64]


def histogram_shapes(spec: SummarySpec) -> dict[str, tuple[int, ...]]:
    """Shape of each histogram under a spec; their order is the codec's."""
    return {
        "gap": (3, BINS),
        "response": (BINS,),
        "segment": (len(FAMILIES), spec.segment + 1, spec.segment + 1),
        "pair": (len(FAMILIES), LEVELS + 1, LEVELS + 1),
        "worst": (len(FAMILIES), 2, LEVELS + 1),
    }


@lru_cache(maxsize=32)
def histogram_places(spec: SummarySpec) -> tuple[dict[str, slice], int]:
    """Where each histogram's cells lie when they are written out one after another, and how many there are."""
    places, start = {}, 0
    for name, shape in histogram_shapes(spec).items():
        places[name] = slice(start, start + prod(shape))
        start += prod(shape)
    return places, start


class Histograms(Mapping[str, Counts]):
    """Name -> that histogram written out, made when it is asked for; read-only."""

    __slots__ = ("_cells", "_spec")

    def __init__(self, cells: Cells, spec: SummarySpec) -> None:
        self._cells = cells
        self._spec = spec

    def __getitem__(self, name: str) -> Counts:
        where = histogram_places(self._spec)[0][name]
        return self._cells.dense(where.start, where.stop).reshape(histogram_shapes(self._spec)[name])

    def used(self, name: str, row: int) -> tuple[Counts, Counts, Counts]:
        """The cells of one [n, n] row of a histogram that are not zero: their two indices, and their counts."""
        where, (_, height, width) = histogram_places(self._spec)[0][name], histogram_shapes(self._spec)[name]
        start = where.start + row * height * width
        places, counts = self._cells.within(start, start + height * width)
        first, second = np.divmod(places.astype(np.int64), width)
        return first, second, counts

    def __iter__(self) -> Iterator[str]:
        return iter(histogram_shapes(self._spec))

    def __len__(self) -> int:
        return len(histogram_shapes(self._spec))


@dataclass(frozen=True, eq=False, slots=True)
class StepSummary:
    """Immutable; arrays are read-only. Build with `summarize`, `StepSummary.empty` or `codec.decode`."""

    spec: SummarySpec
    counters: Counts
    totals: Floats
    minima: Floats
    maxima: Floats
    cells: Cells  # of all histograms, one after another

    def __post_init__(self) -> None:
        for array in self._arrays():
            array.setflags(write=False)

    @classmethod
    def empty(cls, spec: SummarySpec = DEFAULT_SPEC) -> StepSummary:
        return cls(
            spec,
            np.zeros(len(COUNT_NAMES), dtype=np.int64),
            np.zeros(len(SUM_NAMES)),
            np.full(len(MIN_NAMES), np.inf),
            np.full(len(MAX_NAMES), -np.inf),
            Cells.empty(histogram_places(spec)[1]),
        )

    @property
    def histograms(self) -> Histograms:
        return Histograms(self.cells, self.spec)

    def merge(self, other: StepSummary) -> StepSummary:
        """The summary of both inputs together; raises SpecMismatch under different specs."""
        return merge_all((self, other), self.spec)

    def with_split_groups(self) -> StepSummary:
        """The same, saying that a group lies in more than one of its shards: then the response is the unit."""
        counters = self.counters.copy()
        counters[COUNT_INDEX["group_split"]] += 1
        return replace(self, counters=counters)

    def count(self, name: str) -> int:
        return int(self.counters[COUNT_INDEX[name]])

    def total(self, name: str) -> float:
        return float(self.totals[SUM_INDEX[name]])

    def minimum(self, name: str) -> float:
        """Smallest value seen; +inf when there was none."""
        return float(self.minima[MIN_INDEX[name]])

    def maximum(self, name: str) -> float:
        """Largest value seen; -inf when there was none."""
        return float(self.maxima[MAX_INDEX[name]])

    @property
    def counts(self) -> dict[str, int]:
        return {name: int(value) for name, value in zip(COUNT_NAMES, self.counters, strict=True)}

    @property
    def sums(self) -> dict[str, float]:
        return {name: float(value) for name, value in zip(SUM_NAMES, self.totals, strict=True)}

    @property
    def nbytes(self) -> int:
        return self.cells.nbytes + sum(array.nbytes for array in self._arrays())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StepSummary):
            return NotImplemented
        arrays = zip(self._arrays(), other._arrays(), strict=True)
        same = self.spec == other.spec and self.cells == other.cells
        return same and all(np.array_equal(mine, theirs) for mine, theirs in arrays)

    def __hash__(self) -> int:
        return hash((self.spec, self.counters.tobytes(), self.totals.tobytes()))

    def _arrays(self) -> Iterator[Counts | Floats]:
        yield from (self.counters, self.totals, self.minima, self.maxima)


def merge_all(summaries: Iterable[StepSummary], spec: SummarySpec = DEFAULT_SPEC) -> StepSummary:
    """Merges in the order given; of nothing, the empty summary of `spec`.

    Float sums depend on the order in their last bits: callers that must reproduce a stored value merge in sorted
    key order. Raises SpecMismatch when a summary was made under another spec.
    """
    empty = StepSummary.empty(spec)
    counters, totals = empty.counters.copy(), empty.totals.copy()
    minima, maxima = empty.minima.copy(), empty.maxima.copy()
    cells: list[Cells] = []
    for summary in summaries:
        if summary.spec.fingerprint != spec.fingerprint:
            raise SpecMismatch(
                "spec_mismatch",
                f"a summary made under {summary.spec.to_json()} cannot merge with one made under {spec.to_json()}",
            )
        counters += summary.counters
        with np.errstate(over="ignore", invalid="ignore"):  # sums beyond all numbers leave their indicators undefined
            totals += summary.totals
        np.minimum(minima, summary.minima, out=minima)
        np.maximum(maxima, summary.maxima, out=maxima)
        cells.append(summary.cells)
    merged = merge_cells(cells, empty.cells.size)
    return StepSummary(spec, counters, totals, minima, maxima, merged)
