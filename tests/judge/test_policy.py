import json
from dataclasses import replace

import pytest
from judge_series import window

from triage_monitor.errors import ConfigError
from triage_monitor.judge.observation import Observation
from triage_monitor.judge.policy import (
    LEVELS,
    Mode,
    ParameterChange,
    PolicySettings,
    PolicyState,
    begin,
    decide,
    hold,
    release,
    start,
)
from triage_monitor.judge.stages import Stage
from triage_monitor.parameters import TriageParams, changed

BASELINE = {"q0.001_all": -2.0, "mismatch_energy": 0.02, "rho_pressure": 1.8, "masked_response_fraction": 0.95}
ADAPTIVE = PolicySettings(mode=Mode.ADAPTIVE, calm_updates=50)
DRIFTING = {"q0_001_all": -3.4}
WORSE = {"q0_001_all": -4.5, "mismatch_energy": 0.08}
WORST = {**WORSE, "rho_pressure": 4.0}
GENTLE = {"gate.enabled": (False, True), "repair.enabled": (False, True)}

Change = tuple[int, ParameterChange]


def calm(count: int, first: int = 0) -> list[Observation]:
    return [window(first + k) for k in range(count)]


def then(count: int, first: int, **changes: float | None) -> list[Observation]:
    return [window(first + k, **changes) for k in range(count)]


def run(
    settings: PolicySettings,
    seen: list[Observation],
    state: PolicyState | None = None,
    stage: Stage = Stage.HEALTHY,
    material: bool = True,
) -> tuple[PolicyState, list[Change]]:
    state, found = state or begin(settings), []
    for item in seen:
        state, change = decide(settings, state, item, stage=stage, baseline=BASELINE, material=material)
        if change:
            found.append((item.step, change))
    return state, found


def steps(found: list[Change]) -> list[tuple[int, str]]:
    return [(step, change.kind) for step, change in found]


def test_observe_never_changes_a_parameter() -> None:
    assert run(PolicySettings(), calm(50) + then(100, 50, **WORST))[1] == []


def test_paper_sets_gate_and_repair_once_at_the_first_update() -> None:
    settings = PolicySettings(mode=Mode.PAPER, base={"repair": {"k_rep": 40}, "gate": {"segment": 32}})
    _, found = run(settings, calm(3) + then(100, 3, **WORST))
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


def test_leading_indicator_out_of_its_baseline_sets_the_gentle_level() -> None:
    _, found = run(ADAPTIVE, calm(50) + then(10, 50, **DRIFTING))
    assert steps(found) == [(54, "strengthen")]
    change = found[0][1]
    assert changed(TriageParams(), change.params) == GENTLE
    gate, repair = change.params.gate, change.params.repair
    assert (gate.w_min, gate.mean_hi, gate.mean_lo, gate.tail_lo, gate.tail_hi) == (0.5, -0.02, -0.2, 0.02, 0.25)
    assert (gate.tau_tail, repair.lambda_rep, repair.tau_rep, repair.beta) == (-0.25, 5.0, -0.02, 0.5)


def test_change_carries_its_reason_in_words_and_numbers() -> None:
    _, found = run(ADAPTIVE, calm(50) + then(10, 50, **DRIFTING))
    change = found[0][1]
    assert change.reason == (
        "base -> gentle: sustained for 5 updates: q0.001_all -3.4 is 1.70 times its baseline -2 (level 1.5). "
        "Sets gate.enabled False -> True, repair.enabled False -> True"
    )
    assert change.evidence == {
        "q0.001_all": {"value": -3.4, "baseline": -2.0, "level": 1.5, "ratio": pytest.approx(1.7)}
    }


def test_levels_are_climbed_one_at_a_time_and_not_within_the_dwell() -> None:
    _, found = run(ADAPTIVE, calm(50) + then(200, 50, **WORST))
    assert steps(found) == [(54, "strengthen"), (69, "strengthen"), (84, "strengthen")]
    assert [change.params.gate.w_min for _, change in found] == [0.5, 0.4, 0.3]


def test_strength_is_bounded_by_the_last_level() -> None:
    state, found = run(ADAPTIVE, calm(50) + then(2000, 50, **WORST))
    assert len(found) == len(LEVELS)
    assert state.level == len(LEVELS)


def test_single_leading_indicator_never_climbs_beyond_gentle() -> None:
    state, found = run(ADAPTIVE, calm(50) + then(500, 50, q0_001_all=-20.0))
    assert (state.level, len(found)) == (1, 1)


def test_calm_updates_relax_one_level_at_a_time() -> None:
    seen = calm(50) + then(30, 50, **WORSE) + calm(300, 80)
    state, found = run(ADAPTIVE, seen)
    # The rules leave after 10 calm windows, at 89; that update is the first of 50 calm ones.
    assert steps(found) == [(54, "strengthen"), (69, "strengthen"), (138, "relax"), (188, "relax")]
    assert state.params == TriageParams()
    assert found[-1][1].reason.startswith("gentle -> base: calm for 50 updates: ")


