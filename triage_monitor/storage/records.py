"""The rows a store keeps, as plain values, and the rule under which each kind may be written.

Every kind has a key and one of three rules:

  ONCE      the key is written once; the same `digest` again is a duplicate, another digest is a conflict
  NEXT      the last key column counts 1, 2, 3, ... within the others; any other number is a conflict
  REPLACE   the newest write wins; of a row with a `revision`, only revision + 1 may follow

Times are Unix seconds. JSON columns hold strict JSON: absent is null, never NaN. Summaries are opaque bytes here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar

RUN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


class Rule(StrEnum):
    ONCE = "once"
    NEXT = "next"
    REPLACE = "replace"


class Outcome(StrEnum):
    NEW = "new"
    DUPLICATE = "duplicate"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class Record:
    """Base of every row: which table, which key columns, which rule, and the order in which rows are read."""

    TABLE: ClassVar[str]
    KEY: ClassVar[tuple[str, ...]]
    RULE: ClassVar[Rule]
    ORDER: ClassVar[tuple[str, ...]] = ()

    run: str

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.KEY)

    @classmethod
    def order(cls) -> tuple[str, ...]:
        return cls.ORDER or cls.KEY

    @classmethod
    @cache
    def columns(cls) -> tuple[str, ...]:
        return tuple(item.name for item in fields(cls))


@dataclass(frozen=True, slots=True)
class RunRow(Record):
    """One run. `held_by` names who overrides the policy; while it is set no policy change is issued."""

    TABLE = "runs"
    KEY = ("run",)
    RULE = Rule.REPLACE

    created_at: float
    retired: bool = False
    held_by: str | None = None


@dataclass(frozen=True, slots=True)
class AttemptRow(Record):
    """One start or resume of a trainer. `digest` is its launch id."""

    TABLE = "attempts"
    KEY = ("run", "attempt")
    RULE = Rule.ONCE

    attempt: int
    from_step: int
    digest: str
    created_at: float


@dataclass(frozen=True, slots=True)
class ShardRow(Record):
    """One acknowledged shard. `groups` holds its distinct group ids as little-endian int64, None when unknown."""

    TABLE = "shards"
    KEY = ("run", "attempt", "step", "shard")
    RULE = Rule.ONCE

    attempt: int
    step: int
    shard: int
    shards: int
    digest: str
    received_at: float
    body_bytes: int
    summary: bytes
    groups: bytes | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HalfRow(Record):
    """One acknowledged half: a shard of what the samplers, or the learners, report of an update on their own."""

    TABLE = "halves"
    KEY = ("run", "attempt", "step", "side", "shard")
    RULE = Rule.ONCE

    attempt: int
    step: int
    side: str
    shard: int
    shards: int
    digest: str
    received_at: float
    body_bytes: int


@dataclass(frozen=True, slots=True)
class HalfContentRow(Record):
    """A half's rows as encoded, until its update is complete or old; then empty, or gone. Written with its HalfRow."""

    TABLE = "half_contents"
    KEY = ("run", "attempt", "step", "side", "shard")
    RULE = Rule.REPLACE

    attempt: int
    step: int
    side: str
    shard: int
    content: bytes


@dataclass(frozen=True, slots=True)
class UpdateRow(Record):
    """One closed update: what was judged of it. Revision 0 is the first closing; a late shard adds one."""

    TABLE = "updates"
    KEY = ("run", "attempt", "step")
    RULE = Rule.REPLACE
    ORDER = ("run", "step", "attempt")

    attempt: int
    step: int
    revision: int
    status: str
    shards: int
    missing_shards: int
    closed_at: float
    stage: str
    report: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SummaryRow(Record):
    """The merged summary of a closed update, what windows are made of."""

    TABLE = "summaries"
    KEY = ("run", "attempt", "step")
    RULE = Rule.REPLACE
    ORDER = ("run", "step", "attempt")

    attempt: int
    step: int
    summary: bytes


