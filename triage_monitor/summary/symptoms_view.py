"""The responses that are looked at, as flat arrays: T positions of R chosen responses, in order.

A position is `present` where the mask is 1 and `valid` where it also has a usable gap; a log-prob below SENTINEL is a
filler that some stack put there, not a probability. `rank` counts a valid token within its response.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triage_monitor.summary.rows_values import UpdateRows
from triage_monitor.summary.symptoms_sample import TOKEN_BUDGET, Ints, drawn_responses, gap_at

SENTINEL = -1000.0
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Looked:
    """`drawn` [R] responses that count in shares; `advantage` [T]; `learner`, `sampler` [T] or None; `turn` [T] marks
    the first token after a masked stretch or at a declared turn, but for the response's first."""

    rows: UpdateRows
    chosen: Ints
    drawn: Flags
    place: Ints
    of: Ints
    present: Flags
    valid: Flags
    sentinel: Flags
    gap: Floats
    learner: Floats | None
    sampler: Floats | None
    advantage: Floats
    turn: Flags
    size: Ints
    rank: Ints

    @property
    def responses(self) -> int:
        return len(self.chosen)

    def next_of(self, lag: int) -> tuple[slice, slice, Flags]:
        """(positions i, positions i + lag, whether both lie in one response)."""
        count = len(self.of)
        shift = min(abs(lag), count)
        first, second = slice(0, count - shift), slice(shift, count)
        pair = (first, second) if lag >= 0 else (second, first)
        return pair[0], pair[1], self.of[pair[0]] == self.of[pair[1]]

    def sum_of(self, values: NDArray[np.generic], where: Flags) -> Floats:
        """[R] sums of `values` over the positions `where`."""
        weights = values[where].astype(np.float64)
        return np.bincount(self.of[where], weights=weights, minlength=self.responses).astype(np.float64)

    def count_of(self, where: Flags) -> Ints:
        return np.bincount(self.of[where], minlength=self.responses)

    def median_of(self, values: Floats) -> Floats:
        """[R] lower medians over valid tokens, values clipped to +-1000; 0 for a response without one."""
        if not self.valid.any():
            return np.zeros(self.responses)
        keys = np.sort(self.of[self.valid] * 4096.0 + np.clip(values[self.valid], -1000.0, 1000.0))
        middle = np.cumsum(self.size) - self.size + (np.maximum(self.size, 1) - 1) // 2
        found = keys[np.minimum(middle, len(keys) - 1)] - np.arange(self.responses) * 4096.0
        return np.where(self.size > 0, found, 0.0)


def looked_at(rows: UpdateRows) -> Looked:
    drawn, suspects = drawn_responses(rows)
    chosen = np.sort(np.concatenate([drawn, suspects]))
    length = np.minimum(np.diff(rows.offsets)[chosen], TOKEN_BUDGET)
    of = np.repeat(np.arange(len(chosen)), length)
    place = np.arange(len(of)) + np.repeat(rows.offsets[chosen] - (np.cumsum(length) - length), length)
    learner, sampler = _column(rows.learner_logprobs, place), _column(rows.sampler_logprobs, place)
    with np.errstate(invalid="ignore", over="ignore"):
        gap = gap_at(rows, place)
    present = np.ones(len(place), np.bool_) if rows.mask is None else rows.mask[place].astype(np.bool_)
    sentinel = np.zeros(len(place), np.bool_)
    if learner is not None and sampler is not None:
        with np.errstate(invalid="ignore"):
            sentinel = present & np.isfinite(gap) & ((sampler <= SENTINEL) | (learner <= SENTINEL))
    valid = present & np.isfinite(gap) & ~sentinel
    if rows.missing is not None:
        valid &= ~rows.missing[place]
    size = np.bincount(of[valid], minlength=len(chosen))
    rank = np.cumsum(valid) - 1 - (np.cumsum(size) - size)[of]
    advantage = rows.advantages[place if rows.advantages_per_token else chosen[of]].astype(np.float64)
    return Looked(
        rows,
        chosen,
        np.isin(chosen, drawn),
        place,
        of,
        present,
        valid,
        sentinel,
        np.where(valid, gap, 0.0),
        learner,
        sampler,
        advantage,
        _turns(rows, place, of, present),
        size,
        rank,
    )


def _column(values: NDArray[np.generic] | None, place: Ints) -> Floats | None:
    return None if values is None else values[place].astype(np.float64)


def _turns(rows: UpdateRows, place: Ints, of: Ints, present: Flags) -> Flags:
    """First tokens after a stretch that is masked out, or where a turn was declared; never a response's first token."""
    turn = np.zeros(len(of), np.bool_)
    if len(of) == 0:
        return turn
    turn[1:] = present[1:] & ~present[:-1] & (of[1:] == of[:-1])
    if rows.turn_starts is not None:
        turn |= present & rows.turn_starts[place]
    before: Ints = np.cumsum(present) - present
    first = np.searchsorted(of, of, side="left")
    turn &= before > before[first]
    return turn
