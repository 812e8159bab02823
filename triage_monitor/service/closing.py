"""Closing an update: merge its shards, judge it, and write down in one batch everything that follows from it.

    shards in order -> merged summary -> RunMonitor.accept -> update, window, stage, transition, parameter change

The batch holds all of them or none, so a parameter set never exists without the update that caused it. Group ids that
occur in more than one shard make the response the sampling unit (estimands section 6): the merged summary says so.
`judge_update` is blocking and changes the run's judge; if the batch cannot be written, the run is loaded again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from triage_monitor.judge.context import context_of
from triage_monitor.judge.indicators import update_report
from triage_monitor.judge.policy import ParameterChange
from triage_monitor.judge.run import Judgement, RunMonitor
from triage_monitor.judge.stages import Transition
from triage_monitor.parameters import TriageParams
from triage_monitor.service.auditing import POLICY, audit_hand_over, audit_params
from triage_monitor.service.joining import join_counters, join_halves, unmatched_notice
from triage_monitor.service.live import LiveRun
from triage_monitor.service.open_update import OpenUpdate, Piece
from triage_monitor.storage.records import (
    ActionRow,
    AuditRow,
    ParamsRow,
    Record,
    SummaryRow,
    TransitionRow,
    UpdateRow,
)
from triage_monitor.summary.codec import encode
from triage_monitor.summary.objective import ratios
from triage_monitor.summary.step import COUNT_INDEX, StepSummary, merge_all
from triage_monitor.summary.symptoms import Symptoms, merge_symptoms

DRY_RUN = "dry_run"


@dataclass(frozen=True, slots=True)
class Closing:
    """What one closing writes, and what it leaves for the run to know once that is durable."""

    row: UpdateRow
    records: tuple[Record, ...]
    transition: TransitionRow | None
    params: ParamsRow | None
    action: ActionRow | None
    audit: AuditRow | None
    first_time: bool


def judge_update(live: LiveRun, update: OpenUpdate, now: float) -> Closing:
    """Merges and judges; returns the batch. Counters and the judge of `live` are already those after it."""
    joined = join_halves(live, update)
    merged = merged_summary(update, live)
    before = live.closed(update.place) if update.revision else None
    if update.attempt > live.judged_attempt:
        _rewind(live, update)
    symptoms = merged_symptoms(update)
    causes = live.causes
    if live.is_superseded(update.place):  # it has no say in what the newer attempt shows
        causes = live.restored_causes(last_step=update.step - 1, as_of=update.attempt)
    context = context_of(causes, update.step, symptoms)
    was_handed_over = live.monitor.handed_over
    judgement = live.monitor.accept(update.step, update.attempt, merged, context)
    window = _window(live, update, merged, judgement, before)
    found = causes.accept(update.step, judgement.update, window, symptoms)
    row = UpdateRow(
        live.name,
        update.attempt,
        update.step,
        update.revision,
        "partial" if update.missing_shards else "complete",
        update.shards,
        update.missing_shards,
        now,
        judgement.stage.value,
        {
            "update": judgement.update,
            "window": window,
            "why": judgement.why,
            "judged": judgement.judged,
            "notices": [notice.to_dict() for notice in (*judgement.notices, *unmatched_notice(live, update))],
            "findings": [finding.to_dict() for finding in found],
            "flawed": causes.flawed(update.step),
            "objective": {} if symptoms is None else ratios(symptoms.objective),
            "settings": {} if symptoms is None else {name: list(told) for name, told in symptoms.settings.items()},
            "join": update.join,
        },
    )
    _count(live, row, before)
    _count_since(live, judgement, first_time=before is None)
    transition = None if judgement.transition is None else transition_row(live, judgement.transition, now)
    params, action, audit = None, None, None
    change = judgement.change
    if change is not None:
        params = policy_params(live, change, update.step, now)
        if live.settings.policy.dry_run:
            action, params = policy_action(live, change, params, DRY_RUN), None
        else:
            action = policy_action(live, change, params)
    if change is not None and params is not None:
        audit = audit_params(live, params, change.kind, POLICY, action)
    elif live.monitor.handed_over and not was_handed_over:
        audit = audit_hand_over(live, now, live.monitor.policy_note)
    follow = [item for item in (transition, params, action, audit) if item is not None]
    summary = SummaryRow(live.name, update.attempt, update.step, encode(merged))
    records = (row, summary, *follow, *joined, live.state_row())
    return Closing(row, records, transition, params, action, audit, before is None)


def merged_summary(update: OpenUpdate, live: LiveRun) -> StepSummary:
    pieces = [update.pieces[shard] for shard in sorted(update.pieces)]
    merged = merge_all([piece.summary for piece in pieces], live.spec)
    if len(pieces) < 2 or not _groups_overlap(pieces):
        return merged
    counters = merged.counters.copy()
    counters[COUNT_INDEX["group_split"]] += 1
    return replace(merged, counters=counters)


def merged_symptoms(update: OpenUpdate) -> Symptoms | None:
    """Of the shards that came with their rows; None when none did."""
    known = [piece.symptoms for piece in update.pieces.values() if piece.symptoms is not None]
    return merge_symptoms(known) if known else None


def _groups_overlap(pieces: list[Piece]) -> bool:
    """True when a group is, or may be, in two shards: encoded summaries with groups do not say which."""
    if any(piece.groups is None and piece.summary.count("groups") > 0 for piece in pieces):
        return True
    known = [np.frombuffer(piece.groups, dtype="<i8") for piece in pieces if piece.groups]
    every = np.concatenate(known) if known else np.empty(0, dtype=np.int64)
    return len(np.unique(every)) < len(every)


def _rewind(live: LiveRun, update: OpenUpdate) -> None:
    """A new attempt: the window becomes what was effective before its first step, older attempts included."""
    held = live.monitor.window_keys()
    recent = live.recent(last_step=update.step - 1, held=held)
    live.monitor = RunMonitor.restore(live.settings, live.spec, live.monitor.state(), recent)
    live.causes = live.restored_causes(last_step=update.step - 1)
    live.judged_attempt = update.attempt


def _window(
    live: LiveRun, update: OpenUpdate, merged: StepSummary, judgement: Judgement, before: UpdateRow | None
) -> dict[str, Any]:
    """The window that ends at this update: the judged one, or for a late update the same merge at its own place, in
    its own attempt."""
    if (judgement.window["step"], judgement.window["attempt"]) == (update.step, update.attempt):
        return judgement.window
    recent = live.recent(last_step=update.step, as_of=update.attempt)
    others = [item for item in recent if item[:2] != (update.step, update.attempt)]
    others = [item for item in others if item[0] < update.step][-(live.settings.window_updates - 1) :]
    window = update_report(merge_all([*(item[2] for item in others), merged], live.spec))
    first = others[0][0] if others else update.step
    stage = before.stage if before is not None else judgement.stage.value
    place = {"step": update.step, "attempt": update.attempt, "first_step": first, "updates": len(others) + 1}
    return {**window, **place, "stage": stage}


def _count(live: LiveRun, row: UpdateRow, before: UpdateRow | None) -> None:
    """Counters describe the updates as they stand: a revision takes back what its older self had added."""
    for known, sign in ((before, -1), (row, 1)):
        if known is None:
            continue
        live.counters["updates"] += sign
        live.counters["partial_updates"] += sign * (known.status == "partial")
        live.counters["missing_shards"] += sign * known.missing_shards
        live.counters["empty_updates"] += sign * (known.report["update"]["counts"]["valid_tokens"] == 0)
        for name, count in join_counters(known.report.get("join")).items():
            live.counters[name] += sign * count
    live.counters["revisions"] += row.revision > 0


def _count_since(live: LiveRun, judgement: Judgement, *, first_time: bool) -> None:
    """How many updates the stage, and the newest parameter version, have lasted: alerts count updates, not minutes."""
    is_issued = judgement.change is not None and not live.settings.policy.dry_run
    if judgement.judged:
        live.counters["stage_updates"] = 1 if judgement.transition is not None else live.counters["stage_updates"] + 1
    live.counters["params_updates"] = 0 if is_issued else live.counters["params_updates"] + first_time


def transition_row(live: LiveRun, found: Transition, now: float) -> TransitionRow:
    """The alarm's record; `findings` names the causes found in its window."""
    before, after = found.from_stage.value, found.to_stage.value
    named = [{name: item[name] for name in ("cause", "step", "confidence")} for item in live.causes.current()]
    evidence = {**found.to_dict(), "findings": named}
    return TransitionRow(live.name, live.transitions + 1, found.attempt, found.step, now, before, after, evidence)


def policy_params(live: LiveRun, change: ParameterChange, step: int, now: float) -> ParamsRow:
    params = change.params.issued(version=live.next_version, step=step, reason=change.reason)
    evidence = {"kind": change.kind, "evidence": change.evidence}
    return ParamsRow(live.name, params.version, now, POLICY, change.reason, params.to_dict(), evidence)


def policy_action(live: LiveRun, change: ParameterChange, params: ParamsRow, outcome: str = "applied") -> ActionRow:
    """The entry of a change that the policy made by itself, or would have made."""
    live.actions[f"{change.kind}/{outcome}"] += 1
    number = live.action_count + 1
    is_dry = outcome == DRY_RUN
    return ActionRow(
        live.name,
        f"{POLICY}-dry-{number}" if is_dry else f"{POLICY}-{params.version}",
        number,
        "",
        params.at,
        POLICY,
        change.kind,
        outcome,
        {"kind": change.kind, "reason": change.reason},
        {"params_version": live.version if is_dry else params.version, "params": params.params},
    )


def issued(row: ParamsRow) -> TriageParams:
    return TriageParams.from_dict(row.params)
