"""`summarize`: the arrays of one shard of one update -> StepSummary.

The kernel books what a token or a segment decides; what needs a whole response or a group follows in booking.py: the
sampling units of the interval, sequence-level ratios, rewards; then staleness, and, when both log-probs are given,
probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from triage_monitor.errors import InputError
from triage_monitor.summary import kernel
from triage_monitor.summary.booking import add_groups, add_kernel_counts, add_kernel_sums, add_responses, add_told
from triage_monitor.summary.inputs import ArrayLike, Tokens, per_response, per_response_or_token, tokens_of
from triage_monitor.summary.jit import locked
from triage_monitor.summary.kernel_segment import REGION_SUMS
from triage_monitor.summary.probabilities import add_probabilities
from triage_monitor.summary.sketch import RAW_BINS, fold
from triage_monitor.summary.spec import DEFAULT_SPEC, SummarySpec
from triage_monitor.summary.staleness import add_staleness
from triage_monitor.summary.step import FAMILIES, LEVELS, StepSummary
from triage_monitor.summary.writable import Draft

MAX_SHARD_TOKENS = (1 << 32) - 1
LARGE_SHARD = 1 << 20  # positions from which on a shard is reduced in two parts
Each = Callable[[Callable[[slice], Draft], Iterable[slice]], Iterable[Draft]]


def summarize(
    *,
    gap: ArrayLike = None,
    learner_logprobs: ArrayLike = None,
    sampler_logprobs: ArrayLike = None,
    advantages: ArrayLike,
    offsets: ArrayLike = None,
    mask: ArrayLike = None,
    missing: ArrayLike = None,
    groups: ArrayLike = None,
    policy_versions: ArrayLike = None,
    current_version: int | None = None,
    rewards: ArrayLike = None,
    grad_norm: ArrayLike = None,
    padding_rows: int = 0,
    spec: SummarySpec = DEFAULT_SPEC,
    each: Each = map,
) -> StepSummary:
    """Summary of R responses with T token positions (estimands sections 1 to 6).

    gap, or both log-probs: [T] with `offsets` [R + 1], or a sequence of R one-dimensional arrays; nats, natural log,
    taken before any clamp, truncation or rejection. advantages: [R] or [T]. mask: [T], true where the policy generated
    a trained token. missing: [T], true where such a token came back without a value. groups: [R] whole numbers naming
    the prompt, to cluster the interval. policy_versions: [R] or [T], the version that sampled; `current_version` is
    the learner's, by default the largest given. rewards: [R], NaN where unknown. grad_norm: the update's gradient norm
    before clipping, or [R]; only finite ones above 0 count. each: how the two parts of a large shard are reduced,
    `map` or an executor's, which reduces them at the same time; the result is the same to the bit.

    A response must not be split over shards: its segments, mean gap and sampling unit are taken whole.
    Raises InputError naming the field and row.
    """
    tokens = tokens_of(gap, learner_logprobs, sampler_logprobs, advantages, offsets, mask, missing)
    if tokens.gap_T.size > MAX_SHARD_TOKENS:
        raise InputError("too_long", f"more than {MAX_SHARD_TOKENS} positions in one shard; split it between responses")
    group_R = per_response(groups, "groups", tokens.responses, np.int64)
    reward_R = per_response(rewards, "rewards", tokens.responses, np.float64)
    spread = grad_norm if grad_norm is None or np.ndim(grad_norm) else np.full(tokens.responses, grad_norm)
    norm_R = per_response(spread, "grad_norm", tokens.responses, np.float64)
    version_T = per_response_or_token(policy_versions, "policy_versions", tokens, offsets)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # absurd inputs end as absent indicators
        rows, draft = _reduce(tokens, spec, each)
        add_responses(rows, draft)
        add_groups(rows, group_R, draft)
        add_told(reward_R, norm_R, draft)
        if version_T is not None:
            add_staleness(tokens, version_T, current_version, draft)
    draft.count("padding_rows", padding_rows)
    return draft.summary()


@lru_cache(maxsize=32)
def segment_tables(length: int, phi: float) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """level_of[n, c] = floor(LEVELS c / n), and heavy_from[n], the fewest tail tokens with c / n >= phi."""
    n = np.arange(1, length + 1)[:, None]
    c = np.arange(length + 1)[None, :]
    level = np.zeros((length + 1, length + 1), dtype=np.uint8)
    level[1:] = np.minimum(LEVELS * c // n, LEVELS)
    heavy = np.full(length + 1, length + 1, dtype=np.int64)
    heavy[1:] = np.argmax(c / n >= phi, axis=1)
    return level, heavy


def _reduce(tokens: Tokens, spec: SummarySpec, each: Each) -> tuple[NDArray[np.float64], Draft]:
    rows = np.zeros((tokens.responses, kernel.RESPONSE_COLUMNS))
    draft, *others = each(partial(_reduced, tokens, spec, rows), _parts(tokens))
    for other in others:
        draft.join(other)
    return rows, draft


def _parts(tokens: Tokens) -> tuple[slice, ...]:
    """Responses to be reduced together; where a shard is cut depends on nothing but the shard."""
    borders, whole = tokens.offset_R1, slice(0, tokens.responses)
    middle = int(np.searchsorted(borders, borders[-1] // 2)) if borders[-1] >= LARGE_SHARD else 0
    return (slice(0, middle), slice(middle, whole.stop)) if 0 < middle < whole.stop else (whole,)


def _reduced(tokens: Tokens, spec: SummarySpec, rows: NDArray[np.float64], part: slice) -> Draft:
    """What the kernel says of some responses of a shard; their own go into `rows`."""
    draft = Draft.blank(spec)
    raw = np.zeros((3, RAW_BINS), dtype=np.uint32)
    counts = np.zeros(kernel.CALL_COUNTS, dtype=np.int64)
    families = np.zeros((len(FAMILIES), kernel.FAMILY_COUNTS), dtype=np.int64)
    sums, regions = np.zeros(kernel.CALL_SUMS), np.zeros(REGION_SUMS)
    bounds = np.stack([draft.minima[:3], draft.maxima[:3]])
    histograms = draft.histograms
    kernel.reduce_shard(
        locked(tokens.gap_T),
        locked(tokens.state_T),
        locked(tokens.offset_R1[part.start : part.stop + 1]),
        locked(tokens.advantage_R[part]),
        locked(tokens.advantage_T),
        spec.segment,
        np.array([spec.near_zero, spec.tau_ana, spec.deep_tail]),
        *segment_tables(spec.segment, spec.phi),
        raw,
        histograms["segment"],
        histograms["pair"],
        histograms["worst"],
        counts,
        families,
        sums,
        regions,
        bounds,
        rows[part],
    )
    histograms["gap"] += fold(raw)
    draft.minima[:3], draft.maxima[:3] = bounds
    add_kernel_counts(counts, families, regions, draft)
    with np.errstate(over="ignore", invalid="ignore"):  # again: this may be a thread of its own
        add_kernel_sums(sums, regions, draft)
    if tokens.learner_T is not None and tokens.sampler_T is not None:
        add_probabilities(tokens, part, draft)
    return draft
