"""The policy acts on the detector's stage, not on levels of its own: one alarm, one answer."""

from dataclasses import replace
from itertools import pairwise

import pytest
from judge_series import window
from policy_series import ADAPTIVE, DRIFT, GENTLE, HEALTHY, PRE_TERMINAL, TERMINAL, calm, names, run, steps, then

from triage_monitor.errors import ConfigError
from triage_monitor.judge.policy import (
    Mode,
    PolicySettings,
    begin,
    hold,
    release,
    start,
)
from triage_monitor.judge.remedies import REMEDIES, Remedy
from triage_monitor.judge.stages import Stage
from triage_monitor.parameters import TriageParams, changed


def test_observe_never_changes_a_parameter() -> None:
    assert run(PolicySettings(), calm(50) + then(100, 50, TERMINAL))[1] == []


def test_paper_sets_gate_and_repair_once_at_the_first_update() -> None:
    settings = PolicySettings(mode=Mode.PAPER, base={"repair": {"k_rep": 40}, "gate": {"segment": 32}})
    _, found = run(settings, calm(3) + then(100, 3, TERMINAL))
    assert steps(found) == [(0, "start")]
    params = found[0][1].params
    assert (params.gate.enabled, params.repair.enabled, params.repair.k_rep) == (True, True, 40)
    assert params.gate.segment == 32
    assert not params.tis.enabled
    assert "repair from step 40" in found[0][1].reason


def test_paper_asked_for_its_start_does_not_issue_it_again() -> None:
    settings = PolicySettings(mode=Mode.PAPER)
    state, change = start(settings, begin(settings))
    assert change.params.gate.enabled
    assert run(settings, calm(20), state)[1] == []


def test_adaptive_starts_with_nothing_on() -> None:
    _, change = start(ADAPTIVE, begin(ADAPTIVE))
    assert change.params == TriageParams()
    assert run(ADAPTIVE, calm(500))[1] == []


# --- entering a remedy


def test_drift_sets_the_gentle_remedy_at_once() -> None:
    _, found = run(ADAPTIVE, calm(50) + then(10, 50, DRIFT))
    assert steps(found) == [(50, "strengthen")]
    change = found[0][1]
    assert changed(TriageParams(), change.params) == GENTLE
    gate, repair = change.params.gate, change.params.repair
    assert (gate.w_min, gate.mean_hi, gate.mean_lo, gate.tail_lo, gate.tail_hi) == (0.5, -0.02, -0.2, 0.02, 0.25)
    assert (gate.tau_tail, repair.lambda_rep, repair.tau_rep, repair.beta) == (-0.25, 5.0, -0.02, 0.5)


def test_change_carries_its_reason_in_words_and_numbers() -> None:
    _, found = run(ADAPTIVE, calm(50) + then(1, 50, DRIFT, q0_001_all=-3.4))
    change = found[0][1]
    assert change.reason == (
        "base -> gentle: stage drift: reward_mean 0.7, mismatch_energy 0.02 (baseline 0.02), q0.001_all -3.4 "
        "(baseline -2). Sets gate.enabled False -> True, repair.enabled False -> True"
    )
    assert change.evidence["q0.001_all"] == {"value": -3.4, "baseline": -2.0}


def test_terminal_from_nothing_sets_the_fallback() -> None:
    _, found = run(ADAPTIVE, calm(50) + then(100, 50, TERMINAL))
    assert names(found) == [(50, "fallback")]
    assert changed(TriageParams(), found[0][1].params) == {"precision": ("nvfp4", "bf16")}


@pytest.mark.parametrize("stage", [Stage.WARMING_UP, Stage.NOT_OBSERVABLE])
def test_nothing_moves_while_the_verdict_is_withheld(stage: Stage) -> None:
    assert run(ADAPTIVE, then(100, 0, stage, q0_001_all=-20.0))[1] == []


def test_drift_that_stays_drift_under_a_remedy_that_neither_helps_nor_harms_is_left_at_it() -> None:
    state, found = run(ADAPTIVE, calm(50) + then(500, 50, DRIFT))
    assert (state.remedy, len(found)) == ("gentle", 1)


# --- the trial and what follows


