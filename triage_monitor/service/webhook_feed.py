"""What a webhook target is still to be told of a run, read from the store: there is no queue that could be lost.

Transitions and audit links are numbered in the store already; a cursor for each run and target says how far the target
has been told. What happened before the target was first configured is not sent; times decide that once, of the runs a
process found in its store: the clock may go back. Everything later is sent at least once, in order: a crash after a
delivery and before its cursor repeats that delivery under the same id.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import merge
from typing import Any

from triage_monitor.service.auditing import HAND_OVER
from triage_monitor.storage.audit import entry_json
from triage_monitor.storage.base import Store
from triage_monitor.storage.records import AuditRow, CursorRow, TransitionRow

EVERY_RUN = ""  # the cursor that says when a target began


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell: `delivery` is its idempotency key, `events` the names it may be wanted under."""

    run: str
    delivery: str
    events: tuple[str, ...]
    body: dict[str, Any]
    cursor: CursorRow


def first_cursor(store: Store, run: str, target: str, began_at: float | None) -> CursorRow | None:
    """To be written before anything is told; None when there is one. `began_at` is None of a run that began after the
    target did. Blocking."""
    if store.get(CursorRow, run, target) is not None:
        return None
    if began_at is None:
        return CursorRow(run, target, 0.0, 0, 0)
    return CursorRow(
        run,
        target,
        began_at,
        _told_before(store.rows(TransitionRow, run), began_at),
        _told_before(store.rows(AuditRow, run), began_at),
    )


def pending(store: Store, run: str, target: str) -> list[Notice]:
    """Oldest first; each notice holds the cursor to be written once it was told. Blocking."""
    cursor = store.get(CursorRow, run, target) or CursorRow(run, target, 0.0, 0, 0)
    transitions = store.rows(TransitionRow, run, newest=max(0, store.top(TransitionRow, run) - cursor.transitions))
    links = store.rows(AuditRow, run, newest=max(0, store.top(AuditRow, run) - cursor.links))
    found: list[Notice] = []
    events: tuple[str, ...]
    rows: Iterable[TransitionRow | AuditRow] = merge(transitions, links, key=lambda item: item.at)
    for row in rows:  # each kind in its own order, even where the clock went back
        if isinstance(row, TransitionRow):
            cursor = replace(cursor, transitions=row.number)
            events, kind, body = ("stage",), "stage", {"transition": {"at": row.at, **row.evidence}}
        else:
            cursor = replace(cursor, links=row.number)
            events, kind, body = _events_of(row), "change", {"change": entry_json(row)}
        delivery = f"{store.fence.store_id}.{run}.{kind}.{row.number}"
        found.append(Notice(run, delivery, events, body, cursor))
    return found


def _events_of(row: AuditRow) -> tuple[str, ...]:
    handed = ("handed_over",) if row.kind == HAND_OVER else ()
    return (*handed, "params") if "version" in row.about else handed


def _told_before(rows: Iterable[TransitionRow | AuditRow], began_at: float) -> int:
    return max((row.number for row in rows if row.at < began_at), default=0)
