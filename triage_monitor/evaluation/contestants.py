"""Who takes part in the benchmark: our detector, when the installation has one, before its rivals.

This is the one place that knows where our detector is. It enters as it is shipped, and once more tuned like the rest
when it offers more than one parameter.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from triage_monitor.evaluation.rivals import rivals
from triage_monitor.evaluation.scoring import Alarm
from triage_monitor.evaluation.tuning import Entry

_OURS = "triage_monitor.evaluation.ours"


def contestants() -> list[Entry]:
    return [*(_entries_of(import_module(_OURS).OURS) if find_spec(_OURS) else []), *rivals()]


def _entries_of(ours: Alarm) -> list[Entry]:
    entries = [] if ours.fixed is None else [Entry(ours.name, "ours", (ours,), tuned=False)]
    if ours.fixed is None or set(ours.grid) - {ours.fixed}:
        entries.append(Entry(f"{ours.name}, tuned", "ours", (ours,)))
    return entries
