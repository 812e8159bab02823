"""The fused kernel: one pass over the tokens of a shard, response by response, segment by segment.

Shapes: gap_T tokens; state_T 0 masked, 1 token, 2 missing (empty when every position is a token); offset_R1 response
borders; advantage_R, or advantage_T when it is not empty. Outputs are the arrays of a StepSummary plus a row a response
for the statistics that need it whole; what those become is build.py's business.

A block of whole segments of one response is copied into a buffer of the first-level cache. One with masked, missing,
NaN or infinite positions, or with an advantage per token, is a single segment: there such positions are packed away and
counted, they take part in no sum (estimands section 1). With one advantage a response, also when
it came spread over the tokens, every advantage-weighted sum is that advantage times an unweighted one, formed once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triage_monitor.summary.jit import REORDER, compiled
from triage_monitor.summary.kernel_segment import (
    REGION_SUMS,
    Floats,
    Gaps,
    Ints,
    exponentials,
    extremes,
    gather_large,
    large_counts,
    large_moments,
    negative_sum,
    power_sums,
    region_sums,
    region_sums_one_sign,
    small_moments,
    tail_count,
    threshold_counts,
)
from triage_monitor.summary.states import MASKED, PRESENT

States = NDArray[np.uint8]
Words = NDArray[np.uint32]
TOP_HALF = np.uint32(16)
BLOCK = 512  # tokens of one response that are looked at together, where nothing is to be packed away

# per-response rows
TOKENS, VALID, GAP_SUM, MASS_A_NEG, MASS_A_POS, UNUSABLE_ADVANTAGE, ZERO_ADVANTAGE = range(7)
RESPONSE_COLUMNS = 7
# counts of one call
C_MISSING, C_NAN, C_POS_INF, C_NEG_INF, C_NEGATIVE, C_POSITIVE, C_NEAR, C_SEGMENTS, C_ELIGIBLE, C_ADJACENT = range(10)
C_ABOVE_2, C_BELOW_HALF, C_BELOW_1E4, C_OVERFLOW, C_TAIL_ALL = range(10, 15)
CALL_COUNTS = 15
# counts of one call by family: heavy segments, first of adjacent heavy, both adjacent heavy, responses, those masked
F_HEAVY, F_FIRST, F_BOTH, F_RESPONSES, F_MASKED = range(5)
FAMILY_COUNTS = 5
# float sums of one call
S_GAP, S_ABS, S_SQ, S_K3, S_K3_REVERSE, S_EXCESS, S_CHI2, S_RHO, S_WEIGHT, S_WEIGHT_SQ = range(10)
CALL_SUMS = 10
# what a block hands to its response
M_NEGATIVE, M_POSITIVE, M_SUM_BELOW, M_SUM_ABOVE, M_DEEP = range(5)


@compiled()
def copy_segment(gap_T: Gaps, start: int, n: int, x: Gaps) -> None:
    # An index that might be negative (Python's wrap-around) would keep this loop from being vectorised.
    base = np.uintp(start)
    for i in range(n):
        x[i] = gap_T[base + np.uintp(i)]


@compiled(REORDER)
def all_present(state_T: States, start: int, n: int) -> bool:
    base = np.uintp(start)
    other = 0
    for i in range(n):
        other += state_T[base + np.uintp(i)] != PRESENT
    return other == 0


@compiled()
def pack_present(state_T: States, start: int, n: int, x: Gaps, a: Floats, counts: Ints) -> tuple[int, int]:
    """Moves the present tokens of a copied segment to its front; (tokens, present tokens)."""
    base = np.uintp(start)
    tokens = present = 0
    for i in range(n):
        state = state_T[base + np.uintp(i)]
        x[present] = x[i]
        a[present] = a[i]
        present += state == PRESENT
        tokens += state != MASKED
    counts[C_MISSING] += tokens - present
    return tokens, present


@compiled()
def pack_finite(n: int, x: Gaps, a: Floats, counts: Ints) -> int:
    """Moves the finite gaps to the front and counts the others by kind."""
    kept = 0
    for i in range(n):
        d = x[i]
        x[kept] = d
        a[kept] = a[i]
        if np.isfinite(d):
            kept += 1
        elif np.isnan(d):
            counts[C_NAN] += 1
        else:
            counts[C_POS_INF if d > 0 else C_NEG_INF] += 1
    return kept


@compiled()
def one_advantage(advantage_T: Floats, state_T: States, first: int, last: int) -> tuple[bool, float]:
    """Whether every token of a response has the same advantage, as most trainers' [B, T] tensors do; and which."""
    base = np.uintp(first)
    value = advantage_T[base]
    for t in range(last - first):
        if advantage_T[base + np.uintp(t)] != value and not (state_T.size and state_T[base + np.uintp(t)] != PRESENT):
            return False, 0.0
    return True, value


