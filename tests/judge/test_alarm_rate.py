import math

import pytest

from triage_monitor.errors import ConfigError
from triage_monitor.judge import alarm_rate
from triage_monitor.judge.alarm_rate import FITTED, HIGHEST_RATE, LOWEST_RATE, score_threshold
from triage_monitor.judge.defaults import DetectorSettings
from triage_monitor.judge.run import JudgeSettings

SIGNALS = [(reward, grad_norm) for reward in (False, True) for grad_norm in (False, True)]


def test_threshold_is_where_the_line_meets_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """ln rate = 2 - 0.5 h: one alarm in 1,000 at h = 4, e of them at 2, e squared at 0."""
    monkeypatch.setattr(alarm_rate, "FITTED", {(True, False): (2.0, 0.5)})
    assert score_threshold(1.0, reward=True, grad_norm=False) == 4.0
    assert score_threshold(math.e, reward=True, grad_norm=False) == pytest.approx(2.0)
    monkeypatch.setattr(alarm_rate, "STATIONARY", {True: 1.5})
    assert score_threshold(math.e**2, reward=True, grad_norm=False) == 1.5  # not the line's 0: noise alone passes that


def test_every_set_of_signals_has_a_line() -> None:
    assert set(FITTED) == set(SIGNALS)


@pytest.mark.parametrize(("reward", "grad_norm"), SIGNALS)
def test_rarer_alarms_need_a_higher_threshold(reward: bool, grad_norm: bool) -> None:
    rates = [LOWEST_RATE, 0.1, 0.5, 1.0, 2.0, HIGHEST_RATE]
    thresholds = [score_threshold(rate, reward=reward, grad_norm=grad_norm) for rate in rates]
    assert thresholds == sorted(thresholds, reverse=True)
    assert len(set(thresholds[:4])) == 4  # the most frequent alarms may rest on the same floor


@pytest.mark.parametrize(("reward", "grad_norm"), SIGNALS)
def test_every_accepted_rate_has_a_threshold_above_nothing(reward: bool, grad_norm: bool) -> None:
    """A score divided by 0 or less would be no score."""
    assert score_threshold(HIGHEST_RATE, reward=reward, grad_norm=grad_norm) > 0


@pytest.mark.parametrize("rate", [LOWEST_RATE, 1.0, HIGHEST_RATE])
def test_rate_within_the_range_is_taken(rate: float) -> None:
    assert DetectorSettings(alarms_per_1000_updates=rate).alarms_per_1000_updates == rate


@pytest.mark.parametrize("rate", [0.0, -1.0, LOWEST_RATE * 0.99, HIGHEST_RATE * 1.01, math.inf, math.nan])
def test_rate_outside_the_range_is_refused_by_name(rate: float) -> None:
    with pytest.raises(ConfigError, match="alarms_per_1000_updates"):
        DetectorSettings(alarms_per_1000_updates=rate)


def test_refusal_names_the_key_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"judge\.detector: alarms_per_1000_updates must be from"):
        JudgeSettings.from_dict({"detector": {"alarms_per_1000_updates": 1000.0}})
