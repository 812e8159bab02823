"""What holds for every history: transitions chain, terminal latches, a restart is invisible, replay is identical."""

import json
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from judge_series import raised, window

from triage_monitor.judge.baseline import BaselineSettings
from triage_monitor.judge.defaults import DetectorSettings, MinimumData
from triage_monitor.judge.detector import DetectorState, detect
from triage_monitor.judge.observation import Observation
from triage_monitor.judge.stages import Stage, Transition

QUICK = DetectorSettings(
    minimum=MinimumData(updates=2), baseline=BaselineSettings(first_updates=25, min_windows=3, windows=6)
)
KINDS: dict[str, dict[str, float | None]] = {
    "calm": {},
    "drifting": raised(0.8),
    "worse": raised(1.2),
    "broken": {**raised(2.0), "abs_delta_mean": 0.3, "q0_05_all": -0.9},
    "shrunken": {**raised(-2.0), "q0_001_all": -0.01, "abs_delta_mean": 1e-4},
    "unknown": dict.fromkeys([*raised(1.0), "abs_delta_mean", "reward_mean"]),
    "poor": {"reward_mean": 0.1, **raised(0.6)},
    "steep": {"grad_norm": 0.9},
    "shallow": {"grad_norm": 0.1},
    "blind": {},
    "starved": {},
    "resumed": {},
}
stretches = st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(1, 12)), min_size=1, max_size=12)


def history(plan: list[tuple[str, int]]) -> list[Observation]:
    """30 calm windows, then the stretches; `resumed` begins an attempt that goes back by three steps."""
    seen, step, attempt = [], 0, 0
    for kind, length in [("calm", 30), *plan]:
        if kind == "resumed":
            attempt, step = attempt + 1, max(0, step - 3)
        for _ in range(length):
            item = window(step, attempt, **KINDS[kind])
            changes = {"blind": {"observable": False}, "starved": {"tokens": 3}}.get(kind, {})
            seen.append(replace(item, **changes))
            step += 1
    return seen


def run(seen: list[Observation], state: DetectorState) -> tuple[list[DetectorState], list[Transition | None]]:
    states, transitions = [], []
    for item in seen:
        state, transition = detect(QUICK, state, item)
        states.append(state)
        transitions.append(transition)
    return states, transitions


@settings(max_examples=60, deadline=None)
@given(stretches)
def test_transitions_chain_and_account_for_every_change_of_stage(plan: list[tuple[str, int]]) -> None:
    seen = history(plan)
    states, transitions = run(seen, DetectorState())
    stage = Stage.WARMING_UP
    for item, state, transition in zip(seen, states, transitions, strict=True):
        assert (transition is not None) is (state.stage is not stage)
        if transition is not None:
            assert (transition.step, transition.attempt) == (item.step, item.attempt)
            assert (transition.from_stage, transition.to_stage) == (stage, state.stage)
            assert transition.rule
        stage = state.stage


@settings(max_examples=60, deadline=None)
@given(stretches)
def test_terminal_is_left_only_by_a_new_attempt(plan: list[tuple[str, int]]) -> None:
    seen = history(plan)
    states, transitions = run(seen, DetectorState())
    attempts = [item.attempt for item in seen]
    for index, transition in enumerate(transitions):
        if transition is not None and transition.from_stage is Stage.TERMINAL:
            assert attempts[index] > attempts[index - 1]
    assert all(state.stage is Stage.TERMINAL for state in states if state.latched)


@settings(max_examples=40, deadline=None)
@given(stretches, st.floats(0, 1))
def test_restart_anywhere_is_invisible(plan: list[tuple[str, int]], place: float) -> None:
    seen = history(plan)
    cut = int(place * len(seen))
    states, transitions = run(seen, DetectorState())
    before = DetectorState() if cut == 0 else states[cut - 1]
    restored = DetectorState.from_dict(json.loads(json.dumps(before.to_dict(), allow_nan=False)))
    again, later = run(seen[cut:], restored)
    assert later == transitions[cut:]
    assert [state.to_dict() for state in again] == [state.to_dict() for state in states[cut:]]


@settings(max_examples=40, deadline=None)
@given(stretches)
def test_blind_and_starved_stretches_are_never_called_healthy(plan: list[tuple[str, int]]) -> None:
    seen = history(plan)
    states, _ = run(seen, DetectorState())
    for item, state in zip(seen, states, strict=True):
        if not item.observable:
            assert state.stage in (Stage.NOT_OBSERVABLE, Stage.TERMINAL)
        elif item.tokens == 3:
            assert state.stage in (Stage.WARMING_UP, Stage.TERMINAL)