@compiled()
def usable(a: Floats, n: int) -> tuple[int, int]:
    """Sets non-finite advantages to 0; (how many there were, how many finite ones were exactly 0)."""
    broken = zeros = 0
    for i in range(n):
        if not np.isfinite(a[i]):
            a[i] = 0.0
            broken += 1
        elif a[i] == 0.0:
            zeros += 1
    return broken, zeros


@compiled()
def fill_sketch(x: Gaps, n: int, narrow: NDArray[np.float32], word: Words, row: Words) -> None:
    """Counts the top half of each float32 (`word` is `narrow` seen as whole numbers)."""
    for i in range(n):
        narrow[i] = x[i]
    for i in range(n):
        row[word[np.uintp(i)] >> TOP_HALF] += np.uint32(1)


@compiled()
def fill_by_token(
    x: Gaps,
    n: int,
    a: Floats,
    narrow: NDArray[np.float32],
    word: Words,
    raw: Words,
    bounds: Floats,
) -> None:
    """Sketch and extremes where each token has its own sign of A."""
    for i in range(n):
        narrow[i] = x[i]
    for i in range(n):
        plane = 0 if a[i] < 0 else 1 if a[i] > 0 else 2
        raw[plane, word[np.uintp(i)] >> TOP_HALF] += np.uint32(1)
        bounds[0, plane] = min(bounds[0, plane], x[i])
        bounds[1, plane] = max(bounds[1, plane], x[i])


@compiled()
def measure(
    x: Gaps,
    n: int,
    total: float,
    square: float,
    spec: Floats,
    large_L: Floats,
    grow: Floats,
    shift: Floats,
    bits: Ints,
    moments: Floats,
    counts: Ints,
    sums: Floats,
) -> None:
    """Everything about a block that needs no advantage."""
    near, deep = spec[0], np.float64(x.dtype.type(spec[2]))  # in the gap's own type, as the others
    negative, positive, close, large = threshold_counts(x, n, near)
    sum_below = negative_sum(x, n) if negative > 0 else 0.0
    sum_above = total - sum_below if positive > 0 else 0.0
    forward, backward, excess, shrunk = small_moments(x, n)
    counts[C_NEGATIVE] += np.int64(negative)
    counts[C_POSITIVE] += np.int64(positive)
    counts[C_NEAR] += np.int64(close)
    sums[S_GAP] += total
    sums[S_ABS] += sum_above - sum_below
    sums[S_SQ] += square
    sums[S_K3] += forward
    sums[S_K3_REVERSE] += backward
    sums[S_EXCESS] += excess
    moments[M_NEGATIVE], moments[M_POSITIVE] = negative, positive
    moments[M_SUM_BELOW], moments[M_SUM_ABOVE] = sum_below, sum_above
    moments[M_DEEP] = 0.0
    small_total, few = total, n
    if large > 0:
        m, small_total = gather_large(x, n, large_L)
        few = n - m
        exponentials(large_L, m, grow, shift, bits)
        up, down, far, double, rho, weight, weight_sq = large_moments(large_L, m, grow)
        sums[S_K3] += up
        sums[S_K3_REVERSE] += down
        sums[S_EXCESS] += far
        sums[S_CHI2] += double
        sums[S_RHO] += rho
        sums[S_WEIGHT] += weight
        sums[S_WEIGHT_SQ] += weight_sq
        above_2, below_half, below_1e4, overflow, moments[M_DEEP] = large_counts(large_L, m, deep)
        counts[C_ABOVE_2] += np.int64(above_2)
        counts[C_BELOW_HALF] += np.int64(below_half)
        counts[C_BELOW_1E4] += np.int64(below_1e4)
        counts[C_OVERFLOW] += np.int64(overflow)
    # exp(d) = 1 + u with u = d + k3(d), so exp(2d) - 1 = u**2 + 2u; the signed part is a float64 sum of gaps
    growth = small_total + forward
    sums[S_CHI2] += shrunk + 2.0 * growth
    sums[S_RHO] += few + growth
    sums[S_WEIGHT] += few + growth
    sums[S_WEIGHT_SQ] += few + shrunk + 2.0 * growth


