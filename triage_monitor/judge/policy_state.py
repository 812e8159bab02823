"""What the policy remembers of a run, and the change it asks for: plain values, JSON-able both ways, bounded.

`recent` holds at most one history of each watched indicator, `before` one line each; both in the scale of `harm`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from triage_monitor.judge.harm import Forecast
from triage_monitor.judge.stages import Evidence
from triage_monitor.parameters import TriageParams


@dataclass(frozen=True, slots=True)
class ParameterChange:
    """A new set for the run; version and step are filled in by the store.

    `kind`: start, strengthen (a first or a later remedy), switch (another one after harm), undo, relax or hand_over.
    """

    params: TriageParams
    kind: str
    reason: str
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyState:
    """Everything the policy knows about one run."""

    params: TriageParams
    remedy: str = ""  # the one in force; empty for none
    started: bool = False
    held: bool = False
    since_change: int | None = None  # updates; None before the first change
    calm: int = 0
    changes: int = 0  # made in this attempt
    handed_over: bool = False
    attempt: int = 0
    note: str = ""  # why the policy does not act, in words; empty when it may
    harmed: tuple[str, ...] = ()  # remedies that did, in this attempt
    relaxed: tuple[str, ...] = ()  # remedies taken back once, in this attempt
    before: Mapping[str, Forecast] = field(default_factory=dict)  # foretold when the remedy was entered
    recent: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # settled values under the present set

    def to_dict(self) -> dict[str, Any]:
        return {
            "params": self.params.to_dict(),
            "remedy": self.remedy,
            "started": self.started,
            "held": self.held,
            "since_change": self.since_change,
            "calm": self.calm,
            "changes": self.changes,
            "handed_over": self.handed_over,
            "attempt": self.attempt,
            "note": self.note,
            "harmed": list(self.harmed),
            "relaxed": list(self.relaxed),
            "before": {name: item.to_list() for name, item in self.before.items()},
            "recent": {name: list(values) for name, values in self.recent.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PolicyState:
        """Also reads the states of versions that climbed levels: any level but 0 set the gentle remedy's parts."""
        kept = {name: data[name] for name in ("started", "held", "since_change", "calm", "attempt", "note")}
        return cls(
            params=TriageParams.from_dict(data["params"]),
            remedy=data.get("remedy", "gentle" if data.get("level") else ""),
            changes=data.get("changes", 0),
            handed_over=data.get("handed_over", False),
            harmed=tuple(data.get("harmed", ())),
            relaxed=tuple(data.get("relaxed", ())),
            before={name: Forecast(*line) for name, line in data.get("before", {}).items()},
            recent={name: tuple(values) for name, values in data.get("recent", {}).items()},
            **kept,
        )

    def forget_attempt(self) -> PolicyState:
        """What belongs to one attempt goes; parameters, the remedy in force and an operator's hold stay."""
        return replace(
            self,
            changes=0,
            handed_over=False,
            note=self.note if self.held else "",
            harmed=(),
            relaxed=(),
            before={},
            recent={},
            calm=0,
        )
