"""The torch side: the TRIAGE objective, its baselines, NVFP4 emulation, and the non-blocking client.

`Monitor` (client.py) needs no torch; every other name loads torch on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from triage_monitor.parameters import TriageParams

if TYPE_CHECKING:
    from triage_monitor.trainer.baselines import objective
    from triage_monitor.trainer.client import Monitor
    from triage_monitor.trainer.loss import TriageLoss
    from triage_monitor.trainer.repair import count_repair_segments
    from triage_monitor.trainer.stats import read_stats

__all__ = ["Monitor", "TriageLoss", "TriageParams", "count_repair_segments", "objective", "read_stats"]

_HOMES = {
    "Monitor": "triage_monitor.trainer.client",
    "TriageLoss": "triage_monitor.trainer.loss",
    "count_repair_segments": "triage_monitor.trainer.repair",
    "objective": "triage_monitor.trainer.baselines",
    "read_stats": "triage_monitor.trainer.stats",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'triage_monitor.trainer' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
