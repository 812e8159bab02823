import json
import math
from dataclasses import replace

import pytest
from judge_series import CALM, THRESHOLD, THRESHOLD_MISMATCH, THRESHOLD_REWARD, raised, window

from triage_monitor.judge.alarm_rate import score_threshold
from triage_monitor.judge.defaults import DetectorSettings
from triage_monitor.judge.detector import DetectorState, clear, detect, reset_baseline
from triage_monitor.judge.observation import Observation
from triage_monitor.judge.stages import Stage, Transition

SETTINGS = DetectorSettings()
REWARD_WEIGHT, GRAD_NORM_WEIGHT = SETTINGS.score.reward_weight, SETTINGS.score.grad_norm_weight  # chosen elsewhere
READY = 33  # the tenth full window of 25 updates, counted from 0
CALM_UPDATES = 80
NOISE = (1.0, 1.04, 0.97, 1.02, 0.99)
DRIFTING, WORSE = raised(0.8), raised(1.2)  # alarm at 1, drift from 0.5
BROKEN = {**WORSE, "q0.05_all": -0.4, "abs_delta_mean": 0.15, "near_zero_fraction": 0.5}


def calm(count: int = CALM_UPDATES, first: int = 0) -> list[Observation]:
    """A calm stretch in which the tails and the energy breathe by a few percent."""
    return [
        window(
            first + k,
            q0_001_all=-2.0 * NOISE[k % 5],
            q0_001_neg=-2.2 * NOISE[k % 5],
            q0_001_pos=-1.4 * NOISE[(k + 1) % 5],
            mismatch_energy=0.02 * NOISE[(k + 2) % 5],
        )
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


def test_sustained_rise_of_the_leading_indicators_is_drift_after_enter_updates() -> None:
    _, found = run(calm() + then(10, **DRIFTING))
    assert stages(found)[1:] == [(CALM_UPDATES + 4, "drift")]
    score = found[-1].evidence["warning_score"]
    assert score["value"] == pytest.approx(0.8, rel=0.02)
    assert score["level"] == 0.5
    # 0.5 of the terms' 3.5, and twice over as trend
    assert score["q0.001_neg"] == pytest.approx(0.8 / 8, rel=0.02)
    assert score["trend"] == pytest.approx(0.4, rel=0.04)
    assert score["abs_delta_mean"] == pytest.approx(0.0, abs=1e-9)
    assert sum(value for name, value in score.items() if name not in ("value", "level")) == pytest.approx(
        score["value"]
    )
    assert list(found[-1].evidence) == ["warning_score", "reward_mean", "rho_asym", "window"]
    assert found[-1].rule == "drift"
    assert found[-1].text.startswith("early-warning score 0.8")
    assert "q0.001_neg +0.10" in found[-1].text


def test_interval_of_rho_stands_in_the_evidence() -> None:
    _, found = run(calm() + then(10, **DRIFTING, rho_asym=1.2, log_rho_se=0.05))
    # 1.2 * exp(-+1.96 * 0.05)
    assert found[-1].evidence["rho_asym"] == pytest.approx({"value": 1.2, "low": 1.08797, "high": 1.32356}, rel=1e-4)


def test_short_excursion_is_not_drift() -> None:
    _, found = run(calm() + then(4, **DRIFTING) + calm(40, CALM_UPDATES + 4))
    assert stages(found) == [(READY, "healthy")]


def test_drift_ends_after_leave_updates_below_the_leaving_level() -> None:
    out = CALM_UPDATES + 5
    between = then(15, out, **raised(0.45))  # below the 0.5 that begins a drift, above the 0.4 that ends it
    _, found = run(calm() + then(5, **DRIFTING) + between + calm(10, out + 15))
    assert stages(found)[1:] == [(CALM_UPDATES + 4, "drift"), (out + 24, "healthy")]
    assert found[-1].rule == "calm"


def test_score_at_the_alarm_is_pre_terminal() -> None:
    _, found = run(calm() + then(10, **WORSE))
    assert stages(found)[1:] == [(CALM_UPDATES + 4, "pre_terminal")]
    assert found[-1].evidence["warning_score"]["value"] == pytest.approx(1.2, rel=0.02)
    assert found[-1].evidence["warning_score"]["level"] == 1.0


def test_alarm_ends_below_four_fifths_and_drift_goes_on() -> None:
    out = CALM_UPDATES + 5
    _, found = run(calm() + then(5, **WORSE) + then(10, out, **raised(0.85)) + then(10, out + 10, **raised(0.7)))
    assert stages(found)[1:] == [(CALM_UPDATES + 4, "pre_terminal"), (out + 19, "drift")]


def test_rise_that_stays_counts_half_once_it_is_older_than_the_trend() -> None:
    """For 25 updates a rise counts as level and as trend, then as level alone: 0.7 becomes 0.35."""
    state, found = run(calm() + then(25, **raised(0.7)))
    assert state.score is not None and state.score.value == pytest.approx(0.7, rel=0.03)
    assert stages(found)[1:] == [(CALM_UPDATES + 4, "drift")]
    state, found = run(then(10, CALM_UPDATES + 25, **raised(0.7)), state)
    assert state.score is not None and state.score.value == pytest.approx(0.35, rel=0.03)
    assert stages(found) == [(CALM_UPDATES + 34, "healthy")]


def test_same_rise_alarms_at_a_usual_rate_and_not_at_a_rare_one() -> None:
    rare = min(score_threshold(0.05, reward=reward, grad_norm=False) for reward in (True, False))
    seen = calm() + then(10, **WORSE)
    state, found = run(seen, settings=replace(SETTINGS, alarms_per_1000_updates=0.05))
    assert state.score is not None and state.score.value == pytest.approx(1.2 * THRESHOLD / rare, rel=0.03)
    assert Stage.PRE_TERMINAL not in [item.to_stage for item in found]
    assert Stage.PRE_TERMINAL in [item.to_stage for item in run(seen)[1]]


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
    # The shortfall is part of the score as well, so what it passes on its way is not asked.
    assert (stages(found)[1], stages(found)[-1]) == ((84, "drift"), (94, "terminal"))
    assert found[-1].rule == "terminal_reward"
    assert found[-1].evidence["reward_mean"] == {"value": 0.3, "best": 0.7}
    assert found[-1].evidence["warning_score"]["reward_mean"] == pytest.approx(
        REWARD_WEIGHT * (1 - 0.3 / 0.7) / THRESHOLD_REWARD
    )
    assert "reward 0.3" in found[-1].text


def test_reward_that_falls_alone_alarms_and_never_latches_terminal() -> None:
    state, found = run(calm() + then(60, reward_mean=0.3))
    assert stages(found)[1:] == [(84, "pre_terminal")]
    assert not state.latched


def test_reward_a_little_below_its_best_is_no_alarm() -> None:
    fallen = 0.7 * (1 - 0.3 * THRESHOLD_REWARD / REWARD_WEIGHT)  # 0.3 of the alarm
    state, found = run(calm() + then(60, reward_mean=fallen))
    assert stages(found) == [(READY, "healthy")]
    assert state.score is not None and state.score.value == pytest.approx(0.3, rel=0.01)


def test_negative_best_reward_never_makes_a_terminal_stage() -> None:
    low = [replace(item, values={**item.values, "reward_mean": -1.0}) for item in calm()]
    drifting = raised(0.8, THRESHOLD_MISMATCH)
    _, found = run(low + then(20, **drifting, reward_mean=-4.0))
    assert [item.to_stage.value for item in found] == ["healthy", "drift"]
    assert "reward_mean" not in found[-1].evidence["warning_score"]


def test_run_without_rewards_is_judged_on_mismatch_alone() -> None:
    worse = then(10, **raised(1.2, THRESHOLD_MISMATCH))
    bare = [replace(item, values={**item.values, "reward_mean": None}) for item in calm() + worse]
    _, found = run(bare)
    assert stages(found)[1:] == [(84, "pre_terminal")]
    assert found[-1].evidence["warning_score"]["value"] == pytest.approx(1.2, rel=0.02)
    assert "reward_mean" not in found[-1].evidence


def test_growing_gradient_norm_alone_alarms_when_it_is_sent() -> None:
    sent = score_threshold(1.0, reward=True, grad_norm=True)
    times = math.exp(1.2 * sent / GRAD_NORM_WEIGHT)
    seen = [replace(item, values={**item.values, "grad_norm": 0.2}) for item in calm()] + then(
        10, grad_norm=0.2 * times
    )
    state, found = run(seen)
    assert stages(found)[1:] == [(84, "pre_terminal")]
    assert found[-1].evidence["warning_score"]["grad_norm"] == pytest.approx(1.2, rel=0.01)
    assert state.baseline.medians()["grad_norm"] == pytest.approx(0.2)


def test_directional_imbalance_alone_changes_no_stage() -> None:
    leaning = [
        replace(item, values={**item.values, "rho_asym": 3.0, "asym_share": 0.75}) for item in calm(100, CALM_UPDATES)
    ]
    _, found = run(calm() + leaning)
    assert stages(found) == [(READY, "healthy")]


def test_direction_with_a_crowding_and_rising_tail_is_pre_terminal() -> None:
    """ln 1.6 - 1.96 * 0.01 + ln 1.5 + ln 1.2 = 1.04 e-folds, 0.5 of them free, 0.4 an alarm."""
    signature = {"rho_asym": 1.6, "top5_tail_share": 0.45, "persistence": 3.6}
    _, found = run(calm() + then(10, **raised(0.1), **signature))
    assert stages(found)[1:] == [(84, "pre_terminal")]
    assert found[-1].evidence["warning_score"]["signature"] == pytest.approx(1.3448, rel=1e-3)


def test_undefined_ratios_are_no_alarm() -> None:  # cases C01, C29
    nothing = {"rho_asym": None, "log_rho_se": None, "asym_share": None, "rho_pressure": None}
    _, found = run(calm() + then(100, **nothing, masked_response_fraction=None))
    assert stages(found) == [(READY, "healthy")]


def test_indicator_never_defined_leaves_the_others_judged() -> None:
    # Without the pressure's 0.5 the others weigh 1.5 of 3.0, not 2.0 of 3.5.
    seen = calm() + then(10, **raised(0.8 * (2.0 / 3.5) / (1.5 / 3.0)))
    _, found = run([replace(item, values={**item.values, "rho_pressure": None}) for item in seen])
    assert stages(found)[1:] == [(84, "drift")]


def test_exact_paths_moving_by_multiples_are_no_alarm() -> None:
    tails = ("q0.001_all", "q0.001_neg", "q0.001_pos", "q0.05_all")
    tiny = {**dict.fromkeys(tails, -1e-6), "mismatch_energy": 1e-14, "abs_delta_mean": 1e-7}
    still = {"masked_response_fraction": None, "near_zero_fraction": 1.0}
    moved = {**dict.fromkeys(tails, -9e-6), "mismatch_energy": 1e-12, "abs_delta_mean": 1e-6}
    _, found = run(then(80, 0, **tiny, **still) + then(80, **moved, **still, rho_pressure=40.0))
    assert stages(found) == [(READY, "healthy")]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tokens": 8}, "too_few_tokens"),
        ({"responses": 8}, "too_few_responses"),
        ({"updates": 3}, "too_few_updates"),
    ],
)
def test_verdict_is_withheld_on_too_little_data(changes: dict[str, int], why: str) -> None:  # case C53
    small = [replace(item, **changes) for item in calm() + then(40, **BROKEN)]  # type: ignore[arg-type]
    state, found = run(small)
    assert found == []
    assert (state.stage, state.why) == (Stage.WARMING_UP, why)


