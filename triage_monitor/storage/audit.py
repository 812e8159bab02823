"""The chain of control changes: each entry of a run carries the hash of the one before it.

    link(n) = SHA-256 of the canonical JSON of [run, number, ..., about, link(n - 1)];  link(0) is made of the run

Whoever edits, removes or reorders entries breaks a link. Whoever can write the whole store could make all links anew,
or cut the newest entries off: against that every new link is also appended to a second file, the witness, which may
lie on another disk. What neither shows is a rewriting of both files together; for that a link must be kept elsewhere
(the API and every signed webhook say the newest one, and `audit verify --expect` takes it).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import Any

from triage_monitor.storage.base import Store
from triage_monitor.storage.records import ActionRow, AuditRow, ParamsRow, Record

WITNESS_FILE = "audit-witness.jsonl"
UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Head:
    """The newest link of a run; number 0 before there is one."""

    number: int
    link: str


def first_head(run: str) -> Head:
    return Head(0, sha256(f"triage-monitor audit {run}".encode()).hexdigest())


def link_of(row: AuditRow) -> str:
    return _digest([getattr(row, name) for name in AuditRow.columns() if name != "link"])


def content_digest(row: ActionRow | ParamsRow) -> str:
    """Of every column, for `about`."""
    return _digest([getattr(row, item.name) for item in fields(row)])


def chained(head: Head, row: AuditRow) -> AuditRow:
    """The row as the next link behind `head`."""
    numbered = replace(row, number=head.number + 1, previous=head.link)
    return replace(numbered, link=link_of(numbered))


def head_of(store: Store, run: str) -> Head:
    """The newest link as stored. Behind a damaged one the chain goes on, with a break that verification reports."""
    newest = store.top(AuditRow, run)
    if newest == 0:
        return first_head(run)
    row = store.get(AuditRow, run, newest)
    return Head(newest, UNREADABLE if row is None else row.link)


def about_of(params: ParamsRow | None, action: ActionRow | None) -> dict[str, Any]:
    about: dict[str, Any] = {}
    if params is not None:
        about |= {"version": params.version, "version_digest": content_digest(params)}
    if action is not None:
        about |= {"action": action.number, "action_key": action.idempotency_key}
        about |= {"action_digest": content_digest(action)}
    return about


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of two flat mappings the entries that are not the same in both."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: before.get(name) for name in names}, {name: after.get(name) for name in names}


def entry_json(row: AuditRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in AuditRow.columns()}


def links_in(records: tuple[Record, ...]) -> list[AuditRow]:
    return [record for record in records if isinstance(record, AuditRow)]


def _digest(values: list[Any]) -> str:
    stored = json.loads(json.dumps(values, allow_nan=False))  # as it will be read: keys are texts, tuples are lists
    text = json.dumps(stored, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()
