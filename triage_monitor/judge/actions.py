"""Actions on a run as plain data, and what each does to its parameter set.

    gate, repair, tis   switch the part on (or off with `enabled: false`) and set its fields
    fallback            run in another precision, bf16 unless `precision` says otherwise
    pause, resume, stop what the trainer does at its next update boundary; `stop` is final

`apply` is a function from a set to a set, used for operators and for alerts alike; it refuses what makes no sense with
an `InputError` naming the argument, and changes nothing then. TIS together with gate and repair collapsed runs that
TIS alone kept stable on a prototype of the testbed, so that combination needs `combine: true`.
Delivery, idempotency keys and the audit trail belong to the service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from triage_monitor.errors import InputError
from triage_monitor.parameters import TriageParams, changed, flatten


class ActionKind(StrEnum):
    GATE = "gate"
    REPAIR = "repair"
    TIS = "tis"
    FALLBACK = "fallback"
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"


_CONTROL = {ActionKind.PAUSE: "pause", ActionKind.RESUME: "run", ActionKind.STOP: "stop"}
_PARTS = (ActionKind.GATE, ActionKind.REPAIR, ActionKind.TIS)


@dataclass(frozen=True, slots=True)
class Action:
    kind: ActionKind
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Action:
        """Reads `{"kind": ..., other keys are arguments}`; raises InputError for an unknown kind."""
        kinds = [item.value for item in ActionKind]
        if data.get("kind") not in kinds:
            raise InputError("action_kind", f"{data.get('kind')!r} is not one of {kinds}", column="kind")
        return cls(ActionKind(data["kind"]), {name: value for name, value in data.items() if name != "kind"})


def apply(action: Action, params: TriageParams) -> TriageParams:
    """The parameter set after the action; the same set when nothing changes. Raises InputError."""
    if params.control == "stop" and action.kind is not ActionKind.STOP:
        raise InputError("run_stopped", "the run was stopped; start a new attempt", column="kind")
    if action.kind in _PARTS:
        return _switch(action, params)
    if action.kind is ActionKind.FALLBACK:
        _refuse_others(action, ("precision",))
        return params.with_changes({"precision": action.arguments.get("precision", "bf16")})
    _refuse_others(action, ())
    return params.with_changes({"control": _CONTROL[action.kind]})


def describe(action: Action, before: TriageParams, after: TriageParams) -> str:
    """The action in words, for the audit trail: what it changed from what to what."""
    parts = [f"{name} {old} -> {new}" for name, (old, new) in sorted(changed(before, after).items())]
    return f"{action.kind}: " + (", ".join(parts) if parts else "nothing to change")


def combines_tis_with_triage(params: TriageParams) -> bool:
    return params.tis.enabled and params.gate.enabled and params.repair.enabled


def _switch(action: Action, params: TriageParams) -> TriageParams:
    part = action.kind.value
    fields = {name.partition(".")[2] for name in flatten(params) if name.startswith(f"{part}.")}
    _refuse_others(action, (*fields, "combine"))
    combine = action.arguments.get("combine", False)
    if not isinstance(combine, bool):
        raise InputError("action_argument", "must be true or false", column="combine")
    changes = {f"{part}.{name}": value for name, value in action.arguments.items() if name != "combine"}
    after = params.with_changes({f"{part}.enabled": True, **changes})
    if combines_tis_with_triage(after) and not combines_tis_with_triage(params) and not combine:
        raise InputError(
            "tis_with_triage",
            "TIS together with gate and repair is known to collapse runs; say combine: true to do it anyway",
            column="combine",
        )
    return after


def _refuse_others(action: Action, known: tuple[str, ...]) -> None:
    for name in action.arguments:
        if name not in known:
            allowed = ", ".join(sorted(known)) or "no argument"
            raise InputError("action_argument", f"'{action.kind}' takes {allowed}", column=name)
