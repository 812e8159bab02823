"""What is known of an update beside its summary, and bears on whether and how it can be judged."""

from __future__ import annotations

from dataclasses import dataclass

from triage_monitor.judge.causes_run import CauseTracker
from triage_monitor.summary.symptoms import Symptoms


@dataclass(frozen=True, slots=True)
class Context:
    """`blinded_by`: causes that make the gaps no basis for a verdict. `precision`: declared by the trainer, if one."""

    blinded_by: tuple[str, ...] = ()
    precision: str | None = None


NOTHING_KNOWN = Context()


def context_of(causes: CauseTracker, step: int, symptoms: Symptoms | None) -> Context:
    """Before the update is judged; changes nothing. None: it came as a summary, so nothing is known."""
    if symptoms is None:
        return NOTHING_KNOWN
    told = symptoms.settings.get("precision", ())
    return Context(causes.blinded(step, symptoms), told[0] if len(told) == 1 else None)
