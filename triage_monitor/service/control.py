"""The desk where parameters change: operator overrides, actions, alerts, acknowledgements.

Everything that changes a run is one batch under its lock: the new parameter set, the audit entry, the judge's note of
who holds the parameters. After a change by anyone but the policy the policy keeps its hands off until `release`; what
the trainer runs on is never changed by a restart or by a second request under the same idempotency key.

Beside the actions of `judge.actions` there are those about the watching itself:

    freeze, release   the policy may not, or may again, change parameters
    clear             ends a latched terminal stage
    rebaseline        learns the run's baseline anew
    retire            takes the run off `/metrics` until its next update
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from triage_monitor.errors import ConflictError, InputError
from triage_monitor.judge.actions import Action, ActionKind, apply, describe
from triage_monitor.parameters import ORIGIN, TriageParams, changed
from triage_monitor.service.auditing import audit_action, control_state
from triage_monitor.service.closing import transition_row
from triage_monitor.service.live import LiveRun
from triage_monitor.service.pace import check_pace
from triage_monitor.service.problems import Problem
from triage_monitor.service.sidecar import Sidecar
from triage_monitor.storage.records import AckRow, ActionRow, AuditRow, ParamsRow, Record, TransitionRow

WATCH_KINDS = ("freeze", "release", "clear", "rebaseline", "retire")
KINDS = (*(kind.value for kind in ActionKind), *WATCH_KINDS)
OVERRIDE = "override"
MAX_REASON = 500
REFUSALS = ("refused_params", "refused_version")
SERVER_FIELDS = ("version", "issued_at_step", "reason", *ORIGIN)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a request comes to: a new set or none, and the sentence for the trail."""

    kind: str
    outcome: str
    reason: str
    params: TriageParams | None = None
    refusal: InputError | None = None


