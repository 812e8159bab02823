"""The quantile sketch: a histogram whose bin is the top 16 bits of the float32 gap.

Sign, exponent and seven mantissa bits make 128 bins an octave without a logarithm. A bin's value is the
point with equal relative error to both ends, at most 1/257 = 0.39% away; magnitudes below 2**-14 = 6.1e-5
share one bin worth 0. Bins are integers, so any split of the tokens merges to the same counts.

Layout of the BINS counts, ascending in the gap: CELLS negative bins, the zero bin, CELLS positive bins. The last bin
on either side also takes what lies beyond 2**10 = 1024; exact extremes are kept beside the sketch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

OCTAVES_BELOW, OCTAVES_ABOVE, CELLS_PER_OCTAVE = 14, 10, 128
CELLS = (OCTAVES_BELOW + OCTAVES_ABOVE) * CELLS_PER_OCTAVE + 1
BINS = 2 * CELLS + 1
ZERO_BIN = CELLS
RAW_BINS = 1 << 16
_FIRST_RAW = (127 - OCTAVES_BELOW) * CELLS_PER_OCTAVE


def _fold_map() -> NDArray[np.int64]:
    raw = np.arange(RAW_BINS, dtype=np.int64)
    cell = np.clip((raw & 0x7FFF) - _FIRST_RAW + 1, 0, CELLS)
    folded: NDArray[np.int64] = np.where(raw >= 0x8000, ZERO_BIN - cell, ZERO_BIN + cell)
    return folded


def _bin_values() -> NDArray[np.float64]:
    edges = np.ldexp(1 + np.arange(CELLS_PER_OCTAVE) / CELLS_PER_OCTAVE, 0)
    lower = np.concatenate([edges * 2.0**octave for octave in range(-OCTAVES_BELOW, OCTAVES_ABOVE)])
    upper = np.append(lower[1:], 2.0**OCTAVES_ABOVE)
    centre = 2 * lower * upper / (lower + upper)
    positive = np.append(centre, 2.0**OCTAVES_ABOVE)
    return np.concatenate([-positive[::-1], [0.0], positive])


_FOLD = _fold_map()
VALUES = _bin_values()
VALUES.setflags(write=False)


def fold(raw: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Counts by the top 16 bits [..., 65536] -> counts by bin [..., BINS]."""
    rows = raw.reshape(-1, RAW_BINS)
    folded = np.zeros((rows.shape[0], BINS), dtype=np.int64)
    for row, out in zip(rows, folded, strict=True):
        used = np.flatnonzero(row != 0)  # of numbers themselves numpy finds them six times slower
        np.add.at(out, _FOLD[used], row[used])
    return folded.reshape(*raw.shape[:-1], BINS)


def bin_of(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Bin index of each finite value."""
    with np.errstate(over="ignore"):
        top = values.astype(np.float32).view(np.uint32) >> 16
    bins: NDArray[np.int64] = _FOLD[top]
    return bins


def quantile(counts: NDArray[np.int64], q: float, low: float, high: float) -> float | None:
    """The order statistic at rank ceil(q n), to the sketch's error; exact at the extremes `low`, `high`.

    None when the sketch is empty.
    """
    return quantiles(counts, (q,), low, high)[0]


def quantiles(counts: NDArray[np.int64], ranks: Sequence[float], low: float, high: float) -> list[float | None]:
    """`quantile` at several q from one pass over the bins."""
    cumulative = np.cumsum(counts)
    total = int(cumulative[-1])
    if total == 0:
        return [None] * len(ranks)
    order = [min(max(math.ceil(q * total - 1e-9 * max(1.0, q * total)), 1), total) for q in ranks]
    values = VALUES[np.searchsorted(cumulative, order)].tolist()
    return [
        low if rank == 1 else high if rank == total else min(max(value, low), high)
        for rank, value in zip(order, values, strict=True)
    ]