def test_return_of_trouble_starts_the_calm_count_anew() -> None:
    seen = calm(50) + then(30, 50, **DRIFTING) + calm(40, 80) + then(10, 120, **DRIFTING) + calm(55, 130)
    _, found = run(ADAPTIVE, seen)
    assert steps(found) == [(54, "strengthen")]


def test_nothing_is_relaxed_while_the_stage_is_terminal() -> None:
    state, _ = run(ADAPTIVE, calm(50) + then(30, 50, **DRIFTING))
    after, later = run(ADAPTIVE, calm(500, 80), state, Stage.TERMINAL)
    assert (later, after.level) == ([], 1)


@pytest.mark.parametrize("stage", [Stage.WARMING_UP, Stage.NOT_OBSERVABLE])
def test_nothing_moves_while_the_verdict_is_withheld(stage: Stage) -> None:
    assert run(ADAPTIVE, then(100, 0, **WORST), stage=stage)[1] == []


def test_immaterial_tail_moves_nothing() -> None:
    assert run(ADAPTIVE, then(100, 0, **WORST), material=False)[1] == []


def test_fields_outside_the_levels_are_left_as_they_are() -> None:
    base = {"gate": {"segment": 32, "mean_hi": -0.03}, "precision": "fp8", "lease_updates": 7}
    _, found = run(replace(ADAPTIVE, base=base), then(10, 0, **DRIFTING))
    params = found[0][1].params
    assert (params.gate.segment, params.gate.mean_hi, params.precision, params.lease_updates) == (32, -0.03, "fp8", 7)


def test_operator_hold_stops_the_policy_until_release() -> None:
    mine = TriageParams().with_changes({"gate.enabled": True, "gate.w_min": 0.7})
    state, found = run(ADAPTIVE, then(50, 0, **WORST), hold(begin(ADAPTIVE), mine, "operator"))
    assert (found, state.params, state.note) == ([], mine, "held: operator set the parameters")
    state, found = run(ADAPTIVE, then(10, 50, **DRIFTING), release(state))
    assert steps(found) == [(54, "strengthen")]
    assert found[0][1].params.gate.w_min == 0.5


def test_tis_set_by_an_operator_blocks_gate_and_repair() -> None:
    with_tis = TriageParams().with_changes({"tis.enabled": True})
    held = release(hold(begin(ADAPTIVE), with_tis, "operator"))
    state, found = run(ADAPTIVE, then(50, 0, **WORST), held)
    assert found == []
    assert state.params == with_tis
    assert state.note.startswith("blocked: TIS is on")


def test_tis_in_the_configuration_beside_gate_and_repair_is_refused_unless_asked_for() -> None:
    base = {"tis": {"enabled": True}}
    for mode in (Mode.PAPER, Mode.ADAPTIVE):
        with pytest.raises(ConfigError, match="allow_tis_with_triage"):
            PolicySettings(mode=mode, base=base)
    asked = PolicySettings(mode=Mode.ADAPTIVE, base=base, allow_tis_with_triage=True)
    _, found = run(asked, then(10, 0, **DRIFTING))
    assert found[0][1].params.tis.enabled
    assert found[0][1].params.gate.enabled


def test_levels_may_use_tis_alone() -> None:
    tis = replace(LEVELS[0], name="tis", changes={"tis.enabled": True})
    _, found = run(replace(ADAPTIVE, levels=(tis,)), then(10, 0, **DRIFTING))
    assert changed(TriageParams(), found[0][1].params) == {"tis.enabled": (False, True)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gate.w_min": 1.5}, "gate.w_min"),
        ({"gate.strength": 1.0}, "gate.strength"),
        ({"version": 3}, "version"),
    ],
)
def test_level_out_of_bounds_is_refused_when_built(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(ADAPTIVE, levels=(replace(LEVELS[0], changes=changes),))


def test_base_out_of_bounds_is_refused_when_built() -> None:
    with pytest.raises(ConfigError, match=r"gate\.w_mn"):
        PolicySettings(base={"gate": {"w_mn": 0.5}})


def test_new_attempt_keeps_the_parameters_and_counts_anew() -> None:
    state, _ = run(ADAPTIVE, then(9, 0, **DRIFTING))
    resumed = [replace(item, attempt=1) for item in then(4, 5, **WORSE)]
    after, found = run(ADAPTIVE, resumed, state)
    assert found == []
    assert after.params == state.params
    assert after.level == 1


def test_stopped_at_any_point_it_continues_bit_for_bit() -> None:
    seen = calm(10) + then(30, 10, **WORST) + calm(200, 40)
    whole, expected = run(ADAPTIVE, seen)
    assert {change.kind for _, change in expected} == {"strengthen", "relax"}
    for cut in range(len(seen)):
        head, first = run(ADAPTIVE, seen[:cut])
        restored = PolicyState.from_dict(json.loads(json.dumps(head.to_dict(), allow_nan=False)))
        tail, second = run(ADAPTIVE, seen[cut:], restored)
        assert first + second == expected
        assert tail.to_dict() == whole.to_dict()