def test_pre_terminal_waits_for_the_trial_and_then_falls_back_when_it_did_not_help() -> None:
    _, found = run(ADAPTIVE, calm(50) + then(3, 50, DRIFT) + then(60, 53, PRE_TERMINAL))
    # Entered at 50; twenty updates later nothing is better than foretold.
    assert names(found) == [(50, "gentle"), (70, "fallback")]
    change = found[1][1]
    assert change.kind == "strengthen"
    assert changed(TriageParams(), change.params) == {"precision": ("nvfp4", "bf16")}
    assert "gentle neutral: " in change.reason


def test_remedy_that_helps_is_kept_through_pre_terminal_for_as_long_as_it_is_watched() -> None:
    seen = calm(50) + then(1, 50, PRE_TERMINAL) + then(100, 51, PRE_TERMINAL, mismatch_energy=0.01)
    _, found = run(ADAPTIVE, seen)
    # 60 watched updates from 50 on; an alarm that is still there after them is not being cured.
    assert names(found) == [(50, "gentle"), (111, "fallback")]


def test_terminal_does_not_wait_for_the_trial_but_for_the_dwell() -> None:
    _, found = run(ADAPTIVE, calm(50) + then(1, 50, DRIFT) + then(60, 51, TERMINAL))
    assert names(found) == [(50, "gentle"), (65, "fallback")]


def test_remedy_under_which_the_reward_falls_is_replaced_and_not_tried_again() -> None:
    seen = calm(50) + then(1, 50, DRIFT) + then(19, 51, DRIFT, reward_mean=0.5) + calm(200, 70, DRIFT)
    state, found = run(ADAPTIVE, seen)
    assert names(found) == [(50, "gentle"), (70, "tis")]
    change = found[1][1]
    assert change.kind == "switch"
    assert changed(TriageParams(), change.params) == {"tis.enabled": (False, True)}
    assert "harmed: reward_mean 0.5 where 0.7 was expected" in change.reason
    assert change.evidence["reward_mean"]["expected"] == pytest.approx(0.7)
    assert (state.harmed, state.remedy) == (("gentle",), "tis")


def test_harm_on_a_healthy_stage_goes_back_to_nothing() -> None:
    seen = calm(50) + then(1, 50, DRIFT) + then(60, 51, HEALTHY, reward_mean=0.5)
    state, found = run(ADAPTIVE, seen)
    assert steps(found) == [(50, "strengthen"), (70, "undo")]
    assert (state.params, state.remedy, state.handed_over) == (TriageParams(), "", False)


def test_mismatch_that_grows_beyond_what_was_foretold_is_harm_too() -> None:
    grown = {"mismatch_energy": 0.06, "q0_001_all": -4.0}
    _, found = run(ADAPTIVE, calm(50) + then(1, 50, DRIFT) + then(60, 51, DRIFT, **grown))
    assert names(found) == [(50, "gentle"), (70, "tis")]


def test_mismatch_growth_that_the_window_before_foretold_is_no_harm() -> None:
    rising = [(window(k, mismatch_energy=0.02 * 1.03**k, q0_001_all=-2.0 * 1.02**k), HEALTHY) for k in range(50)]
    goes_on = [(window(k, mismatch_energy=0.02 * 1.03**k, q0_001_all=-2.0 * 1.02**k), DRIFT) for k in range(50, 72)]
    assert names(run(ADAPTIVE, rising + goes_on)[1]) == [(50, "gentle")]


def test_when_every_remedy_harmed_the_run_is_handed_over_on_the_safe_set() -> None:
    seen = calm(50) + then(1, 50, DRIFT)
    rewards = [0.5] * 20 + [0.3] * 20
    seen += [(window(51 + k, reward_mean=reward), DRIFT) for k, reward in enumerate(rewards)]
    seen += then(200, 91, DRIFT, reward_mean=0.3)
    without_fallback = replace(ADAPTIVE, remedies=REMEDIES[:2])
    state, found = run(without_fallback, seen)
    assert steps(found) == [(50, "strengthen"), (70, "switch"), (90, "undo")]
    assert state.params == TriageParams()
    assert state.handed_over
    assert state.note.startswith("handed over: every remedy harmed")


