"""Shapes along a response: do the two columns fit better when shifted, and where do the large gaps stand?

Borders are the four tokens after a turn begins (a masked stretch ends, or a declared turn start), ends the last four
tokens of a response of 16 or more. A large gap is one above 1 nat either way. Without log-probs a shift still shows in
the gaps: d_t = s_(t+1) - s_t telescopes, so neighbours correlate by -1/2 and blocks of 16 sum up to almost nothing.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from triage_monitor.summary.symptoms import LAG_SUMS, LAGS, SCALE
from triage_monitor.summary.symptoms_kernel import lag_sums, telescoped
from triage_monitor.summary.symptoms_view import Flags, Floats, Looked

BORDER_TOKENS, END_TOKENS, ENDED_RESPONSE = 4, 4, 16
LARGE = 1.0
BLOCK = 16
CLIP = 16.0
_LAGS = np.array(LAGS, np.int64)
_NEXT = ("next_n", "next_squares", "next_products", "sum_squares", "squares")
MIN_PAIRS, MIN_CHOICES, CHOICE = 8, 3, -0.1
MIN_MEAN, SHIFTED_RATIO, SHIFTED_CORRELATION, CORRELATION_GAIN = 0.1, 0.35, 0.8, 0.2


def add_alignment(view: Looked, flawed: Flags, counts: Counter[str]) -> Flags:
    """[R], responses whose columns are shifted against one another; books every lag's sums."""
    shifted = np.zeros(view.responses, np.bool_)
    _telescoping(view, flawed, counts)
    if view.learner is None or view.sampler is None or not len(view.of):
        return shifted
    usable = view.valid & ~flawed[view.of]
    learner, sampler = (np.where(usable, np.clip(side, -CLIP, CLIP), 0.0) for side in (view.learner, view.sampler))
    sums, told = np.zeros((len(LAGS), view.responses, 8)), np.zeros((len(LAGS), len(LAG_SUMS)), np.int64)
    lag_sums(learner, sampler, usable, view.of, view.drawn, _LAGS, CHOICE, sums, told)
    for lag, row in zip(LAGS, told.tolist(), strict=True):
        for name, total in zip(LAG_SUMS, row, strict=True):
            counts[f"shift_{lag}_{name}"] += total
    pairs, choices = sums[:, :, 0], sums[:, :, 7]  # a fit that rests on one large value is none
    distance = np.divide(sums[:, :, 6], pairs, out=np.full(pairs.shape, np.inf), where=pairs > 0)
    correlation = _correlation(sums)
    here = LAGS.index(0)
    counts["alignable"] += int((view.drawn & (pairs[here] > MIN_PAIRS) & (correlation[here] > -2)).sum())
    best = np.argmin(distance, axis=0) == np.arange(len(LAGS))[:, None]
    found = best & (pairs >= MIN_PAIRS) & (distance[here] >= MIN_MEAN) & (choices >= MIN_CHOICES)
    found &= (distance <= SHIFTED_RATIO * distance[here]) & (correlation >= SHIFTED_CORRELATION)
    found &= correlation[here] <= correlation - CORRELATION_GAIN
    found[here] = False
    for lag, total in zip(LAGS, (found & view.drawn).sum(axis=1).tolist(), strict=True):
        if lag:
            counts[f"shifted_{lag}"] += total
    shifted |= found.any(axis=0)
    return shifted


def _correlation(sums: Floats) -> Floats:
    """[lags, R]; -9 where either side does not vary enough to have one."""
    n = np.maximum(sums[:, :, 0], 1.0)
    mean_l, mean_s = sums[:, :, 1] / n, sums[:, :, 2] / n
    spread_l, spread_s = sums[:, :, 3] / n - mean_l**2, sums[:, :, 4] / n - mean_s**2
    enough = (spread_l > 0.01) & (spread_s > 0.01)
    cross = sums[:, :, 5] / n - mean_l * mean_s
    scale = np.sqrt(np.where(enough, spread_l * spread_s, 1.0))
    return np.where(enough, cross / scale, -9.0)


def _telescoping(view: Looked, flawed: Flags, counts: Counter[str]) -> None:
    if not len(view.of):
        return
    usable = view.valid & (view.drawn & ~flawed)[view.of]
    gap = np.rint(np.clip(view.gap, -CLIP, CLIP) * SCALE).astype(np.int64)
    found = np.zeros(len(_NEXT), np.int64)
    telescoped(gap, usable, view.of, view.rank, view.size, BLOCK, found)
    for name, total in zip(_NEXT, found.tolist(), strict=True):
        counts[name] += total


def add_places(view: Looked, counted: Flags, counts: Counter[str]) -> None:
    """Large gaps by place: everywhere, after borders, at ends; over the responses `counted`."""
    usable = view.valid & counted[view.of]
    large = usable & (np.abs(view.gap) > LARGE)
    counts["tail_neg"] += int((large & (view.gap < 0)).sum())
    counts["tail_pos"] += int((large & (view.gap > 0)).sum())
    counts["tail_responses"] += int((view.count_of(large) > 0).sum())
    starts = np.flatnonzero(view.turn & counted[view.of])
    zone, hit = np.zeros(len(view.of), np.bool_), np.zeros(len(starts), np.bool_)
    for step in range(BORDER_TOKENS):
        place = starts + step
        inside = place < len(view.of)
        inside[inside] = view.of[place[inside]] == view.of[starts[inside]]
        zone[place[inside]] = True
        hit[inside] |= large[place[inside]]
    turned = np.zeros(view.responses, np.bool_)
    turned[view.of[starts]] = True
    counts["borders"] += len(starts)
    counts["borders_hit"] += int(hit.sum())
    for name, where, within in (
        ("border", zone, turned[view.of]),
        ("end", view.rank >= (view.size - END_TOKENS)[view.of], (view.size >= ENDED_RESPONSE)[view.of]),
    ):
        counts[f"{name}_all"] += int((usable & within).sum())
        counts[f"{name}_all_tail"] += int((large & within).sum())
        counts[f"{name}_tokens"] += int((usable & within & where).sum())
        counts[f"{name}_tail"] += int((large & within & where).sum())
    late = large & (view.rank >= (view.size - END_TOKENS)[view.of]) & (view.size >= ENDED_RESPONSE)[view.of]
    counts["ends_hit"] += int((view.count_of(late) > 0).sum())
