"""The three write rules of `records`, decided in one place for every store.

A stored row that no longer verifies counts as absent: sending its content again heals it.
"""

from __future__ import annotations

from collections.abc import Callable

from triage_monitor.errors import ConflictError
from triage_monitor.storage.records import Outcome, Record, Rule


def admit(record: Record, before: Record | None, last: Callable[[], int]) -> Outcome:
    """What writing `record` over `before` (the readable row under its key) means; ConflictError when it may not."""
    if record.RULE is Rule.ONCE:
        return _once(record, before)
    if record.RULE is Rule.NEXT:
        return _next(record, last())
    return _replace(record, before)


def _once(record: Record, before: Record | None) -> Outcome:
    if before is None:
        return Outcome.NEW
    if getattr(before, "digest") == getattr(record, "digest"):  # noqa: B009  every ONCE kind has one
        return Outcome.DUPLICATE
    raise ConflictError(f"{record.TABLE} {_place(record)} was written before with other content")


def _next(record: Record, last: int) -> Outcome:
    number = record.key[-1]
    if number != last + 1:
        raise ConflictError(f"{record.TABLE} {_place(record)}: {record.KEY[-1]} must be {last + 1}")
    return Outcome.NEW


def _replace(record: Record, before: Record | None) -> Outcome:
    if before is None:
        return Outcome.NEW
    revision = getattr(record, "revision", None)
    expected = getattr(before, "revision", -1) + 1
    if revision is not None and revision != expected:
        raise ConflictError(f"{record.TABLE} {_place(record)}: revision must be {expected}, not {revision}")
    return Outcome.REPLACED


def _place(record: Record) -> str:
    return "/".join(str(part) for part in record.key)
