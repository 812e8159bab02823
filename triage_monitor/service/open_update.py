"""An update while its shards come in: whole ones, or the halves of a trainer whose two sides report on their own.

Of halves only which have come is held here; their rows are in the store until the update closes. Sampler halves may be
far ahead of training, so an update that only samplers have reported waits without a deadline: it gets one with its
first learner half, or once a later update has one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from triage_monitor.errors import ConflictError
from triage_monitor.storage.records import HalfRow, UpdateRow
from triage_monitor.summary.rows_halves import LEARNER, SIDES
from triage_monitor.summary.step import StepSummary
from triage_monitor.summary.symptoms import Symptoms

Place = tuple[int, int]  # attempt, step
MOST_GRACES = 10


@dataclass(frozen=True, slots=True)
class Piece:
    """One shard of an open update; `groups` are its group ids as little-endian int64, None when not known; `symptoms`
    None when it came as a summary."""

    summary: StepSummary
    groups: bytes | None
    symptoms: Symptoms | None = None


@dataclass(slots=True)
class Halves:
    """Which halves have come: side -> shards, how many each side will have (1 until it said so), and their bytes."""

    came: dict[str, set[int]] = field(default_factory=lambda: {side: set() for side in SIDES})
    declared: dict[str, int] = field(default_factory=dict)
    body_bytes: int = 0

    @classmethod
    def of(cls, rows: Iterable[HalfRow]) -> Halves:
        halves = cls()
        for row in rows:
            halves.add(row)
        return halves

    def add(self, row: HalfRow) -> None:
        self.declared.setdefault(row.side, row.shards)
        self.body_bytes += row.body_bytes * (row.shard not in self.came[row.side])
        self.came[row.side].add(row.shard)

    def declare(self, side: str, shards: int, step: int) -> None:
        known = self.declared.setdefault(side, shards)
        if known != shards:
            raise ConflictError(f"the {side}'s side of step {step} was begun with {known} shards, not {shards}")

    @property
    def expected(self) -> int:
        return sum(self.declared.get(side, 1) for side in SIDES)

    @property
    def count(self) -> int:
        return sum(map(len, self.came.values()))

    @property
    def has_learner(self) -> bool:
        return bool(self.came[LEARNER])


@dataclass(slots=True)
class OpenUpdate:
    """An update that is being collected, or one that was closed as partial and got a late shard (revision > 0).

    With `halves`, `shards` counts those of both sides; `pieces` and `join` (what matched) are made at its closing.
    """

    attempt: int
    step: int
    shards: int
    deadline: float
    revision: int = 0
    pieces: dict[int, Piece] = field(default_factory=dict)
    arriving: int = 0
    halves: Halves | None = None
    join: dict[str, Any] | None = None
    latest: float = math.inf

    def wait(self, grace: float, now: float) -> None:
        """Each shard gives the others `grace` seconds more, MOST_GRACES times that after the first one at most."""
        if math.isinf(self.latest):
            self.latest = now + MOST_GRACES * grace
        self.deadline = max(self.deadline, min(now + grace, self.latest))

    @classmethod
    def after(cls, row: UpdateRow, deadline: float) -> OpenUpdate:
        """What a late shard opens anew."""
        update = cls(row.attempt, row.step, row.shards, deadline, row.revision + 1)
        update.halves = Halves() if row.report.get("join") is not None else None
        return update

    @property
    def place(self) -> Place:
        return self.attempt, self.step

    @property
    def shards_in(self) -> int:
        return len(self.pieces) if self.halves is None else self.halves.count

    @property
    def held_bytes(self) -> int:
        return sum(piece.summary.nbytes for piece in self.pieces.values())

    @property
    def missing_shards(self) -> int:
        return self.shards - self.shards_in

    @property
    def is_empty(self) -> bool:
        return self.shards_in == 0

    @property
    def is_ahead(self) -> bool:
        """Only samplers have reported it, and it was not closed yet."""
        return self.halves is not None and not self.halves.has_learner and self.revision == 0

    def take_halves(self, halves: Halves, *, ahead: bool) -> None:
        self.halves, self.shards = halves, halves.expected
        if ahead and self.is_ahead:
            self.deadline = math.inf

    def refuse_whole(self, shards: int) -> None:
        if self.halves is not None:
            raise ConflictError(f"step {self.step} was begun by sides on their own; a whole shard cannot join them")
        if self.shards != shards:
            raise ConflictError(f"step {self.step} was begun with {self.shards} shards, not {shards}")