@compiled()
def close_segment(
    tail: Ints,
    n: int,
    level_of: NDArray[np.uint8],
    heavy_from: Ints,
    before: Ints,
    worst: Ints,
    seen: Ints,
    families: Ints,
    segment: Ints,
    pair: Ints,
) -> None:
    """Books an eligible segment; `before` holds (adjacent?, level, heavy) of its predecessor per family."""
    bound = heavy_from[n]
    for f in range(3):
        c = tail[f]
        level = np.int64(level_of[n, c])
        heavy = np.int64(c >= bound)
        segment[f, n, c] += 1
        worst[f] = max(worst[f], level)
        if before[f, 0]:
            pair[f, before[f, 1], level] += 1
            families[f, F_FIRST] += before[f, 2]
            families[f, F_BOTH] += before[f, 2] & heavy
        families[f, F_HEAVY] += heavy
        seen[f] |= heavy
        before[f, 0] = 1
        before[f, 1] = level
        before[f, 2] = heavy


@compiled()
def close_response(row: Floats, near: float, worst: Ints, seen: Ints, families: Ints, levels: Ints) -> None:
    """A response with at least one eligible segment, booked by its worst one."""
    masked = np.int64(abs(row[GAP_SUM] / row[VALID]) < near)
    for f in range(3):
        levels[f, masked, worst[f]] += 1
        families[f, F_RESPONSES] += seen[f]
        families[f, F_MASKED] += seen[f] & masked