def test_too_many_tokens_without_a_gap_are_their_own_condition() -> None:
    tokens = calm()[0].tokens
    missing = [replace(item, unusable_tokens=tokens // 2) for item in then(5, 80)]
    _, found = run(calm() + missing + calm(5, 85))
    assert stages(found)[1:] == [(80, "not_observable"), (85, "healthy")]
    assert found[1].rule == "too_many_unusable_tokens"
    few = [replace(item, unusable_tokens=tokens // 5) for item in then(5, 80)]
    assert stages(run(calm() + few)[1])[1:] == []


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


def test_update_of_exact_zeros_is_not_observable_and_the_next_one_is_judged() -> None:
    blind = [replace(item, observable=False) for item in then(3)]
    _, found = run(calm() + blind + calm(30, 83))
    assert stages(found)[1:] == [(80, "not_observable"), (83, "healthy")]


def test_new_attempt_unlatches_and_keeps_the_frozen_baseline() -> None:
    state, _ = run(calm() + then(10, **BROKEN))
    again = [replace(item, attempt=1, fresh=min(k + 1, 25)) for k, item in enumerate(calm(30, 60))]
    resumed, found = run(again, state)
    assert stages(found) == [(60, "warming_up"), (69, "healthy")]
    assert found[0].rule == "new_attempt, too_few_updates"
    assert resumed.baseline == state.baseline


def test_what_the_older_attempt_left_in_the_window_does_not_latch_the_resumed_one() -> None:
    broken, _ = run(calm() + then(10, **BROKEN))
    assert broken.latched
    resumed = [replace(window(90 + k, 1, **BROKEN), fresh=k + 1) for k in range(24)]
    healed, found = run(resumed + [window(114 + k, 1) for k in range(40)], broken)
    assert "terminal" not in [name for _, name in stages(found)]
    assert healed.stage is Stage.HEALTHY
    worse, found = run(resumed + [window(114 + k, 1, **BROKEN) for k in range(5)], broken)
    assert worse.latched
    assert stages(found)[-1] == (118, "terminal")


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
    assert again.baseline.medians()["q0.001_neg"] == DRIFTING["q0.001_neg"]


def lively() -> list[Observation]:
    """A series that visits every stage and both withheld ones."""
    blind = [replace(item, observable=False) for item in then(2, 96)]
    starved = [replace(item, tokens=9) for item in then(2, 98)]
    drifting = then(12, 100, **DRIFTING) + calm(28, 112) + then(6, 140, **WORSE) + then(6, 146, **BROKEN)
    resumed = [replace(item, attempt=2, fresh=k + 1) for k, item in enumerate(calm(14, 136))]
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
    assert set(SETTINGS.learned()) - {"grad_norm"} <= set(CALM)