class Desk:
    """All changes that people and alerts make."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar = sidecar

    async def act(self, run: str, key: str, request: Mapping[str, Any], actor: str, who: str) -> tuple[ActionRow, bool]:
        """Carries out an action once per key. Returns its entry and whether it was a repeat.

        `actor` is who it is shown as, `who` the caller that was let in. Raises InputError (recorded as refused),
        ConflictError for the key of another request, Problem 404.
        """
        return await self._sidecar.spawn(self._act(run, key, dict(request), actor, who))

    async def override(
        self, run: str, changes: Mapping[str, Any], if_match: int | None, actor: str, who: str
    ) -> tuple[LiveRun, ActionRow]:
        """Sets parameters by hand; `if_match` is the version that the sender saw. Problem 412 when it moved on."""
        return await self._sidecar.spawn(self._override(run, dict(changes), if_match, actor, who))

    async def acknowledge(
        self, run: str, version: int, step: int, refused: str | None, fenced_by: int | None = None
    ) -> None:
        """A trainer's word about a version; InputError for one that was never issued.

        `fenced_by` is the epoch of the monitor that the trainer obeys instead of this one.
        """
        await self._sidecar.spawn(self._acknowledge(run, version, step, refused, fenced_by))

    async def _act(self, run: str, key: str, request: dict[str, Any], actor: str, who: str) -> tuple[ActionRow, bool]:
        live = await self._sidecar.find(run)
        digest = sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        async with live.lock:
            known = await asyncio.to_thread(self._sidecar.store.get, ActionRow, run, key)
            if known is not None:
                if known.digest != digest:
                    raise ConflictError(f"the idempotency key '{key}' was used before for another request")
                return _repeated(known), True
            try:
                decision = _decision(live.params, request)
                await self._check_pace(live, decision)
            except InputError as error:
                row = self._entry(
                    live, key, digest, request, actor, Decision(_kind(request), "refused", str(error), refusal=error)
                )
                await self._keep(live, row, audit_action(live, control_state(live), row, None, who), None)
                raise
            row = self._entry(live, key, digest, request, actor, decision)
            await self._change(live, row, decision, actor, who)
            return row, False

    async def _override(
        self, run: str, changes: dict[str, Any], if_match: int | None, actor: str, who: str
    ) -> tuple[LiveRun, ActionRow]:
        live = await self._sidecar.find(run)
        async with live.lock:
            if if_match is not None and if_match != live.version:
                raise Problem(412, "version_changed", f"the parameters are at version {live.version}, not {if_match}")
            reason = _reason(changes) or "operator override"
            after = _overlaid(live.params, changes)
            decision = Decision(OVERRIDE, "applied", reason, after)
            await self._check_pace(live, decision)
            row = self._entry(live, f"{OVERRIDE}-{live.next_version}", "", changes, actor, decision)
            await self._change(live, row, decision, actor, who)
            return live, row

    async def _acknowledge(self, run: str, version: int, step: int, refused: str | None, fenced_by: int | None) -> None:
        live = await self._sidecar.find(run)
        async with live.lock:
            if version >= live.next_version:
                raise InputError(
                    "unknown_version", f"version {version} was never issued; {live.next_version - 1} is the newest",
                    column="version",
                )  # fmt: skip
            now = self._sidecar.now()
            applied, counts = live.applied, {name: live.counters[name] for name in REFUSALS}
            if refused is None:
                if not _is_overtaken(live.applied, version, step):
                    live.applied = {"version": version, "step": step, "at": now}
            else:
                live.counters["refused_params"] += 1
                live.counters["refused_version"] = version
            try:
                await self._sidecar.write(AckRow(run, version, step, now, refused), live.state_row())
            except BaseException:
                live.applied = applied
                live.counters.update({name: counts[name] - live.counters[name] for name in REFUSALS})
                raise
            live.fenced_by = fenced_by
            live.snapshot = live.take_snapshot()
            news = {"version": version, "acknowledged_step": step, "refused": refused}
            self._sidecar.hub.publish(run, "params", news)

    async def _check_pace(self, live: LiveRun, decision: Decision) -> None:
        """Problem 429, counted but not remembered under the key: the same request may be carried out later."""
        if decision.params is None:
            return
        try:
            await asyncio.to_thread(check_pace, live, decision.params, self._sidecar.settings.control)
        except Problem:
            live.actions[f"{decision.kind}/rate_limited"] += 1
            live.snapshot = live.take_snapshot()
            raise

    def _entry(
        self, live: LiveRun, key: str, digest: str, request: dict[str, Any], actor: str, decision: Decision
    ) -> ActionRow:
        version = live.version if decision.params is None else live.next_version
        answer: dict[str, Any] = {"reason": decision.reason, "params_version": version}
        if decision.refusal is not None:
            error = decision.refusal
            answer["problem"] = {"reason": error.reason, "detail": error.detail, "column": error.column}
        return ActionRow(
            live.name,
            key,
            live.action_count + 1,
            digest,
            self._sidecar.now(),
            actor,
            decision.kind,
            decision.outcome,
            request,
            answer,
        )

    async def _change(self, live: LiveRun, row: ActionRow, decision: Decision, actor: str, who: str) -> None:
        params, transition = None, None
        before = control_state(live)
        if decision.params is not None:
            step = live.newest.step if live.newest is not None else 0
            issued = decision.params.issued(version=live.next_version, step=step, reason=decision.reason)
            evidence = {"kind": decision.kind}
            params = ParamsRow(live.name, issued.version, row.at, actor, decision.reason, issued.to_dict(), evidence)
            live.held_by = actor
            live.monitor.hold(issued, actor)
        else:
            transition = _watch(live, decision.kind, actor, row.at)
        audit = audit_action(live, before, row, params, who)
        await self._keep(live, row, audit, params, transition)

    async def _keep(
        self,
        live: LiveRun,
        row: ActionRow,
        audit: AuditRow,
        params: ParamsRow | None,
        transition: TransitionRow | None = None,
    ) -> None:
        """Writes the batch, then lets it take effect; after a failed write the run is as the store says."""
        live.actions[f"{row.kind}/{row.outcome}"] += 1
        if params is not None:
            live.counters["params_updates"] = 0
        if transition is not None:
            live.counters["stage_updates"] = 0
        given: list[Record | None] = [row, live.run_row(), live.state_row(), params, transition, audit]
        try:
            await self._sidecar.write(*(record for record in given if record is not None))
        except BaseException:
            await self._sidecar.reload(live)
            raise
        live.action_count = row.number
        live.audited(audit)
        if transition is not None:
            live.transitions = transition.number
            self._sidecar.hub.publish(live.name, "stage", transition.evidence)
        if params is not None:
            self._sidecar.issue(live, params)
            self._sidecar.tell_params(live, params)
        live.snapshot = live.take_snapshot()
        self._sidecar.hub.publish(live.name, "action", entry_json(row))


def _is_overtaken(applied: Mapping[str, Any] | None, version: int, step: int) -> bool:
    """True of the word about an older set at an earlier step: it came late, and the newer set is in force."""
    return applied is not None and version < applied["version"] and step < applied["step"]


def entry_json(row: ActionRow) -> dict[str, Any]:
    """One line of the audit trail."""
    return {
        "id": row.number,
        "idempotency_key": row.idempotency_key,
        "at": row.at,
        "actor": row.actor,
        "kind": row.kind,
        "outcome": row.outcome,
        "request": row.request,
        **row.answer,
    }


def _repeated(row: ActionRow) -> ActionRow:
    """The entry of an action that was carried out before; raises again what refused it."""
    if row.outcome != "refused":
        return row
    problem = row.answer.get("problem", {"reason": "action_refused", "detail": row.answer["reason"], "column": None})
    raise InputError(problem["reason"], problem["detail"], column=problem["column"])


def check_action(request: Mapping[str, Any]) -> None:
    """Raises InputError for an action that no run could ever carry out; for what configuration maps alerts to."""
    _decision(TriageParams(), dict(request))


def _decision(params: TriageParams, request: dict[str, Any]) -> Decision:
    kind, reason = _kind(request), _reason(request)
    arguments = {name: value for name, value in request.items() if name not in ("kind", "reason")}
    if kind not in KINDS:
        given = repr(request.get("kind"))[:100]
        raise InputError("action_kind", f"{given} is not one of {', '.join(KINDS)}", column="kind")
    if kind in WATCH_KINDS:
        if arguments:
            raise InputError("action_argument", f"'{kind}' takes no argument", column=sorted(arguments)[0])
        return Decision(kind, "applied", reason or kind)
    action = Action.from_dict({"kind": request.get("kind"), **arguments})
    after = apply(action, params)
    text = describe(action, params, after)
    if not changed(params, after):
        return Decision(kind, "unchanged", reason or text)
    return Decision(kind, "applied", f"{reason}: {text}" if reason else text, after)


def _kind(request: Mapping[str, Any]) -> str:
    """The kind, or `unknown`: what a caller writes there must not become a label."""
    kind = request.get("kind")
    return kind if isinstance(kind, str) and kind in KINDS else "unknown"


def _reason(request: Mapping[str, Any]) -> str:
    reason = request.get("reason", "")
    if not isinstance(reason, str) or len(reason) > MAX_REASON:
        raise InputError("reason", f"must be a text of at most {MAX_REASON} characters", column="reason")
    return reason


def _overlaid(params: TriageParams, changes: Mapping[str, Any]) -> TriageParams:
    """`changes` in the JSON form laid over the present set; what the server assigns is not taken from it."""
    data = params.to_dict()
    for name, value in changes.items():
        if name in SERVER_FIELDS:
            continue
        if isinstance(data.get(name), dict) and isinstance(value, Mapping):
            data[name] = {**data[name], **value}
        else:
            data[name] = value
    return TriageParams.from_dict(data)


def _watch(live: LiveRun, kind: str, actor: str, now: float) -> TransitionRow | None:
    """What an action about the watching itself does; a transition when the stage changed by it."""
    if kind == "freeze":
        live.held_by = actor
        live.monitor.hold(live.params, actor)
    elif kind == "release":
        live.held_by = None
        live.monitor.release()
    elif kind == "retire":
        live.retired = True
    elif kind == "rebaseline":
        live.monitor.reset_baseline()
    elif kind == "clear":
        found = live.monitor.clear(live.newest.step if live.newest is not None else 0)
        return None if found is None else transition_row(live, found, now)
    return None
