import math
import random

import pytest

from triage_monitor.errors import ConfigError
from triage_monitor.judge.harm import Forecast, HarmSettings, Scale, Verdict, Watch, forecast, judge

SETTINGS = HarmSettings(settle_updates=4, trial_updates=20)
REWARD, ENERGY, TAIL = "reward_mean", "mismatch_energy", "q0.001_all"
BEFORE = {
    REWARD: Forecast(-0.8, 0.0, 0.02, 25),
    ENERGY: Forecast(math.log(0.02), 0.0, 0.05, 25),
    TAIL: Forecast(math.log(2.0), 0.0, 0.05, 25),
}


def since(reward: float = 0.8, energy: float = 0.02, tail: float = -2.0, count: int = 16) -> dict[str, list[float]]:
    return {REWARD: [-reward] * count, ENERGY: [math.log(energy)] * count, TAIL: [math.log(-tail)] * count}


def verdict(**values: float) -> Verdict | None:
    found = judge(SETTINGS, BEFORE, since(**values))  # type: ignore[arg-type]
    return None if found is None else found.verdict


def test_flat_series_is_foretold_at_its_median_without_a_trend() -> None:
    line = forecast(SETTINGS, [1.0, 1.2, 0.8] * 8)
    assert line == Forecast(1.0, 0.0, pytest.approx(1.4826 * 0.2), 24)


def test_rising_series_is_foretold_to_go_on_rising() -> None:
    line = forecast(SETTINGS, [0.5 + 0.1 * k for k in range(25)])
    assert line is not None
    assert (line.slope, line.level) == (pytest.approx(0.1), pytest.approx(2.9))
    assert line.at(10) == pytest.approx(3.9)


def test_falling_series_is_not_counted_on_to_go_on_falling() -> None:
    line = forecast(SETTINGS, [2.5 - 0.1 * k for k in range(25)])
    assert line is not None
    assert (line.slope, line.level) == (0.0, pytest.approx(1.3))


def test_one_wild_update_moves_neither_level_nor_trend() -> None:
    values = [1.0 + 0.01 * (-1) ** k for k in range(25)]
    values[20] = 50.0
    line = forecast(SETTINGS, values)
    assert line is not None
    assert line.level == pytest.approx(1.0, abs=0.02)
    assert line.slope == 0.0


def test_only_the_newest_history_is_used_and_too_little_gives_no_forecast() -> None:
    assert forecast(SETTINGS, [9.0] * 50 + [1.0] * 25) == Forecast(1.0, 0.0, 0.0, 25)
    assert forecast(SETTINGS, [1.0] * 9) is None


def test_trend_within_its_own_noise_is_no_trend() -> None:
    rng = random.Random(3)
    trends = [forecast(SETTINGS, [rng.gauss(0, 1) for _ in range(25)]) for _ in range(200)]
    assert sum(line is not None and line.slope > 0 for line in trends) < 20


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, Verdict.NEUTRAL),
        ({"reward": 0.7}, Verdict.HARMED),  # 12.5% below, 15 errors
        ({"reward": 0.77}, Verdict.NEUTRAL),  # 3.75%: significant, but below the material 7%
        ({"reward": 0.9}, Verdict.HELPED),
        ({"energy": 0.04}, Verdict.NEUTRAL),  # one mismatch measure alone
        ({"energy": 0.04, "tail": -4.0}, Verdict.HARMED),
        ({"energy": 0.04, "tail": -4.0, "reward": 0.9}, Verdict.HELPED),
        ({"energy": 0.01}, Verdict.HELPED),
        ({"energy": 0.01, "tail": -1.0, "reward": 0.7}, Verdict.HARMED),  # the reward decides
        ({"energy": 0.025, "tail": -2.2}, Verdict.NEUTRAL),  # log 1.25 and log 1.1: immaterial
    ],
)
def test_verdict(values: dict[str, float], expected: Verdict) -> None:
    assert verdict(**values) is expected


def test_noise_of_the_window_before_widens_what_counts_as_harm() -> None:
    noisy = {REWARD: Forecast(-0.8, 0.0, 0.2, 25)}  # error 0.08, so 3 errors are 0.24
    judged = judge(SETTINGS, noisy, since(reward=0.6))
    assert judged is not None
    assert judged.verdict is Verdict.NEUTRAL
    assert judged.comparisons[0].error == pytest.approx(1.2533 * 0.2 * math.sqrt(1 / 25 + 1 / 16))


def test_growth_that_was_foretold_is_no_harm_and_less_of_it_is_help() -> None:
    growing = {ENERGY: Forecast(math.log(0.02), 0.05, 0.05, 25), TAIL: Forecast(math.log(2.0), 0.05, 0.05, 25)}
    at = math.exp(0.05 * (4 + 16 / 2))
    for share, expected in ((1.0, Verdict.NEUTRAL), (0.5, Verdict.HELPED), (2.0, Verdict.HARMED)):
        found = judge(SETTINGS, growing, since(energy=0.02 * at * share, tail=-2.0 * at * share))
        assert found is not None
        assert found.verdict is expected


def test_there_is_no_verdict_before_a_whole_trial_or_without_a_forecast() -> None:
    assert judge(SETTINGS, BEFORE, since(reward=0.1, count=15)) is None
    assert judge(SETTINGS, {}, since(reward=0.1)) is None


def test_indicator_that_is_never_sent_is_left_out() -> None:
    values = since(energy=0.01)
    del values[REWARD]
    found = judge(SETTINGS, BEFORE, values)
    assert found is not None
    assert found.verdict is Verdict.HELPED
    assert set(found.evidence()) == {ENERGY, TAIL}


def test_evidence_is_in_the_indicators_own_units() -> None:
    found = judge(SETTINGS, BEFORE, since(reward=0.7, energy=0.04, tail=-4.0))
    assert found is not None
    numbers = found.evidence()
    assert numbers[REWARD] == {
        "value": pytest.approx(0.7),
        "expected": pytest.approx(0.8),
        "worse": pytest.approx(0.1),
        "error": pytest.approx(1.2533 * 0.02 * math.sqrt(1 / 25 + 1 / 16)),
    }
    assert (numbers[TAIL]["value"], numbers[TAIL]["expected"]) == (pytest.approx(-4.0), pytest.approx(-2.0))
    assert found.words().startswith("harmed: reward_mean 0.7 where 0.8 was expected; mismatch_energy 0.04 where 0.02")


def test_values_below_the_floor_of_a_log_scale_read_as_the_floor() -> None:
    watch = Watch(ENERGY, 0.4, Scale.LOG, floor=5e-4)
    assert watch.read({ENERGY: 1e-12}) == pytest.approx(math.log(5e-4))
    assert watch.read({ENERGY: None}) is None
    assert Watch(TAIL, 0.2, Scale.LOG_DEPTH, floor=0.1).read({TAIL: 0.3}) == pytest.approx(math.log(0.1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Watch(ENERGY, 0.4, Scale.LOG),
        lambda: Watch(ENERGY, -1.0),
        lambda: HarmSettings(trial_updates=8),
        lambda: HarmSettings(min_history=4),
        lambda: HarmSettings(errors=0.0),
        lambda: HarmSettings(watches=(Watch("x", 1.0), Watch("x", 2.0))),
    ],
)
def test_settings_that_cannot_work_are_refused(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]