def test_fallback_that_harmed_stays_and_a_person_is_called() -> None:
    seen = calm(50) + then(1, 50, TERMINAL) + then(60, 51, TERMINAL, reward_mean=0.4)
    state, found = run(ADAPTIVE, seen)
    assert names(found) == [(50, "fallback")]
    assert state.params.precision == "bf16"
    assert state.note.startswith("handed over: fallback harmed: reward_mean 0.4 where 0.7 was expected")


def test_terminal_under_the_fallback_is_handed_over_once_its_trial_is_over() -> None:
    state, found = run(ADAPTIVE, calm(50) + then(21, 50, TERMINAL))
    assert names(found) == [(50, "fallback")]
    assert state.note.startswith("handed over: terminal and nothing left to try; fallback neutral: ")


def test_budget_of_changes_ends_in_the_safe_set_and_a_note() -> None:
    settings = replace(ADAPTIVE, max_changes=1)
    seen = calm(50) + then(1, 50, DRIFT) + then(100, 51, DRIFT, reward_mean=0.5)
    state, found = run(settings, seen)
    assert steps(found) == [(50, "strengthen"), (70, "hand_over")]
    assert state.params.precision == "bf16"
    assert state.note.startswith("handed over: 1 changes in this attempt did not settle it; ")


def test_release_takes_a_handed_over_run_back() -> None:
    seen = calm(50) + then(60, 50, TERMINAL)
    state, _ = run(ADAPTIVE, seen)
    assert state.handed_over
    after, found = run(ADAPTIVE, then(1, 110, DRIFT), release(state))
    assert names(found) == [(110, "gentle")]
    assert not after.handed_over


