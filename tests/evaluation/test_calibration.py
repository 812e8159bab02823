"""Alarms counted by hand, and the line of the alarm rate, on SYNTHETIC scores and series."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from evaluation.synthetic_runs import a_run
from evaluation.test_ours import LENGTH, RISE, synthetic
from judge_series import THRESHOLD, THRESHOLD_MISMATCH, raised

from triage_monitor.evaluation.calibration import _poisson_line, alarms_above, fit, raw_scores
from triage_monitor.evaluation.series import RunSeries
from triage_monitor.evaluation.stationary import stationary_windows

UP, DOWN, BETWEEN = 1.1, 0.7, 0.9  # above the alarm, below where it is left (0.8), neither


def count(*stretches: tuple[float, int], times: float = 1.0) -> int:
    scores = np.concatenate([np.full(length, score * times) for score, length in stretches])
    return alarms_above(scores, times)


def test_alarm_needs_five_updates_in_a_row() -> None:
    assert count((DOWN, 20), (UP, 4), (DOWN, 20)) == 0
    assert count((DOWN, 20), (UP, 5), (DOWN, 20)) == 1
    assert count((UP, 4), (DOWN, 1), (UP, 4)) == 0
    assert count((UP, 5)) == 1


def test_alarm_is_over_after_ten_updates_below_its_leaving_level() -> None:
    assert count((UP, 5), (DOWN, 9), (UP, 5)) == 1
    assert count((UP, 5), (DOWN, 10), (UP, 5)) == 2
    assert count((UP, 5), (BETWEEN, 50), (UP, 5)) == 1


def test_level_moves_with_the_threshold() -> None:
    stretches = ((DOWN, 3), (UP, 6), (DOWN, 12), (UP, 4), (DOWN, 2), (UP, 7))
    assert count(*stretches) == count(*stretches, times=7.5) == 2


def test_unknown_score_neither_counts_nor_begins_the_count_anew() -> None:
    scores = np.array([np.nan, UP, UP, np.nan, UP, UP, np.nan, UP])
    assert alarms_above(scores, 1.0) == 1
    assert alarms_above(scores[:-1], 1.0) == 0
    assert alarms_above(np.full(20, np.nan), 1.0) == 0


def test_line_through_expected_counts_is_the_line_they_came_from() -> None:
    """ln rate = 2 - 0.5 h over 7,000 updates."""
    h = np.linspace(0.5, 6.0, 30)
    assert _poisson_line(h, 7.0 * np.exp(2.0 - 0.5 * h), 7.0) == pytest.approx((2.0, 0.5), rel=1e-8)


def test_line_recovers_a_known_rate_from_drawn_counts() -> None:
    """At 400,000 updates the counts run from 2,400 down to 20: the rate at h = 3 is known to a few percent."""
    h = np.linspace(0.5, 10.0, 40)
    counts = np.random.default_rng(5).poisson(400 * np.exp(2.0 - 0.5 * h))
    intercept, slope = _poisson_line(h, counts, 400.0)
    assert (intercept, slope) == pytest.approx((2.0, 0.5), rel=0.02)
    assert np.exp(intercept - 3 * slope) == pytest.approx(np.exp(0.5), rel=0.03)


def test_counts_of_none_at_high_thresholds_are_part_of_the_line() -> None:
    h = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    intercept, slope = _poisson_line(h, np.array([20, 7, 3, 0, 0]), 1.0)
    # the two conditions of the largest likelihood: as many alarms as were counted, at as high a threshold on average
    expected = np.exp(intercept - slope * h)
    assert expected.sum() == pytest.approx(30)
    assert (expected * h).sum() == pytest.approx(7 + 6)


def test_raw_score_is_the_score_before_its_threshold() -> None:
    raw = raw_scores(synthetic(raised(1.2)), ("grad_norm",))
    assert np.isnan(raw[:34]).all() and np.isfinite(raw[34:]).all()
    assert raw[RISE - 1] == pytest.approx(0.0, abs=1e-9)
    assert raw[RISE] == pytest.approx(1.2 * THRESHOLD)
    assert raw[LENGTH - 1] == pytest.approx(0.6 * THRESHOLD)


def test_raw_score_of_signals_left_out_is_in_the_same_efolds() -> None:
    raw = raw_scores(synthetic(raised(1.2, THRESHOLD_MISMATCH)), ("reward_mean", "grad_norm"))
    assert raw[RISE] == pytest.approx(1.2 * THRESHOLD_MISMATCH)


def test_window_without_a_tail_scores_nothing() -> None:
    run = synthetic(raised(1.2))
    flat = replace(run, window=run.window | {"q0.001_all": np.full(LENGTH, -0.05)})
    assert (raw_scores(flat) == 0.0).all()


def stationary(seed: int, updates: int = 300) -> RunSeries:
    counts = {"tokens": 204_800.0, "responses": 1600.0, "updates": 25.0}
    windows = stationary_windows(seed, updates) | {name: np.full(updates, value) for name, value in counts.items()}
    return replace(a_run(f"synthetic-{seed}", updates=updates), window=windows)


def test_fit_counts_the_survivors_alone() -> None:
    runs = [stationary(seed) for seed in range(6)]
    fallen = replace(stationary(7), rewards=np.where(np.arange(300) < 100, 0.7, 0.1))
    found = fit([*runs, fallen], ("grad_norm", "reward_mean"))
    assert found == fit(runs, ("grad_norm", "reward_mean"))
    assert found.runs == 6
    assert found.updates == sum(int(np.isfinite(raw_scores(run, ("grad_norm", "reward_mean"))).sum()) for run in runs)
    assert found.slope > 0
