"""Early warning and control for learner-sampler mismatch in low-precision RL of language models.

    from triage_monitor import Monitor, summarize, indicators

Nothing here imports torch; names load on first use, so that a trainer which only sends gaps pays for
nothing else. The torch side (the TRIAGE objective) is `triage_monitor.trainer`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triage_monitor.judge.indicators import indicators
    from triage_monitor.summary.build import summarize
    from triage_monitor.summary.spec import SummarySpec
    from triage_monitor.summary.step import StepSummary
    from triage_monitor.trainer.client import Monitor

__version__ = "0.1.0"
__all__ = ["Monitor", "StepSummary", "SummarySpec", "indicators", "summarize"]

_HOMES = {
    "Monitor": "triage_monitor.trainer.client",
    "StepSummary": "triage_monitor.summary.step",
    "SummarySpec": "triage_monitor.summary.spec",
    "indicators": "triage_monitor.judge.indicators",
    "summarize": "triage_monitor.summary.build",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'triage_monitor' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
