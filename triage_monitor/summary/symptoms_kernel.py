"""The compiled passes of `symptoms_of`: what would otherwise be a hundred calls over the few tokens of a small shard.

Positions [T] and responses [R] are those of `Looked`. Every pass adds whole numbers, or float64 sums in the order of
the positions, so that what follows from them is the same on every machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triage_monitor.summary.jit import compiled
from triage_monitor.summary.symptoms import LEVELS, SCALE

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Narrow = NDArray[np.float32]
Bits = NDArray[np.uint32]
Words = NDArray[np.uint64]

_HASH = np.uint64(0x9E3779B97F4A7C15)
_SQUARE = SCALE * SCALE
SAMPLER, LEARNER, GAP = 0, 1, 2  # rows of what coarseness finds
VALUES, COARSE, RICH = 0, 1, 2  # its columns


@compiled()
def lag_sums(
    learner_T: Floats,
    sampler_T: Floats,
    usable_T: Flags,
    of_T: Ints,
    drawn_R: Flags,
    lags: Ints,
    choice: float,
    sums: Floats,
    told: Ints,
) -> None:
    """Over pairs (l_t, s_(t + lag)) of one response: n, l, s, l l, s s, l s, abs(l - s) and the pairs in which both
    were a choice into `sums` [lags, R, 8]; the first seven of the drawn, in fixed point, into `told` [lags, 7]."""
    for number in range(lags.size):
        for i in range(max(0, -lags[number]), min(of_T.size, of_T.size - lags[number])):
            j, r = i + lags[number], of_T[i]
            if not (usable_T[i] and usable_T[j]) or of_T[j] != r:
                continue
            x, y = learner_T[i], sampler_T[j]
            row = sums[number, r]
            row[0] += 1
            row[1] += x
            row[2] += y
            row[3] += x * x
            row[4] += y * y
            row[5] += x * y
            row[6] += abs(x - y)
            row[7] += x < choice and y < choice
            if drawn_R[r]:
                known = told[number]
                known[0] += 1
                known[1] += np.int64(np.rint(x * SCALE))
                known[2] += np.int64(np.rint(y * SCALE))
                known[3] += np.int64(np.rint(x * x * _SQUARE))
                known[4] += np.int64(np.rint(y * y * _SQUARE))
                known[5] += np.int64(np.rint(x * y * _SQUARE))
                known[6] += np.int64(np.rint(abs(x - y) * SCALE))


@compiled()
def telescoped(gap_T: Ints, usable_T: Flags, of_T: Ints, rank_T: Ints, size_R: Ints, block: int, found: Ints) -> None:
    """Of gaps in fixed point, into `found` [5]: neighbours, their first's squares, their products; squared sums of
    whole blocks of a response's tokens, and the squares in these."""
    total, last, place = np.int64(0), np.int64(-1), np.int64(-1)
    for i in range(of_T.size):
        if not usable_T[i]:
            continue
        r, gap = of_T[i], gap_T[i]
        if i + 1 < of_T.size and usable_T[i + 1] and of_T[i + 1] == r:
            found[0] += 1
            found[1] += gap * gap
            found[2] += gap * gap_T[i + 1]
        if rank_T[i] >= size_R[r] // block * block:
            continue
        if r != last or rank_T[i] // block != place:
            found[3] += total * total
            total, last, place = np.int64(0), r, rank_T[i] // block
        total += gap
        found[4] += gap * gap
    found[3] += total * total


@compiled()
def see(bits: np.uint32, words: Words) -> None:
    """Sets the bit that a hash of the value names."""
    bit = np.uint64(bits) * _HASH >> np.uint64(54)
    words[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))


@compiled()
def coarseness(value: float, narrow: np.float32, bits: np.uint32, found: Ints) -> None:
    """Whether a value other than 0 is a bfloat16 number exactly, and one of more than four significant bits."""
    if value != 0:
        found[VALUES] += 1
        if narrow == value and bits & np.uint32(0xFFFF) == 0:
            found[COARSE] += 1
            found[RICH] += (bits >> np.uint32(16)) & np.uint32(7) != 0


@compiled()
def mark_gaps(
    calm_T: Flags, place_T: Ints, gap_T: Floats, narrow_T: Narrow, bits_T: Bits, gaps: Ints, seen: Words, found: Ints
) -> None:
    """Histogram [GAP_BINS], bitmap [WORDS] and coarseness [3] of the gaps of calm tokens."""
    for i in range(calm_T.size):
        if calm_T[i]:
            gaps[place_T[i]] += 1
            see(bits_T[i], seen)
            coarseness(gap_T[i], narrow_T[i], bits_T[i], found)


@compiled()
def mark_side(
    calm_T: Flags, place_T: Ints, side_T: Floats, narrow_T: Narrow, bits_T: Bits, edges: Floats, gaps: Ints, found: Ints
) -> None:
    """Gaps by the size of one side's log-prob [LEVELS, GAP_BINS], and the coarseness [3] of these."""
    for i in range(calm_T.size):
        if calm_T[i]:
            level = 0
            while level < LEVELS - 1 and edges[level] <= side_T[i]:
                level += 1
            gaps[level, place_T[i]] += 1
            coarseness(side_T[i], narrow_T[i], bits_T[i], found)


@compiled()
def see_all(calm_T: Flags, bits_T: Bits, seen: Words) -> None:
    for i in range(calm_T.size):
        if calm_T[i]:
            see(bits_T[i], seen)


@compiled()
def fit_sums(calm_T: Flags, learner_T: Floats, sampler_T: Floats, likely: float, limit: float, found: Ints) -> None:
    """Over tokens that were a choice: n, l, s, l l, s s, l s in fixed point, into `found` [6]."""
    for i in range(calm_T.size):
        learner, sampler = learner_T[i], sampler_T[i]
        if calm_T[i] and learner + sampler < likely and learner > -limit and sampler > -limit:
            x, y = np.int64(np.rint(learner * SCALE)), np.int64(np.rint(sampler * SCALE))
            found[0] += 1
            found[1] += x
            found[2] += y
            found[3] += x * x
            found[4] += y * y
            found[5] += x * y
