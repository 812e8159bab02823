"""Updates whose columns are no basis for a verdict: neither health nor drift, and nothing of them stays behind."""

from dataclasses import replace

from judge_series import window

from triage_monitor.judge.defaults import DetectorSettings
from triage_monitor.judge.detector import DetectorState, detect
from triage_monitor.judge.observation import Observation
from triage_monitor.judge.stages import Stage

WILD = {"q0_001_all": -9.0, "q0_05_all": -3.0, "mismatch_energy": 3.0, "abs_delta_mean": 1.2, "near_zero_fraction": 0.1}


def run(
    seen: list[Observation], state: DetectorState | None = None
) -> tuple[DetectorState, list[tuple[int, str, str]]]:
    state, found = state or DetectorState(), []
    for item in seen:
        state, transition = detect(DetectorSettings(), state, item)
        if transition is not None:
            found.append((item.step, transition.to_stage.value, transition.rule))
    return state, found


def blinded(count: int, first: int) -> list[Observation]:
    return [replace(window(first + k, **WILD), blinded_by="token_misalignment") for k in range(count)]


def test_misaligned_columns_are_not_observable_and_never_an_alarm() -> None:
    calm = [window(k) for k in range(80)]
    state, found = run(calm + blinded(60, 80))
    assert found[1:] == [(80, "not_observable", "token_misalignment")]
    assert not state.latched


def test_next_sound_update_has_its_verdict_back() -> None:
    _, found = run([window(k) for k in range(80)] + blinded(3, 80) + [window(83)])
    assert found[1:] == [(80, "not_observable", "token_misalignment"), (83, "healthy", "calm")]


def test_misalignment_from_the_start_teaches_no_baseline() -> None:
    state, _ = run(blinded(40, 0))
    assert state.stage is Stage.NOT_OBSERVABLE
    assert not state.baseline.ready


def test_latched_terminal_stage_stays_through_blinded_updates() -> None:
    calm = [window(k) for k in range(80)]
    broken = [window(80 + k, **WILD) for k in range(10)]
    state, _ = run(calm + broken + blinded(5, 90))
    assert state.stage is Stage.TERMINAL


def test_blindness_survives_a_restart() -> None:
    state, _ = run([window(k) for k in range(80)] + blinded(3, 80))
    restarted = DetectorState.from_dict(state.to_dict())
    assert (restarted.stage, restarted.why) == (Stage.NOT_OBSERVABLE, "token_misalignment")
    assert run([window(83)], restarted) == run([window(83)], state)
