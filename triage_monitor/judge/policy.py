"""Which parameter set a run should have: nothing, the paper's fixed recipe, or strength that follows the mismatch.

    observe   never changes a parameter
    paper     gate on from the start, repair from `repair.k_rep` on; never changes again
    adaptive  starts with nothing on; climbs one level when that level's rule holds, goes down one after `calm_updates`
              updates in which neither it nor a higher one does, never twice within `min_dwell_updates`

A level is a rule and the parameters it sets on top of the levels below; an indicator, a threshold or a strength is
changed by configuration. The first default level is the gentle setting that held on a prototype of the testbed; a hard
gate (w_min 0.1) made every run there worse, so the levels above stay mild. The second was reached in a handful of
testbed runs and harmed none; the third was never reached. TIS is never added to gate and repair: together they
collapsed runs that TIS alone kept stable; `allow_tis_with_triage` is the explicit way to ask for it. After an
operator's change the policy keeps its hands off until `release`. While the stage is terminal nothing is relaxed: after
a collapse the gaps shrink by themselves.

Relaxing is slow because it was seen to fail: a testbed run whose gate and repair were taken back after 50 calm updates
drifted again within 25. Reads raw gaps only, so its own gate cannot make the run look cured. Leaves out watching
whether an action did harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.judge.actions import combines_tis_with_triage
from triage_monitor.judge.defaults import DRIFT, PRE_TERMINAL
from triage_monitor.judge.observation import Observation
from triage_monitor.judge.rules import Rule, RuleState, evidence_of
from triage_monitor.judge.stages import Evidence, Stage
from triage_monitor.parameters import TriageParams, changed, flatten

_BOOKKEEPING = ("version", "issued_at_step", "reason")
_PAPER = {"gate.enabled": True, "repair.enabled": True}


class Mode(StrEnum):
    OBSERVE = "observe"
    PAPER = "paper"
    ADAPTIVE = "adaptive"


@dataclass(frozen=True, slots=True)
class PolicyLevel:
    """`changes` maps dotted parameter names to values: `{"gate.enabled": True, "gate.w_min": 0.5}`."""

    name: str
    rule: Rule
    changes: Mapping[str, Any]


LEVELS = (
    PolicyLevel(
        "gentle",
        DRIFT,
        {"gate.enabled": True, "gate.w_min": 0.5, "repair.enabled": True, "repair.lambda_rep": 5.0},
    ),
    PolicyLevel("firm", PRE_TERMINAL, {"gate.w_min": 0.4, "repair.lambda_rep": 7.5}),
    PolicyLevel("strong", replace(PRE_TERMINAL, votes=3), {"gate.w_min": 0.3, "repair.lambda_rep": 10.0}),
)


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """`base` is the parameter set (JSON form, missing fields at their defaults) that a run starts from."""

    mode: Mode = Mode.OBSERVE
    base: Mapping[str, Any] = field(default_factory=dict)
    levels: tuple[PolicyLevel, ...] = LEVELS
    min_dwell_updates: int = 15
    calm_updates: int = 100
    allow_tis_with_triage: bool = False

    def __post_init__(self) -> None:
        if self.min_dwell_updates < 1 or self.calm_updates < 1:
            raise ConfigError("min_dwell_updates and calm_updates must be at least 1")
        names = [name for level in self.levels for name in level.changes if name in _BOOKKEEPING]
        if names:
            raise ConfigError(f"levels cannot set {names[0]}: the store does")
        try:
            sets = [self.initial(), *(self.at_level(self.base_params(), k) for k in range(1, len(self.levels) + 1))]
        except InputError as error:
            raise ConfigError(f"parameter {error}") from None
        if (
            self.mode is not Mode.OBSERVE
            and not self.allow_tis_with_triage
            and any(map(combines_tis_with_triage, sets))
        ):
            raise ConfigError("TIS with gate and repair is known to collapse runs; allow_tis_with_triage asks for it")

    def base_params(self) -> TriageParams:
        return TriageParams.from_dict(self.base)

    def initial(self) -> TriageParams:
        """The set a new run begins with."""
        base = self.base_params()
        return base.with_changes(_PAPER) if self.mode is Mode.PAPER else base

    def at_level(self, params: TriageParams, level: int) -> TriageParams:
        """`params` with everything the levels govern set as at `level`; 0 is the base. The rest is left as it is."""
        governed = {name for item in self.levels for name in item.changes}
        base = flatten(self.base_params())
        changes = {name: base[name] for name in governed if name in base}
        for item in self.levels[:level]:
            changes |= item.changes
        return params.with_changes(changes)


@dataclass(frozen=True, slots=True)
class ParameterChange:
    """A new set for the run; version and step are filled in by the store. `kind`: start, strengthen or relax."""

    params: TriageParams
    kind: str
    reason: str
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyState:
    params: TriageParams
    level: int = 0
    started: bool = False
    held: bool = False
    since_change: int | None = None  # updates; None before the first change
    calm: int = 0
    attempt: int = 0
    note: str = ""  # why the policy does not act, in words; empty when it may
    rules: tuple[RuleState, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "params": self.params.to_dict(),
            "level": self.level,
            "started": self.started,
            "held": self.held,
            "since_change": self.since_change,
            "calm": self.calm,
            "attempt": self.attempt,
            "note": self.note,
            "rules": [item.to_dict() for item in self.rules],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PolicyState:
        rules = tuple(RuleState.from_dict(item) for item in data["rules"])
        return cls(**{**data, "params": TriageParams.from_dict(data["params"]), "rules": rules})


def begin(settings: PolicySettings) -> PolicyState:
    return PolicyState(settings.initial(), rules=(RuleState(),) * len(settings.levels))


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


def release(state: PolicyState) -> PolicyState:
    """The policy may act again, from the parameters as they are and from level 0 on."""
    return replace(state, held=False, note="", level=0, calm=0, since_change=None)


def decide(
    settings: PolicySettings,
    state: PolicyState,
    seen: Observation,
    *,
    stage: Stage,
    baseline: Mapping[str, float],
    material: bool,
) -> tuple[PolicyState, ParameterChange | None]:
    """The state after one more judged window, and the change it asks for, if any."""
    if not state.started and settings.mode is Mode.PAPER:
        return start(settings, state)
    state = replace(state, started=True, since_change=None if state.since_change is None else state.since_change + 1)
    if settings.mode is not Mode.ADAPTIVE or state.held or stage in (Stage.WARMING_UP, Stage.NOT_OBSERVABLE):
        return state, None
    return _step(settings, _advance(settings, state, seen, baseline, material), stage)


def _advance(
    settings: PolicySettings, state: PolicyState, seen: Observation, baseline: Mapping[str, float], material: bool
) -> PolicyState:
    if seen.attempt > state.attempt or len(state.rules) != len(settings.levels):
        state = replace(state, attempt=max(seen.attempt, state.attempt), rules=(RuleState(),) * len(settings.levels))
    rules = tuple(
        level.rule.advance(item, seen.values, baseline, material=material)
        for level, item in zip(settings.levels, state.rules, strict=True)
    )
    return replace(state, rules=rules, level=min(state.level, len(rules)))


def _step(settings: PolicySettings, state: PolicyState, stage: Stage) -> tuple[PolicyState, ParameterChange | None]:
    holding = [index for index, level in enumerate(settings.levels, 1) if level.rule.holds(state.rules[index - 1])]
    wanted = max(holding, default=0)
    settled = state.since_change is None or state.since_change >= settings.min_dwell_updates
    calm = state.calm + 1 if wanted < state.level and stage is not Stage.TERMINAL else 0
    state = replace(state, calm=calm)
    if wanted > state.level and settled:
        return _move(settings, state, state.level + 1, wanted)
    if calm >= settings.calm_updates and settled:
        return _move(settings, state, state.level - 1, wanted)
    return state, None


def _move(
    settings: PolicySettings, state: PolicyState, level: int, wanted: int
) -> tuple[PolicyState, ParameterChange | None]:
    params = settings.at_level(state.params, level)
    if combines_tis_with_triage(params) and not settings.allow_tis_with_triage:
        return replace(state, note="blocked: TIS is on, and gate and repair are not added to it unasked"), None
    up = level > state.level
    moved = replace(state, params=params, level=level, since_change=0, calm=0, note="")
    differing = changed(state.params, params)
    if not differing:
        return moved, None
    names = ["base", *(item.name for item in settings.levels)]
    what = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in sorted(differing.items()))
    deciding = settings.levels[(wanted if up else state.level) - 1].rule
    rule_state = state.rules[(wanted if up else state.level) - 1]
    readings = deciding.holding(rule_state) if up else rule_state.readings
    known = [item for item in readings if item.strength is not None]
    numbers = "; ".join(item.words() for item in known)
    if up:
        why = f"sustained for {deciding.enter_updates} updates: {numbers}"
    else:
        why = f"calm for {settings.calm_updates} updates: {numbers}"
    reason = f"{names[state.level]} -> {names[level]}: {why}. Sets {what}"
    return moved, ParameterChange(params, "strengthen" if up else "relax", reason, evidence_of(known))
