"""`summarize`: the arrays of one shard of one update -> StepSummary.

The kernel books what a token or a segment decides; here follows what needs a whole response or a group: the sampling
units of the interval, sequence-level ratios, rewards, staleness, and, when both log-probs are given, probabilities.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from triage_monitor.errors import InputError
from triage_monitor.summary import kernel
from triage_monitor.summary.inputs import Array, ArrayLike, Tokens, per_response, per_response_or_token, tokens_of
from triage_monitor.summary.kernel_segment import REGION_SUMS
from triage_monitor.summary.probabilities import add_probabilities
from triage_monitor.summary.sketch import RAW_BINS, bin_of, fold
from triage_monitor.summary.spec import DEFAULT_SPEC, SummarySpec
from triage_monitor.summary.staleness import add_staleness
from triage_monitor.summary.step import FAMILIES, LEVELS, REGIONS, StepSummary
from triage_monitor.summary.writable import Draft

MAX_SHARD_TOKENS = (1 << 32) - 1
OUTLIER_MEAN_GAP = 1.0  # nats; a response whose every token is off by this is broken, not quantised (C19)


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
) -> StepSummary:
    """Summary of R responses with T token positions (estimands sections 1 to 6).

    gap, or both log-probs: [T] with `offsets` [R + 1], or a sequence of R one-dimensional arrays; nats, natural log,
    taken before any clamp, truncation or rejection. advantages: [R] or [T]. mask: [T], true where the policy generated
    a trained token. missing: [T], true where such a token came back without a value. groups: [R] whole numbers naming
    the prompt, to cluster the interval. policy_versions: [R] or [T], the version that sampled; `current_version` is
    the learner's, by default the largest given. rewards: [R], NaN where unknown. grad_norm: the update's gradient norm
    before clipping, or [R]; only finite ones above 0 count.

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
    draft = Draft.blank(spec)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # absurd inputs end as absent indicators
        rows = _reduce(tokens, spec, draft)
        _add_responses(rows, draft)
        _add_groups(rows, group_R, draft)
    if reward_R is not None:
        known = np.isfinite(reward_R)
        draft.count("reward_responses", int(known.sum()))
        draft.add("reward", float(reward_R[known].sum()))
    if norm_R is not None:
        known = np.isfinite(norm_R) & (norm_R > 0)
        draft.count("grad_norm_responses", int(known.sum()))
        draft.add("log_grad_norm", float(np.log(norm_R[known]).sum()))
    if version_T is not None:
        add_staleness(tokens, version_T, current_version, draft)
    if tokens.learner_T is not None and tokens.sampler_T is not None:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            add_probabilities(tokens, draft)
    draft.count("padding_rows", padding_rows)
    return draft.summary()