@compiled()
def reduce_shard(
    gap_T: Gaps,
    state_T: States,
    offset_R1: Ints,
    advantage_R: Floats,
    advantage_T: Floats,
    length: int,
    spec: Floats,
    level_of: NDArray[np.uint8],
    heavy_from: Ints,
    raw: Words,
    segment: Ints,
    pair: Ints,
    levels: Ints,
    counts: Ints,
    families: Ints,
    sums: Floats,
    regions: Floats,
    bounds: Floats,
    response: Floats,
) -> None:
    """`spec`: near_zero, tau_ana, deep_tail. Adds into every array from `raw` on."""
    minimum, block = -(-length // 4), length * max(1, BLOCK // length)
    x = np.empty(block, dtype=gap_T.dtype)
    a, large_L, grow, shift = np.zeros(length), np.zeros(block + 1), np.zeros(block), np.zeros(block)
    bits = shift.view(np.int64)
    narrow = np.empty(block, dtype=np.float32)
    word = narrow.view(np.uint32)
    region, sides, moments = np.zeros(REGION_SUMS), np.zeros(6), np.zeros(5)
    tail, worst, seen = np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64)
    before = np.zeros((3, 3), dtype=np.int64)
    for r in range(offset_R1.size - 1):
        first, last = offset_R1[r], offset_R1[r + 1]
        if state_T.size:  # positions run from the first response token to the last
            while first < last and state_T[first] == 0:
                first += 1
            while last > first and state_T[last - 1] == 0:
                last -= 1
        before[:], worst[:], seen[:], region[:], sides[:] = 0, -1, 0, 0.0, 0.0
        zeros = valid = present = 0
        gap_sum = advantage = 0.0
        many = False
        if not advantage_T.size:
            advantage = advantage_R[r]
        elif first < last:
            one, advantage = one_advantage(advantage_T, state_T, first, last)
            many = not one
        unusable_here = not many and not np.isfinite(advantage)
        if unusable_here:
            advantage = 0.0
        plane = 0 if advantage < 0 else 1 if advantage > 0 else 2
        row, side = raw[plane], np.sign(advantage)
        end = first
        plain_from = last if many else first
        while end < last:
            start, size = end, min(length if end < plain_from else block, last - end)
            whole = not state_T.size or all_present(state_T, start, size)
            if not whole and size > length:
                plain_from, size = start + size, length
                whole = all_present(state_T, start, size)
            copy_segment(gap_T, start, size, x)
            total, square = power_sums(x, size)
            if size > length and not np.isfinite(total):
                plain_from, size = start + size, length
                total, square = power_sums(x, size)
            end = start + size
            tokens = n = size
            if many:
                copy_segment(advantage_T, start, n, a)
            if not whole:
                tokens, n = pack_present(state_T, start, n, x, a, counts)
                total, square = power_sums(x, n)
            if not np.isfinite(total):
                n = pack_finite(n, x, a, counts)
                total, square = power_sums(x, n)
            present += tokens
            segments = 1 if size <= length else -(-size // length)
            counts[C_SEGMENTS] += segments
            if n == 0:
                before[:] = 0
                continue
            measure(x, n, total, square, spec, large_L, grow, shift, bits, moments, counts, sums)
            valid += n
            gap_sum += total
            if many:
                broken, zero = usable(a, n)
                zeros += zero
                response[r, UNUSABLE_ADVANTAGE] += broken
                tail[1], tail[2] = np.int64(-region[17]), np.int64(-region[18])
                region_sums(x, n, a, spec[1], spec[2], region)
                tail[1] += np.int64(region[17])
                tail[2] += np.int64(region[18])
                fill_by_token(x, n, a, narrow, word, raw, bounds)
            else:
                sides[0] += moments[M_NEGATIVE]
                sides[1] += moments[M_POSITIVE]
                sides[3] += moments[M_SUM_BELOW]
                sides[4] += moments[M_SUM_ABOVE]
                sides[5] += moments[M_DEEP]
                fill_sketch(x, n, narrow, word, row)
                smallest, largest = extremes(x, n)
                bounds[0, plane] = min(bounds[0, plane], smallest)
                bounds[1, plane] = max(bounds[1, plane], largest)
            for s in range(segments):
                held = n if segments == 1 else min(length, n - s * length)
                if not many:
                    found = np.int64(tail_count(x, s * length, held, side, spec[1])) if side != 0.0 else 0
                    tail[1], tail[2] = found if side < 0 else 0, found if side > 0 else 0
                    sides[2] += found
                tail[0] = tail[1] + tail[2]
                counts[C_TAIL_ALL] += tail[0]
                if held >= minimum:
                    counts[C_ELIGIBLE] += 1
                    counts[C_ADJACENT] += before[0, 0]
                    close_segment(tail, held, level_of, heavy_from, before, worst, seen, families, segment, pair)
                else:
                    before[:] = 0
        response[r, TOKENS], response[r, VALID], response[r, GAP_SUM] = present, valid, gap_sum
        if not many:
            region_sums_one_sign(advantage, float(valid), sides, region)
            if valid > 0:
                response[r, UNUSABLE_ADVANTAGE] = unusable_here
                response[r, ZERO_ADVANTAGE] = advantage == 0.0 and not unusable_here
        elif valid > 0 and zeros == valid:
            response[r, ZERO_ADVANTAGE] = 1
        regions += region
        response[r, MASS_A_NEG], response[r, MASS_A_POS] = region[0], region[1]
        if worst[0] >= 0:
            close_response(response[r], spec[0], worst, seen, families, levels)
