"""The torch side: the TRIAGE objective, its baselines, NVFP4 emulation, and the non-blocking client.

`Monitor` (client.py) needs no torch; every other name loads torch on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from triage_monitor.parameters import TriageParams

if TYPE_CHECKING:
    from triage_monitor.trainer.client import Monitor
    from triage_monitor.trainer.loss import TriageLoss

__all__ = ["Monitor", "TriageLoss", "TriageParams"]

_HOMES = {"Monitor": "triage_monitor.trainer.client", "TriageLoss": "triage_monitor.trainer.loss"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'triage_monitor.trainer' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