def test_two_changes_are_never_within_the_dwell() -> None:
    stages = [DRIFT, PRE_TERMINAL, TERMINAL, HEALTHY]
    for seed in range(40):
        seen = []
        for k in range(300):
            stage = stages[(k * (seed + 3) // 17 + k // 7) % 4]
            seen.append((window(k, reward_mean=0.7 - 0.2 * ((k // (11 + seed)) % 2)), stage))
        at = [step for step, _ in run(replace(ADAPTIVE, calm_updates=5), seen)[1]]
        assert all(later - earlier >= ADAPTIVE.min_dwell_updates for earlier, later in pairwise(at))
        assert len(at) <= ADAPTIVE.max_changes + 1


# --- relaxing


def test_calm_updates_relax_and_trouble_that_returns_is_not_relaxed_again() -> None:
    seen = calm(50) + then(10, 50, DRIFT) + calm(60, 60) + then(5, 120, DRIFT) + calm(300, 125)
    state, found = run(ADAPTIVE, seen)
    # 60 is the first of 50 healthy updates.
    assert steps(found) == [(50, "strengthen"), (109, "relax"), (124, "strengthen")]
    assert found[1][1].params == TriageParams()
    assert found[1][1].reason.startswith("gentle -> base: healthy for 50 updates: ")
    assert state.remedy == "gentle"


def test_return_of_trouble_starts_the_calm_count_anew() -> None:
    seen = calm(50) + then(30, 50, DRIFT) + calm(40, 80) + then(10, 120, DRIFT) + calm(45, 130)
    assert steps(run(ADAPTIVE, seen)[1]) == [(50, "strengthen")]


def test_nothing_is_taken_back_while_the_stage_is_terminal() -> None:
    no_fallback = replace(ADAPTIVE, remedies=REMEDIES[:2])
    for changes in ({}, {"reward_mean": 0.1}):
        seen = calm(50) + then(1, 50, DRIFT) + then(500, 51, TERMINAL, **changes)
        state, found = run(no_fallback, seen)
        assert names(found) == [(50, "gentle")]
        assert state.params.gate.enabled


def test_fallback_is_not_relaxed_because_calm_gaps_in_bf16_say_nothing_about_4_bits() -> None:
    state, found = run(ADAPTIVE, calm(50) + then(1, 50, TERMINAL) + calm(1000, 51))
    assert names(found) == [(50, "fallback")]
    assert state.params.precision == "bf16"


# --- what else stands


def test_fields_outside_the_remedies_are_left_as_they_are() -> None:
    base = {"gate": {"segment": 32, "mean_hi": -0.03}, "precision": "fp8", "lease_updates": 7}
    _, found = run(replace(ADAPTIVE, base=base), then(10, 0, DRIFT))
    params = found[0][1].params
    assert (params.gate.segment, params.gate.mean_hi, params.precision, params.lease_updates) == (32, -0.03, "fp8", 7)


def test_operator_hold_stops_the_policy_until_release() -> None:
    mine = TriageParams().with_changes({"gate.enabled": True, "gate.w_min": 0.7})
    state, found = run(ADAPTIVE, then(50, 0, TERMINAL), hold(begin(ADAPTIVE), mine, "operator"))
    assert (found, state.params, state.note) == ([], mine, "held: operator set the parameters")
    state, found = run(ADAPTIVE, then(1, 50, DRIFT), release(state))
    assert steps(found) == [(50, "strengthen")]
    assert found[0][1].params.gate.w_min == 0.5


def test_tis_set_by_an_operator_gives_way_to_gate_and_repair_after_release_and_never_joins_them() -> None:
    """TIS is a remedy of the policy's own now, so that after `release` it is the policy's to take off."""
    with_tis = TriageParams().with_changes({"tis.enabled": True})
    held = release(hold(begin(ADAPTIVE), with_tis, "operator"))
    _, found = run(ADAPTIVE, then(1, 0, DRIFT), held)
    params = found[0][1].params
    assert (params.tis.enabled, params.gate.enabled, params.repair.enabled) == (False, True, True)


def test_tis_outside_what_remedies_govern_blocks_gate_and_repair() -> None:
    settings = replace(ADAPTIVE, remedies=REMEDIES[:1])
    held = release(hold(begin(settings), TriageParams().with_changes({"tis.enabled": True}), "operator"))
    state, found = run(settings, then(50, 0, DRIFT), held)
    assert found == []
    assert state.params.tis.enabled
    assert state.note.startswith("blocked: TIS is on")


def test_tis_in_the_configuration_beside_gate_and_repair_is_refused_unless_asked_for() -> None:
    base = {"tis": {"enabled": True}}
    for mode in (Mode.PAPER, Mode.ADAPTIVE):
        with pytest.raises(ConfigError, match="allow_tis_with_triage"):
            PolicySettings(mode=mode, base=base)
    asked = PolicySettings(mode=Mode.ADAPTIVE, base=base, allow_tis_with_triage=True)
    _, found = run(asked, then(10, 0, DRIFT))
    assert found[0][1].params.tis.enabled
    assert found[0][1].params.gate.enabled


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gate.w_min": 1.5}, "gate.w_min"),
        ({"gate.strength": 1.0}, "gate.strength"),
        ({"version": 3}, "version"),
    ],
)
def test_remedy_out_of_bounds_is_refused_when_built(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(ADAPTIVE, remedies=(replace(REMEDIES[0], changes=changes),))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Remedy("", (DRIFT,), {}),
        lambda: Remedy("x", (), {}),
        lambda: Remedy("x", (HEALTHY,), {}),
        lambda: replace(ADAPTIVE, remedies=(REMEDIES[0], REMEDIES[0])),
        lambda: replace(ADAPTIVE, watch_updates=5),
        lambda: replace(ADAPTIVE, max_changes=0),
    ],
)
def test_remedies_that_cannot_work_are_refused(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]


def test_base_out_of_bounds_is_refused_when_built() -> None:
    with pytest.raises(ConfigError, match=r"gate\.w_mn"):
        PolicySettings(base={"gate": {"w_mn": 0.5}})


def test_new_attempt_keeps_the_parameters_and_forgets_verdicts() -> None:
    seen = calm(50) + then(1, 50, DRIFT) + then(60, 51, HEALTHY, reward_mean=0.5)
    state, _ = run(ADAPTIVE, seen)
    assert state.harmed == ("gentle",)
    resumed = [(replace(item, attempt=1), stage) for item, stage in then(1, 40, DRIFT)]
    after, found = run(ADAPTIVE, resumed, state)
    assert names(found) == [(40, "gentle")]
    assert (after.harmed, after.attempt) == ((), 1)


def test_remedy_in_force_stays_over_a_new_attempt() -> None:
    state, _ = run(ADAPTIVE, calm(50) + then(9, 50, DRIFT))
    resumed = [(replace(item, attempt=1), stage) for item, stage in then(4, 55, DRIFT)]
    after, found = run(ADAPTIVE, resumed, state)
    assert (found, after.params, after.remedy) == ([], state.params, "gentle")
