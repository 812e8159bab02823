"""Intervals: exact where there is nothing to resample, of the right coverage on a known case, and repeatable."""

from __future__ import annotations

import math

import numpy as np
import pytest

from triage_monitor.evaluation import bootstrap
from triage_monitor.evaluation.bootstrap import UNKNOWN, Estimate


def test_nothing_observed_is_unknown() -> None:
    assert bootstrap.share(np.array([], bool)) == UNKNOWN
    assert bootstrap.median(np.array([np.nan, np.nan])) == UNKNOWN
    assert bootstrap.rate(np.array([], np.int64), np.array([])) == UNKNOWN


def test_no_event_is_bounded_by_the_rule_of_three() -> None:
    """-ln(0.05) is 2.9957: none in 2,000 updates leaves at most 1.498 per 1,000."""
    none = bootstrap.rate(np.zeros(4, np.int64), np.full(4, 0.5))
    assert (none.value, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(1.4979, abs=1e-4)


def test_unanimous_runs_get_the_exact_binomial_bound() -> None:
    """20 of 20: 0.05**(1/20) = 0.8609."""
    every = bootstrap.share(np.ones(20, bool))
    assert (every.value, every.high) == (1.0, 1.0)
    assert every.low == pytest.approx(0.8609, abs=1e-4)
    none = bootstrap.share(np.zeros(20, bool))
    assert none.high == pytest.approx(1 - 0.8609, abs=1e-4)


def test_rate_is_of_sums_not_a_mean_of_rates() -> None:
    """1 event in 0.1 and 1 in 0.9: the rate is 2, the mean of rates would be 5.6."""
    assert bootstrap.rate(np.array([1, 1]), np.array([0.1, 0.9])).value == pytest.approx(2.0)


def test_median_leaves_out_what_is_missing() -> None:
    found = bootstrap.median(np.array([10.0, np.nan, 30.0, 20.0]))
    assert found.value == 20.0
    assert found.low is not None and found.high is not None
    assert 10.0 <= found.low <= 20.0 <= found.high <= 30.0


def test_same_data_same_interval_other_seed_other_interval() -> None:
    rng = np.random.default_rng(3)
    events, exposure = rng.poisson(2.0, 15), rng.uniform(0.1, 0.3, 15)
    first = bootstrap.rate(events, exposure)
    assert bootstrap.rate(events, exposure) == first
    other = bootstrap.rate(events, exposure, seed=1)
    assert other.value == first.value and other != first


@pytest.mark.parametrize("kind", ["share", "median", "rate"])
def test_interval_covers_the_truth_about_as_often_as_it_says(kind: str) -> None:
    """400 samples of 30 runs each; 95% nominal, the percentile bootstrap of so few is known to fall a little short."""
    rng = np.random.default_rng(7)
    covered = sum(_covers(kind, rng) for _ in range(400))
    assert 0.88 <= covered / 400 <= 0.985


def _covers(kind: str, rng: np.random.Generator) -> bool:
    if kind == "share":
        truth, found = 0.6, bootstrap.share(rng.random(30) < 0.6, resamples=400)
    elif kind == "median":
        truth, found = 10 * math.log(2), bootstrap.median(rng.exponential(10.0, 30), resamples=400)
    else:
        exposure = rng.uniform(0.1, 0.3, 30)
        truth, found = 5.0, bootstrap.rate(rng.poisson(5.0 * exposure), exposure, resamples=400)
    assert isinstance(found, Estimate) and found.low is not None and found.high is not None
    return found.low <= truth <= found.high
