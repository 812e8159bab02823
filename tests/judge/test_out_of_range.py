"""Absurd inputs: no traceback, no NaN, a reason in place of a value that float64 sums cannot hold."""

from __future__ import annotations

import json

import numpy as np
import pytest

from triage_monitor.judge.indicators import update_report
from triage_monitor.summary.build import summarize


@pytest.mark.parametrize("advantage", [1e160, 1e-162, 5e-324])
def test_advantages_whose_squares_leave_float64_cost_the_interval_only(advantage: float) -> None:
    gap = [np.array([0.1, -0.2]), np.array([0.1, -0.3])]
    report = update_report(summarize(gap=gap, advantages=[advantage, -advantage]))
    json.dumps(report, allow_nan=False)
    assert report["reasons"]["log_rho_se"] == "out_of_range"
    assert report["indicators"]["asym_share"] == 0.5


def test_masses_beyond_float64_have_no_direction() -> None:
    gap = [np.array([0.1, -0.2]), np.array([0.1, -0.3])]
    report = update_report(summarize(gap=gap, advantages=[1e308, -1e308]))
    json.dumps(report, allow_nan=False)
    assert report["reasons"]["asym_share"] == report["reasons"]["mass_a_neg"] == "out_of_range"
    assert report["masses"]["total"] is None


@pytest.mark.parametrize("gap", [1e155, 1e308])
def test_gaps_whose_squares_leave_float64_have_no_spread(gap: float) -> None:
    report = update_report(summarize(gap=[np.array([gap, 0.1, -gap])], advantages=[1.0]))
    json.dumps(report, allow_nan=False)
    assert report["reasons"]["delta_std"] == "out_of_range"
    assert report["indicators"]["delta_max"] == gap


def test_log_probs_far_above_zero_have_no_correlation() -> None:
    report = update_report(
        summarize(learner_logprobs=[[800.0, 800.0]], sampler_logprobs=[[0.0, -1.0]], advantages=[1.0])
    )
    json.dumps(report, allow_nan=False)
    assert report["reasons"]["prob_pearson"] == "out_of_range"
