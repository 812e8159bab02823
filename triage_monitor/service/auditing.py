"""Audit entries of a run: who changed what, from what to what. Made under the run's lock, written in the same batch as
the change itself, counted once that is durable; the witness hears of them right after (sidecar.write).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triage_monitor.parameters import TriageParams, flatten
from triage_monitor.service.live import LiveRun
from triage_monitor.storage.audit import about_of, chained, differing
from triage_monitor.storage.records import ActionRow, AuditRow, ParamsRow

POLICY = "policy"
TRAINER = "trainer"
HAND_OVER = "hand_over"


def control_state(live: LiveRun, params: TriageParams | None = None) -> dict[str, Any]:
    """What control changes can change, by dotted name; with `params` as if they were in force."""
    return {
        **flatten(live.params if params is None else params),
        "held_by": live.held_by,
        "retired": live.retired,
        "stage": live.monitor.stage.value,
    }


def audit_action(
    live: LiveRun, before: Mapping[str, Any], row: ActionRow, params: ParamsRow | None, who: str
) -> AuditRow:
    """Of an action or override, applied or not; the run is already as it will be, but for the parameters."""
    after = control_state(live, None if params is None else TriageParams.from_dict(params.params))
    reason = str(row.answer.get("reason", ""))
    told = differing(before, after)
    return _entry(live, row.at, who, row.actor, row.kind, row.outcome, reason, told, about_of(params, row))


def audit_params(live: LiveRun, row: ParamsRow, kind: str, who: str, action: ActionRow | None = None) -> AuditRow:
    """Of a parameter set that nobody asked for by an action: the policy's, or a trainer's new attempt."""
    told = differing(control_state(live), control_state(live, TriageParams.from_dict(row.params)))
    return _entry(live, row.at, who, row.actor, kind, "applied", row.reason, told, about_of(row, action))


def audit_hand_over(live: LiveRun, at: float, note: str) -> AuditRow:
    """Of the policy's giving up without another parameter set."""
    return _entry(live, at, POLICY, POLICY, HAND_OVER, "applied", note, ({}, {}), {})


def audit_news(row: AuditRow) -> dict[str, Any]:
    """For event streams, of a change that no action row stands for."""
    return {"kind": row.kind, "outcome": row.outcome, "actor": row.actor, "reason": row.reason}


def dry_run_news(row: ActionRow) -> dict[str, Any]:
    """For event streams, of a change that the policy would have made."""
    return {"kind": row.kind, "outcome": row.outcome, "actor": row.actor, "reason": row.request["reason"]}


def _entry(
    live: LiveRun,
    at: float,
    who: str,
    actor: str,
    kind: str,
    outcome: str,
    reason: str,
    told: tuple[dict[str, Any], dict[str, Any]],
    about: dict[str, Any],
) -> AuditRow:
    row = AuditRow(live.name, 0, float(at), who, actor, kind, outcome, reason, *told, about, "", "")
    return chained(live.audit, row)
