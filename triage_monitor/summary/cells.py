"""Histograms as what an update makes of them: few cells that are not zero among very many.

A shard of some hundred tokens fills some hundred of fifty thousand cells. Held so, a summary takes kilobytes where its
histograms, written out, take 400: what waits in open updates and in windows grows with what was seen, not with what
could have been. Whole numbers only, so a merge is the same in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class Cells:
    """`counts` [n] int64, none of them 0, at `places` [n], ascending, of `size` cells."""

    places: NDArray[np.int32]
    counts: Counts
    size: int

    def __post_init__(self) -> None:
        self.places.setflags(write=False)
        self.counts.setflags(write=False)

    @classmethod
    def empty(cls, size: int) -> Cells:
        return cls(np.empty(0, np.int32), np.empty(0, np.int64), size)

    @classmethod
    def of(cls, dense: Counts) -> Cells:
        """What of an array of any shape is not zero."""
        flat = dense.ravel()
        used = np.flatnonzero(flat != 0)  # of numbers themselves numpy finds them six times slower
        return cls(used.astype(np.int32), flat[used], flat.size)

    @classmethod
    def at(cls, places: NDArray[np.int64], counts: Counts, size: int) -> Cells:
        """From ascending places within `size`; counts of 0 are left out."""
        kept = counts != 0
        return cls(places[kept].astype(np.int32), counts[kept].astype(np.int64), size)

    def within(self, start: int, stop: int) -> tuple[NDArray[np.int32], Counts]:
        """Places counted from `start`, and counts, of the cells from `start` to `stop`."""
        first, last = np.searchsorted(self.places, (start, stop))
        return self.places[first:last] - start, self.counts[first:last]

    def dense(self, start: int = 0, stop: int | None = None) -> Counts:
        """Written out, [stop - start]; read-only."""
        stop = self.size if stop is None else stop
        places, counts = self.within(start, stop)
        flat = np.zeros(stop - start, np.int64)
        flat[places] = counts
        flat.setflags(write=False)
        return flat

    @property
    def nbytes(self) -> int:
        return self.places.nbytes + self.counts.nbytes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cells):
            return NotImplemented
        return (
            self.size == other.size
            and np.array_equal(self.places, other.places)
            and np.array_equal(self.counts, other.counts)
        )

    def __hash__(self) -> int:
        return hash((self.size, self.places.tobytes(), self.counts.tobytes()))


def merge_cells(several: Iterable[Cells], size: int) -> Cells:
    """Added up; every input has this size."""
    flat = np.zeros(size, np.int64)
    for cells in several:
        flat[cells.places] += cells.counts  # no place occurs twice
    return Cells.of(flat)
