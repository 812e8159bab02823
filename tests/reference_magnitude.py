"""The oracle's magnitude family: what other tools already report, on plain Python floats.

With delta = log pi_l - log pi_s and rho = exp(delta): means, extremes, divergences, effective sample size, shares of
extreme ratios; per response the perplexity and product ratios; with both log-probs the probability differences.
An exponent above 700 saturates there, so nothing printed is infinite; nothing else is clamped. Means are taken over
valid tokens (or over responses that hold one) and are None when there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Protocol

CEILING = 700.0
WEIGHT_CEILING = 300.0


class ValidToken(Protocol):
    @property
    def delta(self) -> float: ...
    @property
    def learner(self) -> float | None: ...
    @property
    def sampler(self) -> float | None: ...


def exp(x: float) -> float:
    return math.exp(min(x, CEILING))


def mean(values: Iterable[float]) -> float | None:
    kept = list(values)
    return math.fsum(v / len(kept) for v in kept) if kept else None


def k3(x: float) -> float:
    """exp(x) - 1 - x without the cancellation near 0."""
    if abs(x) < 0.5:
        return math.fsum(x**k / math.factorial(k) for k in range(2, 22))
    return exp(x) - 1 - x


def standard_deviation(values: Sequence[float]) -> float | None:
    if not values:
        return None
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / len(values))


def effective_share(deltas: Sequence[float]) -> float | None:
    """(sum w)^2 / (n sum w^2), relative to the largest weight so that nothing overflows or vanishes."""
    if not deltas:
        return None
    capped = [max(min(d, WEIGHT_CEILING), -WEIGHT_CEILING) for d in deltas]
    largest = max(capped)
    weights = [math.exp(d - largest) for d in capped]
    return math.fsum(weights) ** 2 / (len(weights) * math.fsum(w * w for w in weights))


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    if not xs:
        return None
    mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    xx = math.fsum((x - mean_x) ** 2 for x in xs)
    yy = math.fsum((y - mean_y) ** 2 for y in ys)
    xy = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return xy / math.sqrt(xx * yy) if xx > 0 and yy > 0 else None


def magnitude(responses: Sequence[Sequence[ValidToken]], near_zero: float) -> dict[str, float | None]:
    """`responses` holds the valid tokens of each response."""
    deltas = [t.delta for tokens in responses for t in tokens]
    per_token = _of_tokens(deltas, near_zero)
    return per_token | _of_responses([r for r in responses if r]) | _of_log_probs(responses)


def _of_tokens(deltas: Sequence[float], near_zero: float) -> dict[str, float | None]:
    return {
        "delta_mean": mean(deltas),
        "delta_std": standard_deviation(deltas),
        "delta_min": min(deltas, default=None),
        "delta_max": max(deltas, default=None),
        "abs_delta_mean": mean(map(abs, deltas)),
        "abs_delta_max": max(map(abs, deltas), default=None),
        "near_zero_fraction": mean(float(abs(d) < near_zero) for d in deltas),
        "mismatch_energy": mean(d * d / 2 for d in deltas),
        "kl_k1": mean(-d for d in deltas),
        "kl_k3": mean(map(k3, deltas)),
        "kl_k3_reverse": mean(k3(-d) for d in deltas),
        "mult_prob_error": mean(exp(abs(d)) for d in deltas),
        "chi2_token": mean(math.expm1(min(2 * d, CEILING)) for d in deltas),
        "ess_fraction": effective_share(deltas),
        "rho_mean": mean(map(exp, deltas)),
        "rho_max": max(map(exp, deltas), default=None),
        "frac_rho_gt_2": mean(float(exp(d) > 2) for d in deltas),
        "frac_rho_lt_0.5": mean(float(exp(d) < 0.5) for d in deltas),
        "frac_rho_lt_1e-4": mean(float(exp(d) < 1e-4) for d in deltas),
    }


def _of_responses(responses: Sequence[Sequence[ValidToken]]) -> dict[str, float | None]:
    sums = sorted(math.fsum(t.delta for t in tokens) for tokens in responses)
    ppl = [-math.fsum(t.delta for t in tokens) / len(tokens) for tokens in responses]
    out: dict[str, float | None] = {
        "log_ppl_diff_mean": mean(ppl),
        "log_ppl_diff_abs_mean": mean(map(abs, ppl)),
        "log_ppl_diff_max": max(ppl, default=None),
        "log_ppl_diff_min": min(ppl, default=None),
        "geo_ratio": mean(exp(-x) for x in ppl),
    }
    for name, q in (("q05", "0.05"), ("q50", "0.5"), ("q95", "0.95")):
        rank = max(math.ceil(Fraction(q) * len(sums)), 1)
        out[f"prod_ratio_{name}"] = exp(sums[rank - 1]) if sums else None
    return out


def _of_log_probs(responses: Sequence[Sequence[ValidToken]]) -> dict[str, float | None]:
    given = [[t for t in tokens if t.learner is not None and t.sampler is not None] for tokens in responses]
    learner = [[t.learner for t in tokens if t.learner is not None] for tokens in given if tokens]
    sampler = [[t.sampler for t in tokens if t.sampler is not None] for tokens in given if tokens]
    p_learner = [exp(x) for xs in learner for x in xs]
    p_sampler = [exp(x) for xs in sampler for x in xs]
    differences = [abs(a - b) for a, b in zip(p_learner, p_sampler, strict=True)]
    return {
        "prob_abs_diff_mean": mean(differences),
        "prob_abs_diff_max": max(differences, default=None),
        "prob_pearson": correlation(p_learner, p_sampler),
        "ppl_learner": mean(exp(-math.fsum(xs) / len(xs)) for xs in learner),
        "ppl_sampler": mean(exp(-math.fsum(xs) / len(xs)) for xs in sampler),
    }
