"""Segments (estimands section 4): are the tail tokens spread, or crowded into a few segments that averages hide?

c of n valid tokens of an eligible segment lie in the amplifying tail; it is tail-heavy when c / n >= phi. Each
statistic exists for all amplifying tokens and restricted to A- (`_a_neg`) and A+ (`_a_pos`): then c changes, n and
eligibility do not.

    top5_tail_share  tail tokens held by the top 5% of eligible segments by c / n, ties at the cut pro rata
    persistence      P(j + 1 heavy | j heavy) / P(heavy): pairs adjacent in one response over all eligible segments

All exact: the summary holds the joint counts of (n, c).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from triage_monitor.judge.table import Indicator, tokens, undefined
from triage_monitor.summary.step import FAMILIES, StepSummary

TOP_SHARE = 0.05


def _eligible(summary: StepSummary) -> int:
    tokens(summary)
    return summary.count("eligible_segments") or undefined("no_eligible_segments")


def tail_token_fraction(summary: StepSummary, family: str) -> float:
    return summary.count(f"tail_tokens_{family}") / tokens(summary)


def heavy_segment_fraction(summary: StepSummary, family: str) -> float:
    return summary.count(f"heavy_segments_{family}") / _eligible(summary)


def top5_tail_share(summary: StepSummary, family: str) -> float:
    eligible = _eligible(summary)
    n, c, segments = summary.histograms.used("segment", FAMILIES.index(family))
    tail = segments * c
    held = int(tail.sum()) or undefined("no_tail_tokens")
    return _top(c / n, segments, tail, TOP_SHARE * eligible) / held


def _top(rank: NDArray[np.float64], segments: NDArray[np.int64], tail: NDArray[np.int64], take: float) -> float:
    """Tail tokens of the `take` highest-ranked segments; equal ranks enter pro rata."""
    ranks, place = np.unique(-rank, return_inverse=True)
    size = np.bincount(place, weights=segments, minlength=ranks.size)
    mass = np.bincount(place, weights=tail, minlength=ranks.size)
    taken = np.clip(take - np.concatenate([[0.0], np.cumsum(size)[:-1]]), 0.0, size)
    return float(mass @ (taken / size))


def tail_concentration(summary: StepSummary, family: str) -> float:
    return top5_tail_share(summary, family) / TOP_SHARE


def persistence(summary: StepSummary, family: str) -> float:
    rate = heavy_segment_fraction(summary, family) or undefined("no_heavy_segments")
    first = summary.count(f"adjacent_heavy_first_{family}") or undefined("no_adjacent_pairs")
    return summary.count(f"adjacent_heavy_both_{family}") / first / rate


def masked_response_fraction(summary: StepSummary, family: str) -> float:
    _eligible(summary)
    heavy = summary.count(f"heavy_responses_{family}") or undefined("no_heavy_segments")
    return summary.count(f"masked_heavy_responses_{family}") / heavy


_TABLE: tuple[tuple[str, str, str, Callable[[StepSummary, str], float]], ...] = (
    ("tail_token_fraction", "share", "Share of tokens in the amplifying tail", tail_token_fraction),
    ("heavy_segment_fraction", "share", "Share of eligible segments that are tail-heavy", heavy_segment_fraction),
    ("top5_tail_share", "share", "Share of the tail tokens held by the top 5% of segments", top5_tail_share),
    ("tail_concentration", "ratio", "The same over 5%; about 1 is uniform", tail_concentration),
    ("persistence", "ratio", "How much likelier a segment is heavy after a heavy one", persistence),
    (
        "masked_response_fraction",
        "share",
        "Among responses with a heavy segment, the share whose mean gap looks small",
        masked_response_fraction,
    ),
)
_FAMILY_TEXT = {"all": "", "a_neg": ", A- tokens only", "a_pos": ", A+ tokens only"}


def _bind(compute: Callable[[StepSummary, str], float], family: str) -> Callable[[StepSummary], float]:
    return lambda summary: compute(summary, family)


ROWS: tuple[Indicator, ...] = tuple(
    Indicator(
        name if family == "all" else f"{name}_{family}",
        unit,
        help + _FAMILY_TEXT[family],
        "segments",
        _bind(compute, family),
    )
    for family in FAMILIES
    for name, unit, help, compute in _TABLE
)
