"""A named cause: what it is called, what speaks for it, how sure that is, and what to do.

`Finding` is one update's; `folded` makes of many updates' findings one entry a cause, with the first step that showed
it, how many updates did, the last of them, and the evidence where it was surest. `confidence` is a word: `high` where
the values prove it or settings confirm it, `medium` where a pattern fits and its neighbours do not, `low` where the
columns that would prove it were not sent. It is a judgement, no probability.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from triage_monitor.judge.causes_table import CAUSE

CONFIDENCES = ("low", "medium", "high")
Value = int | float | str | list[str] | list[int]


BLINDING_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Finding:
    """`sums` names the evidence that adds up over updates; the rest is shown as the surest update had it. `since` is
    the step from which on the cause has been found again and again."""

    cause: str
    text: str
    confidence: str = "medium"
    evidence: Mapping[str, Value] = field(default_factory=dict)
    sums: tuple[str, ...] = ()
    since: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "text": self.text,
            "confidence": self.confidence,
            "evidence": dict(self.evidence),
            "sums": list(self.sums),
            "since": self.since,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        return cls(
            data["cause"], data["text"], data["confidence"], data["evidence"], tuple(data["sums"]), data["since"]
        )


def folded(updates: Iterable[tuple[int, Sequence[Finding]]]) -> list[dict[str, Any]]:
    """The public form of (step, findings) pairs in order of updates: the contract's cause, step and evidence, with
    confidence, text and remedy beside them; by first step."""
    shown: dict[str, list[tuple[int, Finding]]] = {}
    for step, findings in updates:
        for finding in findings:
            shown.setdefault(finding.cause, []).append((step, finding))
    entries = [_entry(cause, found) for cause, found in shown.items()]
    return sorted(entries, key=lambda entry: (entry["step"], list(CAUSE).index(entry["cause"])))


def _entry(cause: str, found: Sequence[tuple[int, Finding]]) -> dict[str, Any]:
    surest = max((item for _, item in found), key=lambda item: CONFIDENCES.index(item.confidence))
    surest = [item for _, item in found if item.confidence == surest.confidence][-1]
    evidence = dict(surest.evidence)
    for name in surest.sums:
        numbers = [item.evidence.get(name, 0) for _, item in found]
        evidence[name] = sum(number for number in numbers if isinstance(number, int | float))
    return {
        "cause": cause,
        "step": found[0][0] if found[0][1].since is None else found[0][1].since,
        "kind": CAUSE[cause].kind,
        "confidence": surest.confidence,
        "text": surest.text,
        "remedy": CAUSE[cause].remedy,
        "evidence": evidence | {"updates": len(found), "last_step": found[-1][0]},
    }


def blinding(findings: Iterable[Finding], responses: int = 0) -> tuple[str, ...]:
    """Causes under which this update's gaps are no basis for an alarm (misaligned columns, fillers, another scale).

    A cause that singles out responses blinds from `BLINDING_SHARE` of them on (`responses`: of how many): a few bad
    ones must not hide a collapse, and a sampler that begins to repeat itself may be what a collapse looks like.
    """
    return tuple(item.cause for item in findings if CAUSE[item.cause].blinds and _widespread(item, responses))


def _widespread(item: Finding, responses: int) -> bool:
    affected, of = item.evidence.get("responses"), item.evidence.get("tested_responses", responses)
    if not isinstance(affected, int) or not isinstance(of, int) or affected == 0 or of <= 0:
        return True
    return affected >= BLINDING_SHARE * of
