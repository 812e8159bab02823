"""False alarms on SYNTHETIC stationary series with the spread and memory that healthy runs of the testbed showed."""

from dataclasses import replace

import pytest

from triage_monitor.evaluation.stationary import Wander, stationary_observations
from triage_monitor.judge.defaults import DetectorSettings
from triage_monitor.judge.detector import DetectorState, detect
from triage_monitor.judge.stages import Stage

ALARMING = (Stage.PRE_TERMINAL, Stage.TERMINAL)


def alarms(seeds: range, updates: int, wander: Wander, settings: DetectorSettings) -> int:
    """Entries into an alarming stage."""
    learned, count = settings.learned(), 0
    for seed in seeds:
        state = DetectorState()
        for seen in stationary_observations(seed, updates, wander):
            before = state.stage
            state, _ = detect(settings, state, seen, learned)
            count += state.stage in ALARMING and before not in ALARMING
    return count


def test_stationary_series_raise_no_more_alarms_than_promised() -> None:
    # 50 series of 1,000 updates at 1 promised in 1,000: at most 50
    assert alarms(range(50), 1000, Wander(), DetectorSettings()) <= 50


@pytest.mark.parametrize("autocorrelation", [0.0, 0.9, 0.99])
@pytest.mark.parametrize("rate", [0.2, 5.0])
def test_promise_holds_at_other_rates_and_memories(autocorrelation: float, rate: float) -> None:
    settings = replace(DetectorSettings(), alarms_per_1000_updates=rate)
    assert alarms(range(100, 110), 1000, Wander(autocorrelation), settings) <= rate * 10


def test_series_that_wander_twice_as_far_as_real_ones_stay_within_the_promise() -> None:
    assert alarms(range(200, 210), 1000, Wander(0.97, 1.0, 2.0), DetectorSettings()) <= 10


def test_alarm_is_not_dead_on_such_series() -> None:
    """The same series with the mismatch growing five-fold over 100 updates does alarm."""
    settings, state = DetectorSettings(), DetectorState()
    stages = set()
    for seen in stationary_observations(7, 300, Wander()):
        growth = 5.0 ** min(max(seen.step - 120, 0) / 100, 1.0)
        grown = {
            name: None if value is None else value * (growth**2 if name == "mismatch_energy" else growth)
            for name, value in seen.values.items()
            if name in ("mismatch_energy", "abs_delta_mean", "q0.001_all", "q0.001_neg", "q0.001_pos")
        }
        state, _ = detect(settings, state, replace(seen, values={**seen.values, **grown}))
        stages.add(state.stage)
    assert stages & set(ALARMING)
