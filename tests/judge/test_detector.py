import json
from dataclasses import replace

import pytest
from judge_series import CALM, window

from triage_monitor.judge.defaults import DetectorSettings
from triage_monitor.judge.detector import DetectorState, clear, detect, reset_baseline
from triage_monitor.judge.observation import Observation
from triage_monitor.judge.stages import Stage, Transition

SETTINGS = DetectorSettings()
READY = 33  # the tenth full window of 25 updates, counted from 0
CALM_UPDATES = 80
NOISE = (1.0, 1.04, 0.97, 1.02, 0.99)
DRIFTING = {"q0_001_all": -3.4}
WORSE = {"q0_001_all": -4.5, "mismatch_energy": 0.08}
BROKEN = {**WORSE, "q0_05_all": -0.4, "abs_delta_mean": 0.15, "near_zero_fraction": 0.5}


def calm(count: int = CALM_UPDATES, first: int = 0) -> list[Observation]:
    """A calm stretch in which the tail and the energy breathe by a few percent."""
    return [
        window(first + k, q0_001_all=-2.0 * NOISE[k % 5], mismatch_energy=0.02 * NOISE[(k + 2) % 5])
        for k in range(count)
    ]


def then(count: int, first: int = CALM_UPDATES, **changes: float | None) -> list[Observation]:
    return [window(first + k, **changes) for k in range(count)]


def run(
    seen: list[Observation], state: DetectorState | None = None, settings: DetectorSettings = SETTINGS
) -> tuple[DetectorState, list[Transition]]:
    state, found = state or DetectorState(), []
    for item in seen:
        state, transition = detect(settings, state, item)
        if transition:
            found.append(transition)
    return state, found


def stages(transitions: list[Transition]) -> list[tuple[int, str]]:
    return [(item.step, item.to_stage.value) for item in transitions]


def test_calm_run_becomes_healthy_once_and_stays() -> None:
    state, found = run(calm(600))
    assert stages(found) == [(READY, "healthy")]
    assert state.baseline.frozen


def test_flat_offset_of_a_low_precision_rollout_is_no_alarm() -> None:  # case C23
    level = {"abs_delta_mean": 0.271, "q0_001_all": -6.0, "q0_05_all": -0.9, "mismatch_energy": 0.5}
    _, found = run(then(200, 0, **level, near_zero_fraction=0.1, rho_pressure=1.0))
    assert [item.to_stage for item in found] == [Stage.HEALTHY]


def test_one_sustained_leading_indicator_is_drift_after_enter_updates() -> None:
    _, found = run(calm() + then(10, **DRIFTING))
    assert stages(found)[1:] == [(CALM_UPDATES + 4, "drift")]
    numbers = found[-1].evidence["q0.001_all"]
    assert numbers["value"] == -3.4
    assert numbers["baseline"] == pytest.approx(-2.0)
    assert numbers["ratio"] == pytest.approx(1.7)
    assert numbers["level"] == 1.5
    assert list(found[-1].evidence) == ["q0.001_all", "reward_mean", "rho_asym", "window"]
    assert found[-1].rule == "drift"
    assert "q0.001_all -3.4 is 1.70 times its baseline -2" in found[-1].text


def test_interval_of_rho_stands_in_the_evidence() -> None:
    _, found = run(calm() + then(10, **DRIFTING, rho_asym=1.2, log_rho_se=0.05))
    # 1.2 * exp(-+1.96 * 0.05)
    assert found[-1].evidence["rho_asym"] == pytest.approx({"value": 1.2, "low": 1.08797, "high": 1.32356}, rel=1e-4)


def test_short_excursion_is_not_drift() -> None:
    _, found = run(calm() + then(4, **DRIFTING) + calm(40, CALM_UPDATES + 4))
    assert stages(found) == [(READY, "healthy")]


def test_drift_ends_after_leave_updates_below_the_leaving_level() -> None:
    out = CALM_UPDATES + 10
    between = then(20, out, q0_001_all=-2.8)  # 1.4 times: below the level of 1.5, above the leaving level of 1.3
    _, found = run(calm() + then(10, **DRIFTING) + between + calm(10, out + 20))
    assert stages(found)[1:] == [(CALM_UPDATES + 4, "drift"), (out + 29, "healthy")]
    assert found[-1].rule == "calm"


def test_two_leading_indicators_further_out_are_pre_terminal() -> None:
    _, found = run(calm() + then(10, **WORSE))
    assert stages(found)[1:] == [(CALM_UPDATES + 4, "pre_terminal")]
    assert {"q0.001_all", "mismatch_energy"} <= set(found[-1].evidence)


