"""Runs of the policy over hand-made windows and stages, shared by its tests."""

from collections.abc import Iterable

from judge_series import window

from triage_monitor.judge.observation import Observation
from triage_monitor.judge.policy import (
    Mode,
    ParameterChange,
    PolicySettings,
    PolicyState,
    begin,
    decide,
)
from triage_monitor.judge.stages import Stage

BASELINE = {"q0.001_all": -2.0, "mismatch_energy": 0.02}
ADAPTIVE = PolicySettings(mode=Mode.ADAPTIVE, calm_updates=50)
HEALTHY, DRIFT, PRE_TERMINAL, TERMINAL = Stage.HEALTHY, Stage.DRIFT, Stage.PRE_TERMINAL, Stage.TERMINAL
GENTLE = {"gate.enabled": (False, True), "repair.enabled": (False, True)}

Item = tuple[Observation, Stage]
Change = tuple[int, ParameterChange]


def calm(count: int, first: int = 0, stage: Stage = HEALTHY) -> list[Item]:
    return then(count, first, stage)


def then(count: int, first: int, stage: Stage, **changes: float | None) -> list[Item]:
    return [(window(first + k, **changes), stage) for k in range(count)]


def run(
    settings: PolicySettings, seen: Iterable[Item], state: PolicyState | None = None
) -> tuple[PolicyState, list[Change]]:
    state, found = state or begin(settings), []
    for item, stage in seen:
        state, change = decide(settings, state, item, stage=stage, baseline=BASELINE)
        if change:
            found.append((item.step, change))
    return state, found


def steps(found: list[Change]) -> list[tuple[int, str]]:
    return [(step, change.kind) for step, change in found]


def names(found: list[Change]) -> list[tuple[int, str]]:
    """Step, and what came into force: `base -> gentle: ...` gives gentle."""
    return [(step, change.reason.split(":")[0].split(" -> ")[1]) for step, change in found]


# --- modes
