"""The magnitude family (estimands section 5): what the frameworks already report, under one set of names and signs.

delta is learner minus sampler; sums of exponentials are kept in float64 and saturate at exp(700), the tokens counted.
Per-response values are means over responses with at least one valid token.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from triage_monitor.judge.table import Indicator, tokens, undefined
from triage_monitor.summary.sketch import quantile
from triage_monitor.summary.step import StepSummary

NOT_OBSERVABLE_TOKENS = 1000
NOT_OBSERVABLE_SHARE = 0.999
MAX_EXPONENT = 700.0


def _mean(name: str, offset: float = 0.0, sign: float = 1.0) -> Callable[[StepSummary], float]:
    return lambda summary: _published(sign * summary.total(name) / tokens(summary) + offset)


def _published(value: float) -> float:
    """A saturated sum may overflow when many saturated tokens add up; the largest float stands for it."""
    return math.copysign(sys.float_info.max, value) if math.isinf(value) else value


def _share(name: str) -> Callable[[StepSummary], float]:
    return lambda summary: summary.count(name) / tokens(summary)


def delta_min(summary: StepSummary) -> float:
    tokens(summary)
    return min(summary.minimum(plane) for plane in ("gap_neg", "gap_pos", "gap_none"))


def delta_max(summary: StepSummary) -> float:
    tokens(summary)
    return max(summary.maximum(plane) for plane in ("gap_neg", "gap_pos", "gap_none"))


def delta_std(summary: StepSummary) -> float:
    n = tokens(summary)
    mean = summary.total("gap") / n
    return math.sqrt(max(summary.total("gap_sq") / n - mean * mean, 0.0))


def ess_fraction(summary: StepSummary) -> float:
    n = tokens(summary)
    weight = summary.total("weight")
    return (weight / n) * (weight / summary.total("weight_sq"))


def _exp(value: float) -> float:
    return math.exp(min(value, MAX_EXPONENT))


def _response(name: str, sign: float = 1.0) -> Callable[[StepSummary], float]:
    def compute(summary: StepSummary) -> float:
        tokens(summary)
        return sign * summary.total(name) / summary.count("responses_with_tokens")

    return compute


def _product(q: float) -> Callable[[StepSummary], float]:
    def compute(summary: StepSummary) -> float:
        tokens(summary)
        low, high = summary.minimum("response_gap"), summary.maximum("response_gap")
        total = quantile(summary.histograms["response"], q, low, high)
        assert total is not None
        return _exp(total)

    return compute


def _logprob(name: str, per: str) -> Callable[[StepSummary], float]:
    return lambda summary: summary.total(name) / (summary.count(per) or undefined("no_logprobs"))


def prob_abs_diff_max(summary: StepSummary) -> float:
    if not summary.count("logprob_tokens"):
        undefined("no_logprobs")
    return summary.maximum("prob_abs_diff")


def prob_pearson(summary: StepSummary) -> float:
    n = summary.count("logprob_tokens") or undefined("no_logprobs")
    x, y = summary.total("prob_learner"), summary.total("prob_sampler")
    spread_x = summary.total("prob_learner_sq") - x * x / n
    spread_y = summary.total("prob_sampler_sq") - y * y / n
    # below the rounding of the sums there is no variance to speak of
    floor = 1e-14
    if spread_x <= floor * summary.total("prob_learner_sq") or spread_y <= floor * summary.total("prob_sampler_sq"):
        undefined("no_variance")
    return (summary.total("prob_cross") - x * y / n) / math.sqrt(spread_x * spread_y)


def nonfinite_fraction(summary: StepSummary) -> float:
    broken = sum(summary.count(kind) for kind in ("nan", "pos_inf", "neg_inf", "missing"))
    return broken / (summary.count("tokens") or undefined("no_tokens"))


def missing_fraction(summary: StepSummary) -> float:
    return summary.count("missing") / (summary.count("tokens") or undefined("no_tokens"))


def not_observable(summary: StepSummary) -> float:
    n = tokens(summary)
    exact = summary.count("gap_zero")
    return 1.0 if n >= NOT_OBSERVABLE_TOKENS and exact >= NOT_OBSERVABLE_SHARE * n else 0.0


def _of_responses(name: str) -> Callable[[StepSummary], float]:
    return lambda summary: summary.count(name) / (summary.count("responses_with_tokens") or undefined("no_tokens"))


def reward_mean(summary: StepSummary) -> float:
    return summary.total("reward") / (summary.count("reward_responses") or undefined("no_reward"))


def grad_norm(summary: StepSummary) -> float:
    reports = summary.count("grad_norm_responses") or undefined("no_grad_norm")
    return math.exp(summary.total("log_grad_norm") / reports)


def _row(family: str, name: str, unit: str, help: str, compute: Callable[[StepSummary], float]) -> Indicator:
    return Indicator(name, unit, help, family, compute)


MARGINAL_ROWS: tuple[Indicator, ...] = (
    _row("marginal", "near_zero_fraction", "share", "Share of tokens with abs(gap) below 0.05", _share("near_zero")),
    _row("marginal", "mismatch_energy", "nats2", "Mean of gap**2 / 2", _mean("gap_sq", sign=0.5)),
    _row("marginal", "delta_min", "nats", "Smallest gap, exact", delta_min),
    _row("marginal", "delta_max", "nats", "Largest gap, exact", delta_max),
)
MAGNITUDE_ROWS: tuple[Indicator, ...] = (
    _row("magnitude", "delta_mean", "nats", "Mean gap", _mean("gap")),
    _row("magnitude", "abs_delta_mean", "nats", "Mean abs(gap)", _mean("gap_abs")),
    _row("magnitude", "abs_delta_max", "nats", "Largest abs(gap)", lambda s: max(-delta_min(s), delta_max(s))),
    _row("magnitude", "delta_std", "nats", "Standard deviation of the gap (population form)", delta_std),
    _row("magnitude", "kl_k1", "nats", "-mean gap: estimates KL(sampler, learner)", _mean("gap", sign=-1.0)),
    _row("magnitude", "kl_k3", "nats", "Mean of exp(gap) - 1 - gap", _mean("k3")),
    _row("magnitude", "kl_k3_reverse", "nats", "Mean of exp(-gap) - 1 + gap", _mean("k3_reverse")),
    _row("magnitude", "mult_prob_error", "ratio", "Mean of exp(abs(gap)); 1 is perfect", _mean("mult_excess", 1.0)),
    _row("magnitude", "chi2_token", "ratio", "Mean of exp(2 gap) - 1", _mean("chi2")),
    _row("magnitude", "ess_fraction", "share", "Effective sample size of the weights exp(gap), over n", ess_fraction),
    _row("magnitude", "rho_mean", "ratio", "Mean of exp(gap)", _mean("rho")),
    _row("magnitude", "rho_max", "ratio", "Largest exp(gap)", lambda s: _exp(delta_max(s))),
    _row("magnitude", "frac_rho_gt_2", "share", "Share of tokens with exp(gap) above 2", _share("rho_above_2")),
    _row("magnitude", "frac_rho_lt_0.5", "share", "Share of tokens with exp(gap) below 1/2", _share("rho_below_half")),
    _row("magnitude", "frac_rho_lt_1e-4", "share", "Share of tokens with exp(gap) below 1e-4", _share("rho_below_1e4")),
    _row(
        "response",
        "log_ppl_diff_mean",
        "nats",
        "Mean over responses of -mean gap",
        _response("response_mean_gap", -1.0),
    ),
    _row(
        "response",
        "log_ppl_diff_abs_mean",
        "nats",
        "Mean over responses of abs(mean gap)",
        _response("response_mean_gap_abs"),
    ),
    _row(
        "response",
        "log_ppl_diff_max",
        "nats",
        "Largest -mean gap of a response",
        lambda s: (tokens(s), -s.minimum("response_mean_gap"))[1],
    ),
    _row(
        "response",
        "log_ppl_diff_min",
        "nats",
        "Smallest -mean gap of a response",
        lambda s: (tokens(s), -s.maximum("response_mean_gap"))[1],
    ),
    _row("response", "geo_ratio", "ratio", "Mean over responses of exp(mean gap)", _response("geo_ratio")),
    *(
        _row(
            "response",
            f"prod_ratio_q{q:02}",
            "ratio",
            f"Quantile {q / 100} over responses of exp(summed gap)",
            _product(q / 100),
        )
        for q in (5, 50, 95)
    ),
    _row(
        "response",
        "outlier_response_fraction",
        "share",
        "Share of responses with abs(mean gap) above 1",
        _of_responses("outlier_responses"),
    ),
    _row(
        "response",
        "zero_advantage_fraction",
        "share",
        "Share of responses whose advantage is 0",
        _of_responses("zero_advantage_responses"),
    ),
    _row(
        "probability",
        "prob_abs_diff_mean",
        "share",
        "Mean abs difference of the probabilities",
        _logprob("prob_abs_diff", "logprob_tokens"),
    ),
    _row("probability", "prob_abs_diff_max", "share", "Largest abs difference of the probabilities", prob_abs_diff_max),
    _row("probability", "prob_pearson", "ratio", "Correlation of learner and sampler probabilities", prob_pearson),
    _row(
        "probability",
        "ppl_learner",
        "ratio",
        "Mean over responses of the learner's perplexity",
        _logprob("ppl_learner", "logprob_responses"),
    ),
    _row(
        "probability",
        "ppl_sampler",
        "ratio",
        "Mean over responses of the sampler's perplexity",
        _logprob("ppl_sampler", "logprob_responses"),
    ),
)
INTEGRITY_ROWS: tuple[Indicator, ...] = (
    _row(
        "integrity",
        "nonfinite_fraction",
        "share",
        "Share of tokens without a finite gap: not a number, infinite or missing",
        nonfinite_fraction,
    ),
    _row("integrity", "missing_fraction", "share", "Share of tokens the engine gave no value for", missing_fraction),
    _row(
        "integrity",
        "not_observable",
        "none",
        "1 when learner and sampler are the same array: no verdict",
        not_observable,
    ),
    _row("trainer", "reward_mean", "none", "Mean reward of the responses, when sent", reward_mean),
    _row("trainer", "grad_norm", "none", "Gradient norm before clipping, when sent: geometric mean", grad_norm),
)
