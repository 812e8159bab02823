"""What a reduction made elsewhere leaves, brought into a StepSummary: the numpy half of reducing at the edge.

`Reduced` holds the kernel's own arrays, filled by the same rules on the training device. All that needs a whole
response, a group or a table of names is booked here, by the code that books the kernel's. So a summary reduced there
has the counts of one reduced here, bit for bit, but where a count hangs on a float64 sum (a response's mean gap against
a threshold) that lies within its last bits of it; sums agree to 1e-6.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triage_monitor.errors import InputError
from triage_monitor.summary import kernel
from triage_monitor.summary.booking import add_groups, add_kernel_counts, add_kernel_sums, add_responses, add_told
from triage_monitor.summary.inputs import ArrayLike, per_response
from triage_monitor.summary.kernel_segment import MAX_EXPONENT
from triage_monitor.summary.probabilities import PROBABILITY_SUMS
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.summary.step import FAMILIES, LAGS, StepSummary
from triage_monitor.summary.writable import Draft

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Reduced:
    """R responses. `counts`, `families` (its last two columns 0), `sums`, `regions`, `bounds` [2, 3] and `rows` [R, .]
    are the kernel's; `gap`, `segment`, `pair` histograms of the summary's shapes; `worst` [R, 3] the level of the worst
    eligible segment, -1 without one; `heavy` [R, 3] whether there was a heavy one; `logprobs` [R, 2] sums of learner
    and sampler log-probs, with `probabilities` and `largest` difference, None when only gaps were given; `lags` None
    without versions, or tokens, mass A- and mass A+ of each bucket, and the summed lag."""

    counts: Ints
    families: Ints
    sums: Floats
    regions: Floats
    bounds: Floats
    rows: Floats
    gap: Ints
    segment: Ints
    pair: Ints
    worst: Ints
    heavy: NDArray[np.bool_]
    logprobs: Floats | None = None
    probabilities: Floats | None = None
    largest: float | None = None
    lags: Floats | None = None


def summary_of(
    reduced: Reduced,
    spec: SummarySpec,
    *,
    groups: ArrayLike = None,
    rewards: ArrayLike = None,
    grad_norms: ArrayLike = None,
    padding_rows: int = 0,
) -> StepSummary:
    """`groups`, `rewards`, `grad_norms` [R], as `summarize` takes them. Raises InputError naming the field."""
    draft = Draft.blank(spec)
    responses = len(reduced.rows)
    group_R = per_response(groups, "groups", responses, np.int64)
    reward_R = per_response(rewards, "rewards", responses, np.float64)
    norm_R = per_response(grad_norms, "grad_norm", responses, np.float64)
    draft.minima[:3], draft.maxima[:3] = reduced.bounds
    for name in ("gap", "segment", "pair"):
        _add_histogram(name, getattr(reduced, name), draft)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # absurd inputs end as absent indicators
        add_kernel_counts(reduced.counts, _closed_families(reduced, spec, draft), reduced.regions, draft)
        add_kernel_sums(reduced.sums, reduced.regions, draft)
        add_responses(reduced.rows, draft)
        add_groups(reduced.rows, group_R, draft)
        if reduced.logprobs is not None:
            _add_probabilities(reduced, reduced.logprobs, draft)
    add_told(reward_R, norm_R, draft)
    if reduced.lags is not None:
        _add_lags(reduced.lags, draft)
    draft.count("padding_rows", padding_rows)
    return draft.summary()


def _add_histogram(name: str, cells: Ints, draft: Draft) -> None:
    histogram = draft.histograms[name]
    if cells.shape != histogram.shape:
        raise InputError("summary_shape", f"{name} is {cells.shape} where the spec has {histogram.shape}", column=name)
    histogram += cells


def _closed_families(reduced: Reduced, spec: SummarySpec, draft: Draft) -> Ints:
    """Responses booked by their worst segment, as the kernel's `close_response` does."""
    families = reduced.families.copy()
    booked = reduced.worst[:, 0] >= 0
    rows, worst, heavy = reduced.rows[booked], reduced.worst[booked], reduced.heavy[booked]
    masked = np.abs(rows[:, kernel.GAP_SUM] / rows[:, kernel.VALID]) < spec.near_zero
    for f in range(len(FAMILIES)):
        np.add.at(draft.histograms["worst"][f], (masked.astype(np.int64), worst[:, f]), 1)
        families[f, kernel.F_RESPONSES] += int(heavy[:, f].sum())
        families[f, kernel.F_MASKED] += int((heavy[:, f] & masked).sum())
    return families


def _add_probabilities(reduced: Reduced, logprobs: Floats, draft: Draft) -> None:
    assert reduced.probabilities is not None and reduced.largest is not None
    lengths = reduced.rows[:, kernel.VALID]
    heard = lengths > 0
    for side, total in zip(("learner", "sampler"), logprobs.T, strict=True):
        mean = total[heard] / lengths[heard]
        draft.add(f"ppl_{side}", float(np.exp(np.minimum(-mean, MAX_EXPONENT)).sum()))
    for name, amount in zip(PROBABILITY_SUMS, reduced.probabilities, strict=True):
        draft.add(name, float(amount))
    valid = int(lengths.sum())
    draft.bound("prob_abs_diff", np.array([reduced.largest] if valid else []))
    draft.count("logprob_tokens", valid)
    draft.count("logprob_responses", int(heard.sum()))


def _add_lags(lags: Floats, draft: Draft) -> None:
    *buckets, weighted = np.split(lags, [3, 6, 9])
    for name, (tokens, negative, positive) in zip(LAGS, buckets, strict=True):
        draft.count(f"lag_tokens_{name}", int(tokens))
        draft.add(f"lag_mass_a_neg_{name}", float(negative))
        draft.add(f"lag_mass_a_pos_{name}", float(positive))
    draft.add("lag_tokens_weighted", float(weighted[0]))
