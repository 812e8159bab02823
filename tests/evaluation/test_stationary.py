"""Stationary synthetic series have the spread and memory that stable real runs showed, and nothing else.

The real numbers are typed from the recordings of four stable testbed runs (`stationary_fit`): the standard deviation
over steps 84 to 220 of a window's log value (near-zero and masked: of the log of its complement), less a linear trend.
"""

from __future__ import annotations

import numpy as np
import pytest

from triage_monitor.errors import ConfigError
from triage_monitor.evaluation.stationary import (
    Wander,
    stationary_observations,
    stationary_updates,
    stationary_windows,
)
from triage_monitor.evaluation.stationary_constants import AUTOCORRELATION, NOISES, correlation
from triage_monitor.judge.indicators import indicators
from triage_monitor.summary.build import summarize
from triage_monitor.summary.step import merge_all

REAL_WINDOW_SPREAD = {
    "q0.001_all": 0.123,
    "rho_asym": 0.022,
    "rho_pressure": 0.071,
    "mismatch_energy": 0.156,
    "abs_delta_mean": 0.044,
    "deep_tail_neg": 0.112,
    "near_zero_fraction": 0.024,
    "masked_response_fraction": 0.183,
}
COMPLEMENTS = ("near_zero_fraction", "masked_response_fraction")


def less_trend(series: np.ndarray) -> np.ndarray:
    t = np.arange(series.size)
    return series - np.polyval(np.polyfit(t, series, 1), t)


def log_of(name: str, series: np.ndarray) -> np.ndarray:
    return np.log(1 - series if name in COMPLEMENTS else np.abs(series))


def test_windows_spread_as_in_real_runs() -> None:
    drawn = [stationary_windows(seed, 220) for seed in range(40)]
    for name, real in REAL_WINDOW_SPREAD.items():
        spread = np.mean([less_trend(log_of(name, windows[name][84:])).std() for windows in drawn])
        assert spread == pytest.approx(real, rel=0.25), name


def test_windows_apart_remember_what_the_slow_part_says() -> None:
    """Windows 50 updates apart share nothing but the slow part: 0.66 of an update's variance, autocorrelation 0.97.

    Means of 25 of such an AR(1) have variance 0.788 and, 50 apart, covariance 0.229:
    0.66 * 0.229 / (0.66 * 0.788 + 0.34 / 25) = 0.283.
    """
    series = [log_of("near_zero_fraction", stationary_windows(seed, 5000)["near_zero_fraction"]) for seed in range(12)]
    apart = np.mean([np.corrcoef(item[25:-50], item[75:])[0, 1] for item in series])
    assert apart == pytest.approx(0.283, abs=0.08)


def test_without_a_slow_part_windows_apart_are_independent() -> None:
    series = stationary_windows(1, 20_000, Wander(slow=0.0))["mismatch_energy"]
    assert abs(np.corrcoef(series[25:-25], series[50:])[0, 1]) < 0.1


def test_without_noise_only_the_slow_part_is_left() -> None:
    still = stationary_windows(1, 50, Wander(noise=0.0, slow=0.0))
    for name, noise in NOISES.items():
        if name in ("rho_asym", "q0.05_all", "near_zero_fraction"):
            assert still[name] == pytest.approx([noise.level] * 50, rel=0.01)


def test_indicators_move_together_as_in_real_runs() -> None:
    windows = stationary_windows(3, 5000)
    energy = np.log(windows["mismatch_energy"])
    assert np.corrcoef(energy, np.log(-windows["q0.001_all"]))[0, 1] == pytest.approx(0.84, abs=0.1)
    assert np.corrcoef(energy, np.log(windows["rho_asym"]))[0, 1] == pytest.approx(-0.04, abs=0.25)


def test_correlations_are_a_whole_matrix() -> None:
    matrix = correlation()
    assert matrix.shape == (len(NOISES), len(NOISES))
    np.testing.assert_array_equal(matrix, matrix.T)
    assert np.abs(matrix).max() == 1.0
    assert np.linalg.eigvalsh(matrix).min() > -0.02


def test_level_and_shares_stay_where_they_belong() -> None:
    windows = stationary_windows(4, 5000, levels={"masked_response_fraction": 0.99, "rho_asym": 1.0})
    assert np.median(windows["masked_response_fraction"]) == pytest.approx(0.99, abs=0.002)
    assert np.median(windows["rho_asym"]) == pytest.approx(1.0, abs=0.02)
    assert np.median(windows["asym_share"]) == pytest.approx(0.5, abs=0.01)
    for name in ("near_zero_fraction", "masked_response_fraction", "reward_mean", "heavy_segment_fraction"):
        assert windows[name].min() > 0 and windows[name].max() < 1


def test_same_seed_gives_the_same_series_and_another_seed_another() -> None:
    first, again, other = (stationary_windows(seed, 30)["rho_pressure"] for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_observations_hold_what_a_window_of_64_responses_would() -> None:
    seen = list(stationary_observations(0, 40))
    assert [item.step for item in seen] == list(range(40))
    assert (seen[9].updates, seen[9].responses, seen[9].tokens) == (10, 640, 81_920)
    assert (seen[-1].updates, seen[-1].responses, seen[-1].tokens) == (25, 1600, 204_800)
    assert seen[-1].observable and seen[-1].unusable_ratio == 0
    assert seen[-1].values["log_rho_se"] == pytest.approx(0.00875)
    assert seen[-1].values["q0.001_all"] is not None and seen[-1].values["q0.001_all"] < -1


def test_updates_are_healthy_vary_and_repeat() -> None:
    summaries = [summarize(**arrays) for arrays in stationary_updates(2, 30, rewards=True)]
    window = indicators(merge_all(summaries))
    assert window["rho_asym"] == pytest.approx(1.02, rel=0.15)
    assert window["near_zero_fraction"] == pytest.approx(0.85, abs=0.03)
    assert window["heavy_segment_fraction"] == pytest.approx(0.0485, rel=0.3)
    assert window["reward_mean"] == pytest.approx(0.45, abs=0.1)
    energy = np.log([indicators(summary)["mismatch_energy"] or np.nan for summary in summaries])
    assert 0.4 < energy.std() < 1.2
    again = next(iter(stationary_updates(2, 30, rewards=True)))
    np.testing.assert_array_equal(again["gap"], next(iter(stationary_updates(2, 1, rewards=True)))["gap"])


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="autocorrelation is 1"):
        Wander(autocorrelation=1.0)
    with pytest.raises(ConfigError, match="must not be negative"):
        Wander(noise=-1.0)
    with pytest.raises(ConfigError, match="no noise is known of 'rho'"):
        stationary_windows(0, 10, levels={"rho": 1.0})
    with pytest.raises(ConfigError, match="multiple of 8"):
        next(iter(stationary_updates(0, 1, responses=12)))


def test_constants_are_those_the_docstring_tells_of() -> None:
    assert AUTOCORRELATION == 0.97
    assert all(0 <= noise.slow_share < 1 and noise.spread > 0 for noise in NOISES.values())
