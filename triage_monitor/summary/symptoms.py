"""Symptoms: what the causes of a mismatch are told apart by, kept of one update in a size that its tokens do not set.

A `Symptoms` holds integers only: counters, fixed-point sums (unit 1/4096 nat), histograms of the gap by the size of
either log-prob, bitmaps of distinct values, and short lists of names that keep their smallest entries. `merge` adds,
ors and unites, so shards merge in any order to the same value, bit for bit. Which responses are looked at is
`symptoms_sample`'s business, what is read off them `symptoms_rows`'s, and what follows `judge.causes`'.

It stands beside the summary and never enters an indicator: a shard without symptoms is judged like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from triage_monitor.summary.cells import Cells, Counts, merge_cells
from triage_monitor.summary.objective import merged_units

SCALE = 4096  # fixed-point units a nat
LAGS = (-2, -1, 0, 1, 2)
GAP_BINS = 771  # zero in the middle, 16 bins an octave on either side, from 2**-14 to 2**10 nats and beyond
ZERO_GAP = GAP_BINS // 2
FINE_PER_BIN = 8  # of the summary's bins
LEVEL_EDGES = (-6.0, -3.5, -2.0, -1.0, -0.5, -0.2, -0.05, -1e-3)  # nats; level 0 is the least likely token
LEVELS = len(LEVEL_EDGES) + 1
ENTROPIC = 7  # levels below: tokens that were a choice, log-prob under -0.05
ENGINE_BINS = 97  # 4 an octave of a response's mean abs(gap), from 2**-14
WORDS = 16  # 64-bit words of a bitmap of distinct values
MAX_EXAMPLES, MAX_ENGINES, MAX_VALUES = 20, 64, 4

CLASSES = ("degenerate", "dummy", "appended", "zero_end", "misaligned", "broken", "padding", "zero_rows")
LAG_SUMS = ("n", "l", "s", "ll", "ss", "ls", "abs")
COUNT_NAMES: tuple[str, ...] = (
    # responses
    *("responses", "short", "medium", "long", "testable", "alignable", "zero_advantage"),
    *CLASSES,
    *(f"shifted_{lag}" for lag in LAGS if lag),
    *("between", "calm", "offset_neg", "offset_pos", "offset_sum", "offset_squares"),
    # tokens
    *("tokens", "pairs", "zero_gap", "padding_tokens", "zero_row_tokens", "dummy_tokens", "degenerate_tokens"),
    *("sampler_values", "sampler_coarse", "sampler_rich", "learner_values", "learner_coarse", "learner_rich"),
    *("gap_values", "gap_coarse", "sampler_infinite", "sentinels", "learner_zero"),
    *("tail_neg", "tail_pos", "border_tokens", "border_tail", "borders", "borders_hit"),
    *("border_all", "border_all_tail", "end_all", "end_all_tail"),
    *("end_tokens", "end_tail", "ends_hit", "tail_responses"),
    *("lag_0", "lag_1", "lag_2_plus"),
    # fixed-point sums
    *(f"fit_{name}" for name in ("n", "l", "s", "ll", "ss", "ls")),
    *(f"shift_{lag}_{name}" for lag in LAGS for name in LAG_SUMS),
    *("next_n", "next_squares", "next_products", "sum_squares", "squares"),
)
COUNT_INDEX = {name: index for index, name in enumerate(COUNT_NAMES)}
# rows of `gaps`: by the sampler's level, by the learner's level (tokens of unsuspicious responses), all tokens
GAP_ROWS = 2 * LEVELS + 1
BITMAPS = ("sampler", "gap")


@dataclass(frozen=True, eq=False, slots=True)
class Symptoms:
    """`counts` [COUNT_NAMES], `cells` those of `gaps`, `seen` uint64 [BITMAPS, WORDS]; engines: name -> responses
    by mean abs(gap) [ENGINE_BINS]; examples: class -> its first responses' names; settings: name -> values told;
    objective: the sums that the trainer's objective told, in units of `summary.objective`."""

    counts: Counts
    cells: Cells
    seen: NDArray[np.uint64]
    engines: Mapping[str, Counts]
    examples: Mapping[str, tuple[str, ...]]
    settings: Mapping[str, tuple[str, ...]]
    objective: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for array in (self.counts, self.seen, *self.engines.values()):
            array.setflags(write=False)
        for name in ("engines", "examples", "settings", "objective"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @classmethod
    def empty(cls) -> Symptoms:
        return cls(
            np.zeros(len(COUNT_NAMES), np.int64),
            Cells.empty(GAP_ROWS * GAP_BINS),
            np.zeros((len(BITMAPS), WORDS), np.uint64),
            {},
            {},
            {},
        )

    @property
    def gaps(self) -> Counts:
        """[GAP_ROWS, GAP_BINS], written out when it is asked for; read-only."""
        return self.cells.dense().reshape(GAP_ROWS, GAP_BINS)

    def count(self, name: str) -> int:
        return int(self.counts[COUNT_INDEX[name]])

    def total(self, name: str) -> float:
        """A fixed-point sum in nats (or nats squared, for a sum of products)."""
        squared = name.endswith(("ll", "ss", "ls", "squares", "products"))
        return self.count(name) / (SCALE * SCALE if squared else SCALE)

    def merge(self, other: Symptoms) -> Symptoms:
        return merge_symptoms((self, other))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Symptoms):
            return NotImplemented
        arrays = all(np.array_equal(getattr(self, name), getattr(other, name)) for name in ("counts", "seen"))
        engines = self.engines.keys() == other.engines.keys() and all(
            np.array_equal(self.engines[name], other.engines[name]) for name in self.engines
        )
        lists = all(getattr(self, name) == getattr(other, name) for name in ("examples", "settings", "objective"))
        return arrays and self.cells == other.cells and engines and lists

    def __hash__(self) -> int:
        return hash((self.counts.tobytes(), self.cells))


def merge_symptoms(several: Iterable[Symptoms]) -> Symptoms:
    """Of all inputs together; of none, the empty one. The order makes no difference."""
    empty = Symptoms.empty()
    counts, seen = empty.counts.copy(), empty.seen.copy()
    cells: list[Cells] = []
    engines: dict[str, Counts] = {}
    examples: dict[str, set[str]] = {}
    settings: dict[str, set[str]] = {}
    objective: list[Mapping[str, int]] = []
    for one in several:
        objective.append(one.objective)
        counts += one.counts
        cells.append(one.cells)
        seen |= one.seen
        for name, bins in one.engines.items():
            engines[name] = engines[name] + bins if name in engines else bins
        for known, added in ((examples, one.examples), (settings, one.settings)):
            for name, values in added.items():
                known.setdefault(name, set()).update(values)
    return Symptoms(
        counts,
        merge_cells(cells, empty.cells.size),
        seen,
        {name: engines[name] for name in sorted(engines)[:MAX_ENGINES]},
        {name: smallest(values, MAX_EXAMPLES) for name, values in sorted(examples.items())},
        {name: smallest(values, MAX_VALUES) for name, values in sorted(settings.items())},
        merged_units(objective),
    )


def smallest(names: Iterable[str], count: int) -> tuple[str, ...]:
    """The first `count` in natural order: what is kept of a union does not depend on the order of merging."""
    return tuple(sorted(set(names), key=lambda name: (len(name), name))[:count])
