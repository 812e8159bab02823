"""The arrays a reduction leaves -> the draft of a summary: what needs a whole response or group, under its names.

A reduction is the kernel here, or its torch form on the training device (trainer/edge_reduce.py); both leave arrays of
one order, so that everything after them is the same arithmetic on the same numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triage_monitor.summary import kernel
from triage_monitor.summary.inputs import Array
from triage_monitor.summary.sketch import bin_of
from triage_monitor.summary.step import FAMILIES, FAMILY_COUNTS, REGIONS, TOKEN_SUMS
from triage_monitor.summary.writable import Draft

OUTLIER_MEAN_GAP = 1.0  # nats; a response whose every token is off by this is broken, not quantised (C19)

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


def add_kernel_counts(
    counts: NDArray[np.int64], families: NDArray[np.int64], regions: NDArray[np.float64], draft: Draft
) -> None:
    for name, value in zip(_CALL_COUNTS, counts, strict=True):
        draft.count(name, int(value))
    for family, row in zip(FAMILIES, families, strict=True):
        for label, value in zip(FAMILY_COUNTS, row, strict=True):
            draft.count(f"{label}_{family}", int(value))
    for name, amount in zip(_REGION_COUNTS, regions[len(_REGION_SUMS) :], strict=True):
        draft.count(name, int(amount))


def add_kernel_sums(sums: NDArray[np.float64], regions: NDArray[np.float64], draft: Draft) -> None:
    values = sums.copy()
    values[kernel.S_EXCESS] += sums[kernel.S_ABS]
    for name, value in zip(TOKEN_SUMS, values, strict=True):
        draft.add(name, float(value))
    for name, value in zip(_REGION_SUMS, regions, strict=False):
        draft.add(name, float(value))


def add_responses(rows: NDArray[np.float64], draft: Draft) -> None:
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


def add_groups(rows: NDArray[np.float64], group_R: Array | None, draft: Draft) -> None:
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


def add_told(reward_R: Array | None, norm_R: Array | None, draft: Draft) -> None:
    """What the trainer says of its responses, where it is known."""
    if reward_R is not None:
        known = np.isfinite(reward_R)
        draft.count("reward_responses", int(known.sum()))
        draft.add("reward", float(reward_R[known].sum()))
    if norm_R is not None:
        known = np.isfinite(norm_R) & (norm_R > 0)
        draft.count("grad_norm_responses", int(known.sum()))
        draft.add("log_grad_norm", float(np.log(norm_R[known]).sum()))
