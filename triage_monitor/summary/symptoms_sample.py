"""Which responses of an update are looked at closely: all of a small one, evenly spread ones of a large one.

At most about TOKEN_BUDGET positions are read, whole responses so that runs, borders and ends stay visible (of a single
longer response its first positions). A large update also gets up to SUSPECTS responses that sixteen positions each make
look worst; those only lend their names to a finding, they enter no share. The choice is a function of the shard alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triage_monitor.summary.rows_values import UpdateRows

TOKEN_BUDGET = 1 << 16
SUSPECTS = 16
_PROBES = 16
_SUSPICIOUS = 1.0  # nats of mean abs(gap) over the probes

Ints = NDArray[np.int64]


def drawn_responses(rows: UpdateRows, budget: int = TOKEN_BUDGET) -> tuple[Ints, Ints]:
    """(responses that count, suspects beside them), both ascending."""
    total, count = rows.tokens, rows.responses
    every = np.arange(count)
    if total <= budget or count <= 1:
        return every, every[:0]
    spread = np.unique(np.linspace(0, count - 1, max(1, int(count * budget / total))).astype(np.int64))
    if len(spread) > 1:
        ends = np.cumsum(np.diff(rows.offsets)[spread])
        spread = spread[: max(1, int(np.searchsorted(ends, 2 * budget)))]
    return spread, _suspects(rows, spread, budget)


def _suspects(rows: UpdateRows, drawn: Ints, budget: int) -> Ints:
    lengths = np.diff(rows.offsets)
    step = np.linspace(0.0, 1.0, _PROBES)
    place = rows.offsets[:-1, None] + (step * np.maximum(lengths - 1, 0)[:, None]).astype(np.int64)
    place = np.minimum(place, rows.tokens - 1)
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(gap_at(rows, place))
    size[~np.isfinite(size)] = 0.0
    if rows.mask is not None:
        size[~rows.mask[place]] = 0.0
    worst = np.where(lengths > 0, np.minimum(size, 50.0).mean(axis=1), 0.0)
    worst[drawn] = 0.0
    order = np.argsort(-worst, kind="stable")[:SUSPECTS]
    order = order[worst[order] > _SUSPICIOUS]
    kept = order[np.cumsum(np.minimum(lengths[order], budget)) <= budget]
    return np.sort(kept)


def gap_at(rows: UpdateRows, place: Ints) -> NDArray[np.float64]:
    if rows.gap is not None:
        return rows.gap[place].astype(np.float64)
    assert rows.learner_logprobs is not None and rows.sampler_logprobs is not None
    return rows.learner_logprobs[place].astype(np.float64) - rows.sampler_logprobs[place].astype(np.float64)
