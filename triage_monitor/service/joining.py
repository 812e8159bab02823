"""Closing an update of two sides: its halves are read from the store, joined, and summarised by the learner's shards.

Blocking, and one update at a time, so memory holds the halves of one. Once every half is in, their rows are given back
with the closing itself; of an update closed without some of them they are kept, so that a late half can still join,
until the update is thinned. Beside the update's report it is told how many rows matched, and why the others did not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from triage_monitor.judge.stages import Notice
from triage_monitor.service.live import LiveRun
from triage_monitor.service.open_update import OpenUpdate, Piece
from triage_monitor.storage.records import HalfContentRow, Record, SymptomRow, WorstRow
from triage_monitor.summary.rows_halves import LEARNER, REASONS, SAMPLER, SIDES, half_from_bytes, joined
from triage_monitor.summary.symptoms_codec import encode_symptoms
from triage_monitor.summary.symptoms_rows import symptoms_of
from triage_monitor.summary.worst import encode_worst
from triage_monitor.summary.worst_rows import worst_of

JOINED = "joined_rows"
UNMATCHED = "unmatched_rows"
NOTABLE_SHARE = 0.01  # of a side's rows; a notice is raised above it


def join_halves(live: LiveRun, update: OpenUpdate) -> tuple[Record, ...]:
    """Sets the pieces and the join of an update that came in halves; the records are of the same batch as its row."""
    if update.halves is None:
        return ()
    where = {"attempt": update.attempt, "first_step": update.step, "last_step": update.step}
    stored = live.store.rows(HalfContentRow, live.name, **where)
    tables: dict[str, dict[int, Any]] = {side: {} for side in SIDES}
    for row in stored:
        if row.content:
            tables[row.side][row.shard] = half_from_bytes(row.content)
    found = joined(tables[LEARNER], tables[SAMPLER])
    update.join = found.counts()
    update.pieces = {}
    records: list[Record] = []
    for shard, rows in found.rows.items():
        with np.errstate(over="ignore", invalid="ignore"):  # absurd inputs end as absent indicators
            summary, symptoms = rows.summarize(live.spec), symptoms_of(rows)
            worst = encode_worst(worst_of(rows, live.spec, shard=shard))
        groups = b"" if rows.groups is None else np.unique(rows.groups).astype("<i8").tobytes()
        update.pieces[shard] = Piece(summary, groups, symptoms)
        key = (live.name, update.attempt, update.step, shard)
        records.append(SymptomRow(*key, encode_symptoms(symptoms)))
        records.append(WorstRow(*key, worst))
    if not update.missing_shards:
        records += [HalfContentRow(live.name, *update.place, row.side, row.shard, b"") for row in stored]
    return tuple(records)


def join_counters(join: Mapping[str, Any] | None) -> dict[str, int]:
    """An update's join as counters of its run."""
    if not join:
        return {}
    unmatched = join["unmatched"]
    counts = {_counter(side, reason): int(unmatched[side][reason]) for side in SIDES for reason in REASONS}
    return {JOINED: int(join["matched"]), **counts}


def unmatched_rows(counters: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """side -> reason -> rows, over the closed updates of a run as they stand."""
    return {side: {reason: counters.get(_counter(side, reason), 0) for reason in REASONS} for side in SIDES}


def unmatched_notice(live: LiveRun, update: OpenUpdate) -> tuple[Notice, ...]:
    """A notice while more than `NOTABLE_SHARE` of either side's rows found no partner."""
    if update.join is None:
        return ()
    matched = update.join["matched"]
    lost = {side: sum(update.join["unmatched"][side].values()) for side in SIDES}
    share = {side: count / (count + matched) if count else 0.0 for side, count in lost.items()}
    if max(share.values()) <= NOTABLE_SHARE:
        return ()
    reasons = [
        f"{count} {reason.replace('_', ' ')} ({side})"
        for side in SIDES
        for reason, count in update.join["unmatched"][side].items()
        if count
    ]
    text = (
        f"{share[SAMPLER]:.1%} of the sampler's and {share[LEARNER]:.1%} of the learner's rows found no partner: "
        f"{', '.join(reasons)}. Check that both sides name responses alike and report every one once"
    )
    evidence = {side: {"value": share[side], "rows": float(lost[side])} for side in SIDES}
    return (Notice(UNMATCHED, _since(live, update), text, evidence),)


def _since(live: LiveRun, update: OpenUpdate) -> int:
    before = live.newest.report["notices"] if live.newest is not None else ()
    return next((int(item["since_step"]) for item in before if item["kind"] == UNMATCHED), update.step)


def _counter(side: str, reason: str) -> str:
    return f"unmatched_{side}_{reason}"