@lru_cache(maxsize=32)
def _tables(length: int, phi: float) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """level_of[n, c] = floor(LEVELS c / n), and heavy_from[n], the fewest tail tokens with c / n >= phi."""
    n = np.arange(1, length + 1)[:, None]
    c = np.arange(length + 1)[None, :]
    level = np.zeros((length + 1, length + 1), dtype=np.uint8)
    level[1:] = np.minimum(LEVELS * c // n, LEVELS)
    heavy = np.full(length + 1, length + 1, dtype=np.int64)
    heavy[1:] = np.argmax(c / n >= phi, axis=1)
    return level, heavy


def _read_only(array: Array) -> Array:
    """Views of received bytes are read-only; with every input so, the kernel is compiled once a type, not twice."""
    view = array.view()
    view.flags.writeable = False
    return view


def _reduce(tokens: Tokens, spec: SummarySpec, draft: Draft) -> NDArray[np.float64]:
    raw = np.zeros((3, RAW_BINS), dtype=np.uint32)
    counts = np.zeros(kernel.CALL_COUNTS, dtype=np.int64)
    families = np.zeros((len(FAMILIES), kernel.FAMILY_COUNTS), dtype=np.int64)
    sums, regions = np.zeros(kernel.CALL_SUMS), np.zeros(REGION_SUMS)
    bounds = np.stack([draft.minima[:3], draft.maxima[:3]])
    rows = np.zeros((tokens.responses, kernel.RESPONSE_COLUMNS))
    histograms = draft.histograms
    kernel.reduce_shard(
        _read_only(tokens.gap_T),
        _read_only(tokens.state_T),
        _read_only(tokens.offset_R1),
        _read_only(tokens.advantage_R),
        _read_only(tokens.advantage_T),
        spec.segment,
        np.array([spec.near_zero, spec.tau_ana, spec.deep_tail]),
        *_tables(spec.segment, spec.phi),
        raw,
        histograms["segment"],
        histograms["pair"],
        histograms["worst"],
        counts,
        families,
        sums,
        regions,
        bounds,
        rows,
    )
    histograms["gap"] += fold(raw)
    draft.minima[:3], draft.maxima[:3] = bounds
    _add_kernel_counts(counts, families, regions, draft)
    _add_kernel_sums(sums, regions, draft)
    return rows


# names of the kernel's arrays, in its order
_CALL_COUNTS: tuple[str, ...] = (
    "missing",
    "nan",
    "pos_inf",
    "neg_inf",
    "gap_negative",
    "gap_positive",
    "near_zero",
    "segments",
    "eligible_segments",
    "adjacent_segments",
    "rho_above_2",
    "rho_below_half",
    "rho_below_1e4",
    "overflow_tokens",
    "tail_tokens_all",
)
_FAMILY_COUNTS: tuple[str, ...] = (
    "heavy_segments",
    "adjacent_heavy_first",
    "adjacent_heavy_both",
    "heavy_responses",
    "masked_heavy_responses",
)
_CALL_SUMS: tuple[str, ...] = (
    "gap",
    "gap_abs",
    "gap_sq",
    "k3",
    "k3_reverse",
    "mult_excess",
    "chi2",
    "rho",
    "weight",
    "weight_sq",
)
_REGION_SUMS: tuple[str, ...] = (
    *(f"mass_{region}" for region in REGIONS),
    "mass_advantage_negative",
    "mass_advantage_positive",
    "mass_total",
    "tail_mass_a_neg",
    "tail_mass_a_pos",
    *(f"pressure_{region}" for region in REGIONS),
)
_REGION_COUNTS: tuple[str, ...] = (
    "advantage_negative",
    "advantage_positive",
    "deep_neg",
    "deep_pos",
    "tail_tokens_a_neg",
    "tail_tokens_a_pos",
)


def _add_kernel_counts(
    counts: NDArray[np.int64], families: NDArray[np.int64], regions: NDArray[np.float64], draft: Draft
) -> None:
    for name, value in zip(_CALL_COUNTS, counts, strict=True):
        draft.count(name, int(value))
    for family, row in zip(FAMILIES, families, strict=True):
        for label, value in zip(_FAMILY_COUNTS, row, strict=True):
            draft.count(f"{label}_{family}", int(value))
    for name, amount in zip(_REGION_COUNTS, regions[len(_REGION_SUMS) :], strict=True):
        draft.count(name, int(amount))


def _add_kernel_sums(sums: NDArray[np.float64], regions: NDArray[np.float64], draft: Draft) -> None:
    values = sums.copy()
    values[kernel.S_EXCESS] += sums[kernel.S_ABS]
    for name, value in zip(_CALL_SUMS, values, strict=True):
        draft.add(name, float(value))
    for name, value in zip(_REGION_SUMS, regions, strict=False):
        draft.add(name, float(value))


def _add_responses(rows: NDArray[np.float64], draft: Draft) -> None:
    present, valid = rows[:, kernel.TOKENS], rows[:, kernel.VALID]
    heard = valid > 0
    draft.count("responses", len(rows))
    draft.count("tokens", int(present.sum()))
    draft.count("valid_tokens", int(valid.sum()))
    draft.count(
        "gap_zero", draft.counted("valid_tokens") - draft.counted("gap_negative") - draft.counted("gap_positive")
    )
    draft.count("empty_responses", int((present == 0).sum()))
    draft.count("unusable_responses", int(((present > 0) & ~heard).sum()))
    draft.count("unusable_advantage", int((rows[:, kernel.UNUSABLE_ADVANTAGE] > 0).sum()))
    draft.count("zero_advantage_responses", int((rows[heard, kernel.ZERO_ADVANTAGE] > 0).sum()))
    draft.count("responses_with_tokens", int(heard.sum()))
    total = rows[heard, kernel.GAP_SUM]
    mean = total / valid[heard]
    draft.add("response_mean_gap", float(mean.sum()))
    draft.add("response_mean_gap_abs", float(np.abs(mean).sum()))
    draft.add("geo_ratio", float(np.exp(np.minimum(mean, 700.0)).sum()))
    draft.count("outlier_responses", int((np.abs(mean) > OUTLIER_MEAN_GAP).sum()))
    draft.bound("response_mean_gap", mean)
    draft.bound("response_gap", total)
    np.add.at(draft.histograms["response"], bin_of(total), 1)
    _add_units("unit", rows[heard, kernel.MASS_A_NEG], rows[heard, kernel.MASS_A_POS], draft)
    draft.count("units", int(heard.sum()))


def _add_groups(rows: NDArray[np.float64], group_R: Array | None, draft: Draft) -> None:
    if group_R is None:
        return
    heard = rows[:, kernel.VALID] > 0
    names, place = np.unique(group_R[heard], return_inverse=True)
    x, y = np.zeros(names.size), np.zeros(names.size)
    np.add.at(x, place, rows[heard, kernel.MASS_A_NEG])
    np.add.at(y, place, rows[heard, kernel.MASS_A_POS])
    _add_units("group", x, y, draft)
    draft.count("groups", int(names.size))
    draft.count("grouped_responses", int(heard.sum()))


def _add_units(unit: str, x: NDArray[np.float64], y: NDArray[np.float64], draft: Draft) -> None:
    draft.add(f"{unit}_xx", float(x @ x))
    draft.add(f"{unit}_yy", float(y @ y))
    draft.add(f"{unit}_xy", float(x @ y))