def test_one_indicator_alone_is_never_pre_terminal() -> None:
    _, found = run(calm() + then(60, q0_001_all=-9.0))
    assert stages(found)[1:] == [(CALM_UPDATES + 4, "drift")]


def test_bulk_of_the_distribution_moving_is_terminal_and_latches() -> None:
    # Afterwards the gaps shrink, as they do in a run that has become deterministic.
    after = then(200, CALM_UPDATES + 10, q0_001_all=-0.2, mismatch_energy=1e-3, abs_delta_mean=0.01)
    state, found = run(calm() + then(10, **BROKEN) + after)
    assert stages(found)[1:] == [(CALM_UPDATES + 4, "terminal")]
    assert found[-1].rule == "terminal_magnitude"
    assert found[-1].evidence["abs_delta_mean"]["ratio"] == pytest.approx(0.15 / 0.045)
    assert state.latched


def test_operator_clears_a_latched_stage_and_counting_starts_anew() -> None:
    state, _ = run(calm() + then(10, **BROKEN))
    cleared, transition = clear(state, 90)
    assert transition is not None
    assert (transition.from_stage, transition.to_stage, transition.rule) == ("terminal", "warming_up", "cleared")
    _, found = run(then(10, 90, **BROKEN), cleared)
    # Not called healthy meanwhile: while something is on its way in, warming up goes on.
    assert stages(found) == [(94, "terminal")]
    assert clear(DetectorState(), 3) == (DetectorState(), None)


def test_reward_below_half_of_its_best_with_the_mismatch_out_is_terminal() -> None:
    _, found = run(calm() + then(10, **DRIFTING) + then(10, 90, **DRIFTING, reward_mean=0.3))
    assert stages(found)[1:] == [(84, "drift"), (94, "terminal")]
    assert found[-1].rule == "terminal_reward"
    assert found[-1].evidence["reward_mean"] == {"value": 0.3, "best": 0.7}
    assert "reward 0.3" in found[-1].text


def test_reward_falling_with_the_mismatch_at_its_baseline_is_not_terminal() -> None:
    _, found = run(calm() + then(60, reward_mean=0.1))
    assert stages(found) == [(READY, "healthy")]


def test_negative_best_reward_never_makes_a_terminal_stage() -> None:
    low = [replace(item, values={**item.values, "reward_mean": -1.0}) for item in calm()]
    _, found = run(low + then(30, **DRIFTING, reward_mean=-4.0))
    assert [item.to_stage.value for item in found] == ["healthy", "drift"]


def test_run_without_rewards_is_judged_on_mismatch_alone() -> None:
    bare = [replace(item, values={**item.values, "reward_mean": None}) for item in calm() + then(10, **WORSE)]
    _, found = run(bare)
    assert stages(found)[1:] == [(84, "pre_terminal")]
    assert "reward_mean" not in found[-1].evidence


def test_directional_imbalance_alone_changes_no_stage() -> None:
    _, found = run(calm() + then(100, rho_asym=3.0, asym_share=0.75))
    assert stages(found) == [(READY, "healthy")]


def test_undefined_ratios_are_no_alarm() -> None:  # cases C01, C29
    nothing = {"rho_asym": None, "log_rho_se": None, "asym_share": None, "rho_pressure": None}
    _, found = run(calm() + then(100, **nothing, masked_response_fraction=None))
    assert stages(found) == [(READY, "healthy")]


def test_indicator_never_defined_leaves_the_others_judged() -> None:
    blind = [replace(item, values={**item.values, "rho_pressure": None}) for item in calm() + then(10, **DRIFTING)]
    _, found = run(blind)
    assert stages(found)[1:] == [(84, "drift")]


def test_exact_paths_moving_by_multiples_are_no_alarm() -> None:
    tiny = {"q0_001_all": -1e-6, "mismatch_energy": 1e-14, "abs_delta_mean": 1e-7, "q0_05_all": -1e-7}
    still = {"masked_response_fraction": None, "near_zero_fraction": 1.0}
    moved = {"q0_001_all": -9e-6, "mismatch_energy": 1e-12, "abs_delta_mean": 1e-6, "q0_05_all": -1e-6}
    _, found = run(then(80, 0, **tiny, **still) + then(80, **moved, **still, rho_pressure=40.0))
    assert stages(found) == [(READY, "healthy")]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tokens": 8}, "too_few_tokens"),
        ({"responses": 8}, "too_few_responses"),
        ({"updates": 3}, "too_few_updates"),
        ({"unusable_tokens": 100_000}, "too_many_unusable_tokens"),
    ],
)
def test_verdict_is_withheld_on_too_little_data(changes: dict[str, int], why: str) -> None:  # case C53
    small = [replace(item, **changes) for item in calm() + then(40, **BROKEN)]  # type: ignore[arg-type]
    state, found = run(small)
    assert found == []
    assert (state.stage, state.why) == (Stage.WARMING_UP, why)


