"""What a run is judged to be, and the records that say why it changed.

A `Stage` is one word; a `Transition` is the record of a change: from, to, the rule that fired and the numbers it
fired on. A `Notice` is something worth reading that is not a stage: directional imbalance, unusable tokens, a reward
that falls while the two paths agree; some are alarms. Evidence is nested plain numbers, `{indicator: {"value": x,
"baseline": b, "ratio": r, "level": l, "low": .., "high": ..}}`, with an interval where one exists; a number not known
is left out.

Leaves out: the rules themselves (`rules`, `detector`) and what to do about a stage (`policy`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Evidence = dict[str, dict[str, float]]

NOTICE, ALARM = "notice", "alarm"


class Stage(StrEnum):
    """Public names (contract, Prometheus `triage_stage`)."""

    WARMING_UP = "warming_up"
    NOT_OBSERVABLE = "not_observable"
    HEALTHY = "healthy"
    DRIFT = "drift"
    PRE_TERMINAL = "pre_terminal"
    TERMINAL = "terminal"


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of stage. `rule` is a stable slug; `text` says the same in words with numbers."""

    step: int
    attempt: int
    from_stage: Stage
    to_stage: Stage
    rule: str
    text: str = ""
    evidence: Evidence = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "attempt": self.attempt,
            "from_stage": self.from_stage.value,
            "to_stage": self.to_stage.value,
            "rule": self.rule,
            "text": self.text,
            "evidence": {name: dict(numbers) for name, numbers in self.evidence.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Transition:
        return cls(
            step=data["step"],
            attempt=data["attempt"],
            from_stage=Stage(data["from_stage"]),
            to_stage=Stage(data["to_stage"]),
            rule=data["rule"],
            text=data["text"],
            evidence=data["evidence"],
        )


@dataclass(frozen=True, slots=True)
class Notice:
    """A condition that holds now, beside the stage. It never makes a stage and never changes a parameter.

    `severity` is `notice` (worth reading) or `alarm` (worth waking someone).
    """

    kind: str
    since_step: int
    text: str
    evidence: Evidence = field(default_factory=dict)
    severity: str = NOTICE

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "severity": self.severity,
            "since_step": self.since_step,
            "text": self.text,
            "evidence": {name: dict(numbers) for name, numbers in self.evidence.items()},
        }
