"""The product's detector as a contender, on SYNTHETIC run series: calm, then a rise of known score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from evaluation.synthetic_runs import a_run
from judge_series import CALM, raised

from triage_monitor.evaluation.ours import OURS, VARIANTS, OurDetector, alarms, observations, states
from triage_monitor.evaluation.series import Floats, RunSeries
from triage_monitor.judge.alarm_rate import score_threshold
from triage_monitor.judge.defaults import DetectorSettings
from triage_monitor.judge.stages import Stage

SETTINGS = DetectorSettings()
RISE, LENGTH = 80, 130
FIRST = RISE + 4  # the fifth update above the level


def synthetic(changed: Mapping[str, float | None], *, always: Mapping[str, float] | None = None) -> RunSeries:
    """Calm values, from update RISE on with `changed`; `always` adds series that are calm throughout."""
    calm = {name: value for name, value in {**CALM, **(always or {})}.items() if value is not None}
    at = np.arange(LENGTH) >= RISE
    window: dict[str, Floats] = {name: np.where(at, changed.get(name, value), value) for name, value in calm.items()}
    counts = {"tokens": 204_800.0, "responses": 1600.0}
    window |= {name: np.full(LENGTH, value) for name, value in counts.items()}
    window["updates"] = np.minimum(np.arange(1.0, LENGTH + 1), 25.0)
    return replace(a_run("synthetic", updates=LENGTH), window=window)


def steep() -> RunSeries:
    """The gradient norm alone grows, to 1.2 of the alarm where it is sent."""
    sent = score_threshold(1.0, reward=True, grad_norm=True)
    times = math.exp(1.2 * sent / SETTINGS.score.grad_norm_weight)
    return synthetic({"grad_norm": 0.2 * times}, always={"grad_norm": 0.2})


def test_alarm_is_on_from_the_fifth_update_until_the_rise_is_old() -> None:
    """Of 1.2, half is trend: from update 105 on 0.6 is left, and the tenth of those, 114, is no longer one."""
    assert alarms(synthetic(raised(1.2)), SETTINGS) == list(range(FIRST, RISE + 25 + 9))


def test_drift_is_no_alarm_and_calm_none() -> None:
    assert alarms(synthetic(raised(0.7)), SETTINGS) == []
    assert Stage.DRIFT in [state.stage for state in states(synthetic(raised(0.7)), SETTINGS)]
    assert alarms(synthetic({}), SETTINGS) == []


def test_terminal_is_an_alarm_that_stays() -> None:
    assert alarms(synthetic({"abs_delta_mean": 0.045 * 4}), SETTINGS) == list(range(FIRST, LENGTH))


def test_signal_left_out_is_one_that_no_trainer_sent() -> None:
    run = steep()
    assert alarms(run, SETTINGS)[0] == FIRST
    assert alarms(run, SETTINGS, ("grad_norm",)) == []
    bare = replace(run, window={name: values for name, values in run.window.items() if name != "grad_norm"})
    rising = replace(bare, window=bare.window | {"mismatch_energy": np.linspace(0.02, 0.1, LENGTH)})
    with_norm = replace(rising, window=rising.window | {"grad_norm": run.window["grad_norm"]})
    for ours, theirs in zip(states(with_norm, SETTINGS, ("grad_norm",)), states(rising, SETTINGS), strict=True):
        assert ours == theirs


def test_observations_are_the_windows_with_unknown_values_unknown() -> None:
    hole = replace(synthetic({}), steps=np.arange(LENGTH) + 7)
    hole.window["rho_asym"][3] = np.nan
    seen = list(observations(hole))
    assert [item.step for item in seen] == list(range(7, LENGTH + 7))
    assert (seen[3].updates, seen[3].responses, seen[3].tokens, seen[3].attempt) == (4, 1600, 204_800, 0)
    assert seen[3].values["rho_asym"] is None and seen[4].values["rho_asym"] == 1.0
    assert {"tokens", "responses", "updates"}.isdisjoint(seen[3].values)
    assert "reward_mean" in seen[3].values
    assert "reward_mean" not in next(iter(observations(hole, ("reward_mean",)))).values


def test_parameter_is_the_rate_that_is_asked_for() -> None:
    run = synthetic(raised(1.2))
    assert OurDetector("ours").alarms(run, 1.0) == alarms(run, SETTINGS)
    assert OurDetector("ours").alarms(run, 0.05) == []
    assert set(OurDetector("ours").alarms(run, 5.0)) > set(alarms(run, SETTINGS))


def test_variants_leave_out_what_their_names_say() -> None:
    assert [(item.name, set(item.without)) for item in (OURS, *VARIANTS)] == [
        ("early warning", set()),
        ("early warning, no gradient norm", {"grad_norm"}),
        ("early warning, mismatch alone", {"grad_norm", "reward_mean"}),
    ]
    run = steep()
    assert [bool(item.alarms(run, 1.0)) for item in (OURS, *VARIANTS)] == [True, False, False]


@pytest.mark.parametrize("rate", OURS.grid)
def test_every_rate_of_the_grid_is_one_a_user_may_ask_for(rate: float) -> None:
    assert DetectorSettings(alarms_per_1000_updates=rate).alarms_per_1000_updates == rate