def test_same_numbers_on_enough_data_are_judged() -> None:  # case C53, 1000 replications
    state, _ = run([replace(item, tokens=200_000) for item in calm() + then(40, **BROKEN)])
    assert state.stage is Stage.TERMINAL


def test_data_running_out_withholds_but_does_not_unlatch() -> None:
    starved = [replace(item, tokens=5) for item in then(5, 90, **BROKEN)]
    drifting, found = run(calm() + then(10, **DRIFTING) + starved)
    assert stages(found)[1:] == [(84, "drift"), (90, "warming_up")]
    assert found[-1].rule == "too_few_tokens"
    latched, found = run(calm() + then(10, **BROKEN) + starved)
    assert latched.stage is Stage.TERMINAL
    assert drifting.stage is Stage.WARMING_UP


def test_update_of_exact_zeros_is_not_observable_and_then_needs_fresh_updates() -> None:
    blind = [replace(item, observable=False) for item in then(3)]
    _, found = run(calm() + blind + calm(30, 83))
    assert stages(found)[1:] == [(80, "not_observable"), (83, "warming_up"), (92, "healthy")]


def test_zeros_do_not_enter_the_baseline() -> None:
    zeros = {"q0_001_all": 0.0, "mismatch_energy": 0.0}
    blind = [replace(item, observable=False) for item in then(10, 0, **zeros)]
    diluted = then(24, 10, q0_001_all=-1.0, mismatch_energy=0.01)
    state, _ = run(blind + diluted + calm(60, 34))
    assert state.baseline.medians()["q0.001_all"] == pytest.approx(-2.0, rel=0.02)


def test_new_attempt_unlatches_and_keeps_the_frozen_baseline() -> None:
    state, _ = run(calm() + then(10, **BROKEN))
    again = [replace(item, attempt=1) for item in calm(30, 60)]
    resumed, found = run(again, state)
    assert stages(found) == [(60, "warming_up"), (69, "healthy")]
    assert found[0].rule == "new_attempt, too_few_updates"
    assert resumed.baseline == state.baseline


def test_run_that_falls_apart_while_learning_does_not_learn_it() -> None:
    state, found = run(calm(40) + then(120, 40, **BROKEN))
    assert stages(found)[1:] == [(44, "terminal")]
    assert state.baseline.medians()["abs_delta_mean"] == pytest.approx(0.045)


def test_reset_baseline_learns_again() -> None:
    state, _ = run(calm())
    fresh = reset_baseline(state)
    assert fresh.baseline.offered == 0
    again, found = run(then(30, **DRIFTING), fresh)
    assert stages(found) == [(80, "warming_up"), (89, "healthy")]
    assert again.baseline.medians()["q0.001_all"] == -3.4


def lively() -> list[Observation]:
    """A series that visits every stage and both withheld ones."""
    blind = [replace(item, observable=False) for item in then(2, 96)]
    starved = [replace(item, tokens=9) for item in then(2, 98)]
    drifting = then(12, 100, **DRIFTING) + calm(12, 112) + then(6, 124, **WORSE) + then(6, 130, **BROKEN)
    resumed = [replace(item, attempt=2) for item in calm(14, 120)]
    return calm(96) + blind + starved + drifting + resumed


def test_stopped_at_any_point_it_continues_bit_for_bit() -> None:  # case C39
    seen = lively()
    whole, expected = run(seen)
    assert {item.to_stage for item in expected} == set(Stage)
    for cut in range(len(seen)):
        head, first = run(seen[:cut])
        text = json.dumps(head.to_dict(), allow_nan=False)
        tail, second = run(seen[cut:], DetectorState.from_dict(json.loads(text)))
        assert first + second == expected
        assert tail.to_dict() == whole.to_dict()


def test_replay_gives_the_identical_transitions() -> None:
    assert run(lively())[1] == run(lively())[1]


def test_calm_series_covers_every_default_indicator() -> None:
    assert set(SETTINGS.learned()) <= set(CALM)
