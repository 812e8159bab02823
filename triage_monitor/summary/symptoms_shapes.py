"""Shapes along a response: do the two columns fit better when shifted, and where do the large gaps stand?

Borders are the four tokens after a turn begins (a masked stretch ends, or a declared turn start), ends the last four
tokens of a response of 16 or more. A large gap is one above 1 nat either way. Without log-probs a shift still shows in
the gaps: d_t = s_(t+1) - s_t telescopes, so neighbours correlate by -1/2 and blocks of 16 sum up to almost nothing.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from triage_monitor.summary.symptoms import LAG_SUMS, LAGS, SCALE
from triage_monitor.summary.symptoms_view import Flags, Floats, Looked

BORDER_TOKENS, END_TOKENS, ENDED_RESPONSE = 4, 4, 16
LARGE = 1.0
BLOCK = 16
CLIP = 16.0
_UNITS = np.array([1 if name == "n" else SCALE * SCALE if len(name) == 2 else SCALE for name in LAG_SUMS])
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
    moments = {lag: _moments(view, usable, learner, sampler, lag, counts) for lag in LAGS}
    distance = {
        lag: np.divide(m[6], m[0], out=np.full(view.responses, np.inf), where=m[0] > 0) for lag, m in moments.items()
    }
    correlation = {lag: _correlation(m) for lag, m in moments.items()}
    counts["alignable"] += int((view.drawn & (moments[0][0] > MIN_PAIRS) & (correlation[0] > -2)).sum())
    best = np.argmin(np.stack([distance[lag] for lag in LAGS]), axis=0)
    for number, lag in enumerate(LAGS):
        if lag == 0:
            continue
        found = (best == number) & (moments[lag][0] >= MIN_PAIRS) & (distance[0] >= MIN_MEAN)
        found &= (distance[lag] <= SHIFTED_RATIO * distance[0]) & (moments[lag][7] >= MIN_CHOICES)
        found &= (correlation[lag] >= SHIFTED_CORRELATION) & (correlation[0] <= correlation[lag] - CORRELATION_GAIN)
        shifted |= found
        counts[f"shifted_{lag}"] += int((found & view.drawn).sum())
    return shifted


def _moments(
    view: Looked, usable: Flags, learner: Floats, sampler: Floats, lag: int, counts: Counter[str]
) -> list[Floats]:
    """[R] pairs, sums of l, s, l l, s s, l s, abs(l - s) over pairs (l_t, s_(t+lag)), whose totals are counted; and the
    pairs in which both were a choice: a fit that rests on one large value is none."""
    here, there, together = view.next_of(lag)
    pair = together & usable[here] & usable[there]
    of, x, y = view.of[here][pair], learner[here][pair], sampler[there][pair]
    inside = view.drawn[of]
    values = np.stack((np.ones(len(x)), x, y, x * x, y * y, x * y, abs(x - y)))
    told = np.rint(values[:, inside] * _UNITS[:, None]).astype(np.int64).sum(axis=1)
    for name, total in zip(LAG_SUMS, told.tolist(), strict=True):
        counts[f"shift_{lag}_{name}"] += total
    # All seven in one call: of a small shard the calls are what takes the time.
    row_of = of + view.responses * np.arange(len(LAG_SUMS))[:, None]
    sums = np.bincount(row_of.ravel(), weights=values.ravel(), minlength=len(LAG_SUMS) * view.responses)
    found = list(sums.astype(np.float64).reshape(len(LAG_SUMS), view.responses))
    chosen = np.bincount(of[(x < CHOICE) & (y < CHOICE)], minlength=view.responses)
    return [*found, chosen.astype(np.float64)]


def _correlation(moments: list[Floats]) -> Floats:
    """[R]; -9 where either side does not vary enough to have one."""
    n = np.maximum(moments[0], 1.0)
    mean_l, mean_s = moments[1] / n, moments[2] / n
    spread_l, spread_s = moments[3] / n - mean_l**2, moments[4] / n - mean_s**2
    enough = (spread_l > 0.01) & (spread_s > 0.01)
    cross = moments[5] / n - mean_l * mean_s
    scale = np.sqrt(np.where(enough, spread_l * spread_s, 1.0))
    return np.where(enough, cross / scale, -9.0)


def _telescoping(view: Looked, flawed: Flags, counts: Counter[str]) -> None:
    if not len(view.of):
        return
    usable = view.valid & (view.drawn & ~flawed)[view.of]
    gap = np.rint(np.clip(view.gap, -CLIP, CLIP) * SCALE).astype(np.int64)
    here, there, together = view.next_of(1)
    pair = together & usable[here] & usable[there]
    counts["next_n"] += int(pair.sum())
    counts["next_squares"] += int((gap[here][pair] ** 2).sum())
    counts["next_products"] += int((gap[here][pair] * gap[there][pair]).sum())
    per_response = view.size // BLOCK
    whole = usable & (view.rank < (per_response * BLOCK)[view.of])
    first = np.cumsum(per_response) - per_response
    block = first[view.of[whole]] + view.rank[whole] // BLOCK
    sums = np.zeros(int(per_response.sum()), np.int64)
    np.add.at(sums, block, gap[whole])
    counts["sum_squares"] += int((sums**2).sum())
    counts["squares"] += int((gap[whole] ** 2).sum())


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