@dataclass(frozen=True, slots=True)
class SymptomRow(Record):
    """What causes are told apart by, of one shard that came with its rows; written together with the shard."""

    TABLE = "symptoms"
    KEY = ("run", "attempt", "step", "shard")
    RULE = Rule.REPLACE

    attempt: int
    step: int
    shard: int
    symptoms: bytes


@dataclass(frozen=True, slots=True)
class WorstRow(Record):
    """The worst responses of one shard that came with its rows, as encoded; written together with the shard."""

    TABLE = "worst"
    KEY = ("run", "attempt", "step", "shard")
    RULE = Rule.REPLACE

    attempt: int
    step: int
    shard: int
    worst: bytes


@dataclass(frozen=True, slots=True)
class StateRow(Record):
    """What a restart needs beside the summaries: the judge's memory, counters, the parameters in force."""

    TABLE = "states"
    KEY = ("run",)
    RULE = Rule.REPLACE

    judge: dict[str, Any]
    counters: dict[str, Any]
    applied: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TransitionRow(Record):
    """One change of stage, with its evidence."""

    TABLE = "transitions"
    KEY = ("run", "number")
    RULE = Rule.NEXT

    number: int
    attempt: int
    step: int
    at: float
    before: str
    after: str
    evidence: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ParamsRow(Record):
    """One version of the parameter set and the written reason for it."""

    TABLE = "params"
    KEY = ("run", "version")
    RULE = Rule.NEXT

    version: int
    at: float
    actor: str
    reason: str
    params: dict[str, Any]
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AckRow(Record):
    """A trainer's word that a version is in force from a step on, or why it refused it."""

    TABLE = "acks"
    KEY = ("run", "version", "step")
    RULE = Rule.REPLACE

    version: int
    step: int
    at: float
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class ActionRow(Record):
    """The audit trail: one asked-for or automatic action. `idempotency_key` decides repeats, `digest` conflicts."""

    TABLE = "actions"
    KEY = ("run", "idempotency_key")
    RULE = Rule.ONCE
    ORDER = ("run", "number")

    idempotency_key: str
    number: int
    digest: str
    at: float
    actor: str
    kind: str
    outcome: str
    request: dict[str, Any]
    answer: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AuditRow(Record):
    """One link of a run's chain of control changes (storage/audit.py).

    `who` is proven (a token's name, `policy`, `trainer`, `signed hook`, `anonymous`), `actor` is who it is shown as.
    `before` and `after` hold what differs, by dotted name. `about` ties the link to other rows: a parameter version
    and an action, each with the digest of its content.
    """

    TABLE = "audit"
    KEY = ("run", "number")
    RULE = Rule.NEXT

    number: int
    at: float
    who: str
    actor: str
    kind: str
    outcome: str
    reason: str
    before: dict[str, Any]
    after: dict[str, Any]
    about: dict[str, Any]
    previous: str
    link: str


@dataclass(frozen=True, slots=True)
class CursorRow(Record):
    """How far a webhook target has been told of a run: the newest transition and audit link that it need not get."""

    TABLE = "cursors"
    KEY = ("run", "target")
    RULE = Rule.REPLACE

    target: str
    at: float
    transitions: int
    links: int


@dataclass(frozen=True, slots=True)
class AlertsRow(Record):
    """The run's alerts that are held for Alertmanager, by condition (service/conditions.Held)."""

    TABLE = "alerts"
    KEY = ("run",)
    RULE = Rule.REPLACE

    held: dict[str, Any]


KINDS: tuple[type[Record], ...] = (
    RunRow,
    AttemptRow,
    ShardRow,
    UpdateRow,
    SummaryRow,
    StateRow,
    TransitionRow,
    ParamsRow,
    AckRow,
    ActionRow,
    SymptomRow,
    AuditRow,
    CursorRow,
)
# Came later and are in no version of the schema: their tables are made where they are absent.
BESIDE: tuple[type[Record], ...] = (WorstRow, AlertsRow, HalfRow, HalfContentRow)
ALL_KINDS = (*KINDS, *BESIDE)
