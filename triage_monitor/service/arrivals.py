"""What comes in and what is answered: a shard that was understood, with all that is kept of it, and its admission."""

from __future__ import annotations

from dataclasses import dataclass

from triage_monitor.service.open_update import Piece
from triage_monitor.storage.records import Record, ShardRow, SymptomRow, WorstRow


@dataclass(frozen=True, slots=True)
class Arrival:
    """A shard that was read and understood: its row without a time, its summary; its symptoms and its worst responses
    as they are stored, None when it came as a summary."""

    row: ShardRow
    piece: Piece
    symptoms: bytes | None = None
    worst: bytes | None = None

    def beside(self) -> list[Record]:
        """What is kept of it beside its row."""
        place = (self.row.run, self.row.attempt, self.row.step, self.row.shard)
        symptoms = None if self.symptoms is None else SymptomRow(*place, self.symptoms)
        worst = None if self.worst is None else WorstRow(*place, self.worst)
        return [item for item in (symptoms, worst) if item is not None]


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to an accepted shard."""

    duplicate: bool
    attempt: int
    shards: int
    update: str
    shards_in: int
    params_version: int
