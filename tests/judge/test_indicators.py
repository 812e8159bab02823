"""Indicators from merged summaries: every name, values worked out by hand, reasons, and ratios of sums."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from reference import QUANTILES

from triage_monitor import indicators, summarize
from triage_monitor.judge.indicators import INDICATORS, update_report
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.summary.step import StepSummary, merge_all

FAMILY = (
    "tail_token_fraction", "heavy_segment_fraction", "top5_tail_share", "tail_concentration", "persistence",
    "masked_response_fraction",
)  # fmt: skip
# Copied from the definitions by hand: dashboards and alert rules rely on these names.
PROMISED = {
    "mass_a_neg", "mass_a_pos", "mass_c_neg", "mass_c_pos", "rho_asym", "rho_asym_tail", "log_rho_se",
    "advantage_mass_ratio", "sign_odds_blind", "rho_excess", "rho_pressure", "deep_tail_neg", "deep_tail_pos",
    "amplification_balance", "mismatch_energy", "asym_share", "near_zero_fraction", "nonfinite_fraction",
    "not_observable", "delta_mean", "abs_delta_mean", "abs_delta_max", "delta_std", "kl_k1", "kl_k3", "kl_k3_reverse",
    "mult_prob_error", "chi2_token", "ess_fraction", "rho_mean", "rho_max", "frac_rho_gt_2", "frac_rho_lt_0.5",
    "frac_rho_lt_1e-4", "log_ppl_diff_mean", "log_ppl_diff_abs_mean", "log_ppl_diff_max", "log_ppl_diff_min",
    "geo_ratio", "prod_ratio_q05", "prod_ratio_q50", "prod_ratio_q95", "prob_abs_diff_mean", "prob_abs_diff_max",
    "prob_pearson", "ppl_learner", "ppl_sampler",
    *(f"{name}{side}" for name in FAMILY for side in ("", "_a_neg", "_a_pos")),
}  # fmt: skip


def summary_of(gaps: list[list[float]], advantages: list[float], spec: SummarySpec | None = None) -> StepSummary:
    return summarize(
        gap=[np.asarray(g, dtype="float64") for g in gaps],
        advantages=np.asarray(advantages, dtype="float64"),
        spec=spec or SummarySpec(),
    )


def test_every_promised_name_is_in_the_table_once() -> None:
    names = [item.name for item in INDICATORS]
    assert len(names) == len(set(names))
    assert not PROMISED - set(names)


def test_every_row_of_the_table_says_what_it_is() -> None:
    assert not [item.name for item in INDICATORS if not (item.help and item.unit and item.family)]


def test_values_are_exactly_those_of_the_table() -> None:
    found = indicators(summary_of([[-0.1, 0.2]], [-1.0]))
    assert set(found) == {item.name for item in INDICATORS}


def test_direction_by_hand() -> None:
    """A = -2 on [-0.1, -2, 0.3, 0]; A = 1 on [0.4, -0.02, 0.01, 0.5]."""
    found = indicators(summary_of([[-0.1, -2.0, 0.3, 0.0], [0.4, -0.02, 0.01, 0.5]], [-2.0, 1.0]))
    want = {
        "mass_a_neg": 4 / 12,
        "mass_a_pos": 3 / 12,
        "mass_c_neg": 2 / 12,
        "mass_c_pos": 1 / 12,
        "rho_asym": 4 / 3,
        "asym_share": 4 / 7,
        "rho_asym_tail": 4 / 2,
        "advantage_mass_ratio": 8 / 4,
        "sign_odds_blind": 3 / 4,
        "rho_excess": (4 / 3) / (2 * 3 / 4),
        "rho_pressure": 4.2 / 0.91,
        "deep_tail_neg": 1 / 4,
        "deep_tail_pos": 0.0,
        "amplification_balance": (5.11 - 0.62) / (5.11 + 0.62),
        "mismatch_energy": (0.01 + 4 + 0.09 + 0.16 + 0.0004 + 0.0001 + 0.25) / 16,
        "near_zero_fraction": 3 / 8,
        "nonfinite_fraction": 0.0,
        "not_observable": 0.0,
    }
    assert {name: found[name] for name in want} == pytest.approx(want, rel=1e-12)


def test_standard_error_by_hand() -> None:
    """Units (X, Y) = (2, 0), (1, 0), (0, 1), (0, 1), that is shares 2/3 and 1/3 of sum X, 1/2 and 1/2 of sum Y."""
    found = indicators(summary_of([[-0.1, -0.1], [-0.1], [0.1], [0.1]], [-1.0, -1.0, 1.0, 1.0]))
    assert found["log_rho_se"] == pytest.approx(math.sqrt(4 / 3 * (4 / 9 + 1 / 9 + 1 / 4 + 1 / 4)), rel=1e-12)


def test_interval_is_that_of_the_logarithm() -> None:
    found = indicators(summary_of([[-0.1, -0.1], [-0.1], [0.1], [0.1]], [-1.0, -1.0, 1.0, 1.0]))
    se = math.sqrt(4 / 3 * (4 / 9 + 1 / 9 + 1 / 4 + 1 / 4))
    assert found["rho_asym_low"] == pytest.approx(1.5 * math.exp(-1.96 * se), rel=1e-12)
    assert found["rho_asym_high"] == pytest.approx(1.5 * math.exp(1.96 * se), rel=1e-12)


def test_single_unit_has_a_ratio_but_no_interval() -> None:
    found = indicators(summarize(gap=[[-0.1, 0.2, 0.3]], advantages=[[-1.0, 1.0, 1.0]]))
    assert found["rho_asym"] == 0.5
    assert (found["log_rho_se"], found["rho_asym_low"], found["rho_asym_high"]) == (None, None, None)


def test_responses_are_seen_one_by_one() -> None:
    """Two of ten responses are off by 5 nats a token (C19); three of them carry no advantage (C29)."""
    gaps = [[-5.0] * 20 if k in (3, 7) else [0.005] * 20 for k in range(10)]
    found = indicators(summary_of(gaps, [0.0] * 3 + [-1.0] * 7))
    assert found["outlier_response_fraction"] == 0.2
    assert found["zero_advantage_fraction"] == 0.3


def test_missing_tokens_are_counted_like_non_finite_ones() -> None:
    found = indicators(summarize(gap=[[0.1, math.nan, 0.2, 0.0]], advantages=[1.0], missing=[[0, 0, 0, 1]]))
    assert found["missing_fraction"] == 0.25
    assert found["nonfinite_fraction"] == 0.5


def test_magnitude_by_hand() -> None:
    """Gaps log 4, -log 4, 0, 0 in one response: rho = 4, 1/4, 1, 1."""
    found = indicators(summary_of([[math.log(4), -math.log(4), 0.0, 0.0]], [1.0]))
    want = {
        "delta_mean": 0.0,
        "abs_delta_mean": math.log(4) / 2,
        "abs_delta_max": math.log(4),
        "delta_std": math.log(4) / math.sqrt(2),
        "kl_k1": 0.0,
        "kl_k3": (6.25 - 4) / 4,
        "kl_k3_reverse": (6.25 - 4) / 4,
        "mult_prob_error": 10 / 4,
        "chi2_token": (16 + 1 / 16 + 2) / 4 - 1,
        "ess_fraction": 6.25**2 / (4 * 18.0625),
        "rho_mean": 6.25 / 4,
        "rho_max": 4.0,
        "frac_rho_gt_2": 1 / 4,
        "frac_rho_lt_0.5": 1 / 4,
        "frac_rho_lt_1e-4": 0.0,
    }
    assert {name: found[name] for name in want} == pytest.approx(want, rel=1e-12, abs=1e-15)


def test_response_view_by_hand() -> None:
    """Mean gaps -1, 0.5 and 0.25 over 2, 1 and 4 tokens: each response counts once, whatever its length."""
    found = indicators(summary_of([[-1.5, -0.5], [0.5], [0.25] * 4, []], [-1.0, 1.0, 1.0, 1.0]))
    want = {
        "log_ppl_diff_mean": (1 - 0.5 - 0.25) / 3,
        "log_ppl_diff_abs_mean": 1.75 / 3,
        "log_ppl_diff_max": 1.0,
        "log_ppl_diff_min": -0.5,
        "geo_ratio": (math.exp(-1) + math.exp(0.5) + math.exp(0.25)) / 3,
    }
    assert {name: found[name] for name in want} == pytest.approx(want, rel=1e-12)
    # Sums -2, 0.5 and 1: ranks 1, 2 and 3 of 3, within the sketch's half percent of the exponent.
    for name, exponent in (("prod_ratio_q05", -2.0), ("prod_ratio_q50", 0.5), ("prod_ratio_q95", 1.0)):
        assert math.log(found[name] or 0.0) == pytest.approx(exponent, rel=0.005)


def test_probabilities_by_hand() -> None:
    learner, sampler = [math.log(p) for p in (0.5, 0.2, 0.9)], [math.log(p) for p in (0.25, 0.3, 0.9)]
    found = indicators(summarize(learner_logprobs=[learner], sampler_logprobs=[sampler], advantages=[1.0]))
    p, q = np.asarray([0.5, 0.2, 0.9]), np.asarray([0.25, 0.3, 0.9])
    want = {
        "prob_abs_diff_mean": 0.35 / 3,
        "prob_abs_diff_max": 0.25,
        "prob_pearson": float(np.corrcoef(p, q)[0, 1]),
        "ppl_learner": (0.5 * 0.2 * 0.9) ** (-1 / 3),
        "ppl_sampler": (0.25 * 0.3 * 0.9) ** (-1 / 3),
    }
    assert {name: found[name] for name in want} == pytest.approx(want, rel=1e-9)


def test_segments_by_hand() -> None:
    """W = 8, heavy from c/n = 0.25. A < 0: segments with c = 4, 2, 0 of 8; A > 0: c = 1 of 8, 2 of 2 (eligible)."""
    negative = [-0.5] * 4 + [0.01] * 4 + [-0.5] * 2 + [0.01] * 6 + [0.01] * 8
    positive = [0.5] + [0.01] * 7 + [0.5] * 2
    found = indicators(summary_of([negative, positive], [-1.0, 1.0], SummarySpec(segment=8, phi=0.25)))
    want = {
        "tail_token_fraction": 9 / 34,
        "tail_token_fraction_a_neg": 6 / 34,
        "tail_token_fraction_a_pos": 3 / 34,
        "heavy_segment_fraction": 3 / 5,
        "heavy_segment_fraction_a_neg": 2 / 5,
        "heavy_segment_fraction_a_pos": 1 / 5,
        # A quarter of one segment: the short full one (2 of 2), or that with 4 of 8.
        "top5_tail_share": 0.25 * 2 / 9,
        "top5_tail_share_a_neg": 0.25 * 4 / 6,
        "top5_tail_share_a_pos": 0.25 * 2 / 3,
        "tail_concentration": 0.25 * 2 / 9 / 0.05,
        # Pairs whose left one is heavy: (4, 2) and (2, 0); one of two is followed by a heavy one.
        "persistence": (1 / 2) / (3 / 5),
        "persistence_a_neg": (1 / 2) / (2 / 5),
        # Means: -0.1175 of the negative response, 0.157 of the positive one: neither hides.
        "masked_response_fraction": 0.0,
    }
    assert {name: found[name] for name in want} == pytest.approx(want, rel=1e-12)
    assert found["persistence_a_pos"] is None


def test_small_response_mean_hides_a_heavy_segment() -> None:
    hidden = [-0.5] * 16 + [0.01] * 48 + [0.11] * 64
    open_ = [-0.5] * 16 + [0.01] * 48
    found = indicators(summary_of([hidden, open_], [-1.0, -1.0]))
    assert found["masked_response_fraction"] == 0.5


@pytest.mark.parametrize(
    ("gaps", "advantages", "name", "reason"),
    [
        ([], [], "rho_asym", "no_tokens"),
        ([[]], [1.0], "delta_mean", "no_tokens"),
        ([[math.nan]], [1.0], "rho_asym", "no_tokens"),
        ([[0.1, -0.1]], [0.0], "rho_asym", "no_advantage_signal"),
        ([[0.1, -0.1]], [math.nan], "asym_share", "no_advantage_signal"),
        ([[0.1, -0.1]], [math.inf], "mass_a_neg", "no_advantage_signal"),
        ([[0.0, 0.1]], [-1.0], "rho_asym", "no_amplifying_mass"),
        ([[0.0, 0.0]], [-1.0], "asym_share", "no_amplifying_mass"),
        ([[-0.1, 0.1]], [-1.0], "rho_asym", "no_positive_mass"),
        ([[-0.01], [0.1]], [-1.0, 1.0], "rho_asym_tail", None),
        ([[-0.1], [0.01]], [-1.0, 1.0], "rho_asym_tail", "no_positive_mass"),
        ([[-0.01], [0.01]], [-1.0, 1.0], "rho_asym_tail", "no_amplifying_mass"),
    ],
)
def test_absent_ratio_says_why(gaps: list[list[float]], advantages: list[float], name: str, reason: str | None) -> None:
    found = indicators(summary_of(gaps, advantages))
    assert found.reasons.get(name) == reason
    assert (found[name] is None) == (reason is not None)


def test_bounded_companion_is_there_in_the_worst_case() -> None:
    found = indicators(summary_of([[-0.1] * 5, [-0.1] * 5], [-1.0, 1.0]))
    assert found["rho_asym"] is None
    assert found["asym_share"] == 1.0


def test_absent_numbers_have_reasons_and_present_ones_none() -> None:
    for summary in (
        StepSummary.empty(),
        summary_of([[0.1]], [0.0]),
        summary_of([[-0.1] * 70, [0.2] * 70], [-1.0, 1.0]),
    ):
        found = indicators(summary)
        assert set(found.reasons) == {name for name, value in found.items() if value is None}


def test_empty_summary_states_nothing_but_that_it_saw_nothing() -> None:
    found = update_report(StepSummary.empty())
    assert set(found["indicators"].values()) == {None}
    assert set(found["counts"].values()) == {0}
    assert set(found["masses"].values()) == {0.0}
    json.dumps(found, allow_nan=False)


def test_report_has_the_promised_fields() -> None:
    found = update_report(summary_of([[-0.1, 0.2], [0.3]], [-1.0, 1.0]))
    assert {"indicators", "reasons", "quantiles", "masses", "counts"} <= set(found)
    assert set(found["quantiles"]) == {"all", "neg", "pos"}
    assert all(set(QUANTILES) <= set(values) for values in found["quantiles"].values())
    assert set(found["masses"]) == {"a_neg", "a_pos", "c_neg", "c_pos", "total"}
    assert set(found["counts"]) >= {
        "responses", "empty_responses", "tokens", "valid_tokens", "missing", "nan", "pos_inf", "neg_inf",
        "unusable_advantage", "segments", "eligible_segments", "heavy_segments", "overflow_tokens",
    }  # fmt: skip


def test_token_fraction_is_a_ratio_of_sums_not_a_mean_of_means() -> None:
    """60 short healthy responses and 4 long sick ones: a mean of means reads far too low."""
    healthy = [summary_of([[0.01] * 20], [1.0]) for _ in range(60)]
    sick = [summary_of([[-0.5] * 320 + [0.01] * 280], [-1.0]) for _ in range(4)]
    found = indicators(merge_all([*healthy, *sick]))
    assert found["tail_token_fraction"] == pytest.approx(4 * 320 / (60 * 20 + 4 * 600), rel=1e-12)
    mean_of_means = 4 * (320 / 600) / 64
    assert 10 * mean_of_means < 4 * 320 / (60 * 20 + 4 * 600)


def test_excess_is_about_one_when_direction_ignores_the_advantage() -> None:
    """Gaps lean negative and negative responses are longer: rho_asym is large, yet says nothing about direction."""
    rng = np.random.default_rng(1)
    negative = rng.random(2000) < 0.5
    lengths = np.where(negative, 60, 20)
    gap = np.where(rng.random(int(lengths.sum())) < 0.6, -0.1, 0.1)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    found = indicators(summarize(gap=gap, advantages=np.where(negative, -1.0, 1.0), offsets=offsets))
    assert found["rho_asym"] == pytest.approx(3 * 1.5, rel=0.1)
    assert found["rho_excess"] == pytest.approx(1.0, abs=0.03)


def test_advantage_scale_moves_no_ratio() -> None:
    gaps = [[-0.1, 0.2, -0.3], [0.3, -0.2, 0.1]]
    one, thousandth = (indicators(summary_of(gaps, [-s, s])) for s in (1.0, 1e-3))
    assert set(one.reasons) == set(thousandth.reasons)
    defined = {name: value for name, value in one.items() if value is not None}
    assert defined == pytest.approx({name: thousandth[name] for name in defined}, rel=1e-12)


def test_heavy_advantages_weigh_masses_not_counts() -> None:
    found = indicators(summary_of([[-0.1], [0.1] * 10], [-100.0, 1.0]))
    assert found["rho_asym"] == 10.0
    assert found["sign_odds_blind"] == 0.1
