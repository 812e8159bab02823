"""Which parameter set a run should have: nothing, the paper's fixed recipe, or remedies that must prove themselves.

    observe   never changes a parameter
    paper     gate on from the start, repair from `repair.k_rep` on; never changes again
    adaptive  starts with nothing on and works through `remedies` as the stage asks, watching what each one does

Adaptive, once an update, and never two changes within `min_dwell_updates`:

    nothing on       enter the first remedy that the stage admits and that has not harmed in this attempt
    remedy on        harmed, by the verdict of `harm`, within `watch_updates` -> not again in this attempt; enter the
                     next one that the stage admits, or go back to the base set
                     pre_terminal, its trial over, and not helping -> enter a later one that the stage admits
                     terminal -> enter a later one that the stage admits, without waiting for the trial
                     `calm_updates` healthy updates -> back to the base set; once: if trouble returns it stays on
    `max_changes`, a lasting remedy that harmed, or nothing left to try -> hand over: the safe set (the lasting remedy
                     unless it harmed, else the base), a note, and hands off until `release` or a new attempt

While the stage is terminal nothing is taken back: after a collapse the gaps shrink by themselves. TIS is never added
to gate and repair: together they collapsed runs that TIS alone kept stable; `allow_tis_with_triage` asks for it.
After an operator's change the policy keeps its hands off until `release`. Relaxing is slow because it was seen to
fail: testbed runs whose gate and repair were taken back after 50 and after 100 calm updates drifted again within 25
and 45.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from triage_monitor.judge.harm import Judged, judge
from triage_monitor.judge.observation import Observation
from triage_monitor.judge.policy_settings import Mode, PolicySettings
from triage_monitor.judge.policy_state import ParameterChange, PolicyState
from triage_monitor.judge.policy_step import Step, picture
from triage_monitor.judge.stages import Stage
from triage_monitor.parameters import TriageParams, changed

__all__ = [
    "Mode",
    "ParameterChange",
    "PolicySettings",
    "PolicyState",
    "adopt",
    "begin",
    "decide",
    "hold",
    "release",
    "start",
    "verdict",
]

_NO_VERDICT = (Stage.WARMING_UP, Stage.NOT_OBSERVABLE)


def begin(settings: PolicySettings) -> PolicyState:
    return PolicyState(settings.initial())


def start(settings: PolicySettings, state: PolicyState) -> tuple[PolicyState, ParameterChange]:
    """The set a run begins with, as a change to record; asked for once, before or at the first update."""
    words = {
        Mode.OBSERVE: "observing only: the configured parameters, nothing will be changed",
        Mode.PAPER: "fixed recipe: gate on from the start, repair from step {k_rep} on",
        Mode.ADAPTIVE: "adaptive: begins with the configured parameters and follows the run's own baseline",
    }
    params = settings.initial()
    reason = words[settings.mode].format(k_rep=params.repair.k_rep)
    return replace(state, params=params, started=True), ParameterChange(params, "start", reason)


def hold(state: PolicyState, params: TriageParams, who: str) -> PolicyState:
    """An operator or an alert has set `params`: they stay, and the policy changes nothing until `release`."""
    return replace(state, params=params, started=True, held=True, note=f"held: {who} set the parameters")


def adopt(state: PolicyState, params: TriageParams) -> PolicyState:
    """`params` are in force, whatever the policy believed. Unless they differ in `control` alone, no remedy is on."""
    differing = changed(state.params, params).keys()
    if differing <= {"control"}:
        return replace(state, params=params) if differing else state
    return replace(state.forget_attempt(), params=params, remedy="", since_change=None)


def release(state: PolicyState) -> PolicyState:
    """The policy may act again, from the parameters as they are, with no remedy on and none ruled out."""
    fresh = state.forget_attempt()
    return replace(fresh, held=False, remedy="", note="", since_change=None)


def decide(
    settings: PolicySettings,
    state: PolicyState,
    seen: Observation,
    *,
    stage: Stage,
    baseline: Mapping[str, float],
    update: Mapping[str, float | None] | None = None,
) -> tuple[PolicyState, ParameterChange | None]:
    """The state after one more judged update, and the change it asks for, if any.

    `seen` is the trailing window, `update` the newest update's own values (default: the window's).
    """
    if not state.started and settings.mode is Mode.PAPER:
        return start(settings, state)
    state = replace(state, started=True, since_change=None if state.since_change is None else state.since_change + 1)
    if settings.mode is not Mode.ADAPTIVE:
        return state, None
    if seen.attempt > state.attempt:
        state = replace(state.forget_attempt(), attempt=seen.attempt)
    state = _remember(settings, state, seen.values if update is None else update)
    if state.held or state.handed_over or stage in _NO_VERDICT:
        return state, None
    calm = state.calm + 1 if stage is Stage.HEALTHY and state.remedy else 0
    state = replace(state, calm=calm)
    if state.since_change is not None and state.since_change < settings.min_dwell_updates:
        return state, None
    return Step(settings, state, stage, verdict(settings, state), picture(settings, seen, baseline)).taken()


def verdict(settings: PolicySettings, state: PolicyState) -> Judged | None:
    """What the remedy in force has done so far; None before its trial is over, and when nothing is watched any more."""
    since = state.since_change
    if not state.remedy or since is None or since > settings.watch_updates:
        return None
    return judge(settings.harm, state.before, state.recent)


def _remember(settings: PolicySettings, state: PolicyState, values: Mapping[str, float | None]) -> PolicyState:
    """Appends what is watched, from the end of the settling time after a change on."""
    if state.since_change is not None and state.since_change <= settings.harm.settle_updates:
        return state
    recent = dict(state.recent)
    for watch in settings.harm.watches:
        value = watch.read(values)
        if value is not None:
            recent[watch.indicator] = (*recent.get(watch.indicator, ()), value)[-settings.harm.kept :]
    return replace(state, recent=recent)
