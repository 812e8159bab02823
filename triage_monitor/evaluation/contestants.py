"""Who takes part in the benchmark: our detector and its variants that know less, before the rivals.

This is the one place that knows where our detector is. One with a fixed parameter enters as it is shipped, and once
more tuned like the rest; without one it is only tuned.
"""

from __future__ import annotations

from collections.abc import Sequence

from triage_monitor.evaluation.ours import OURS, VARIANTS
from triage_monitor.evaluation.rivals import rivals
from triage_monitor.evaluation.scoring import Alarm
from triage_monitor.evaluation.tuning import Entry


def contestants() -> list[Entry]:
    ours: Sequence[Alarm] = (OURS, *VARIANTS)
    return [*(entry for alarm in ours for entry in entries_of(alarm)), *rivals()]


def entries_of(alarm: Alarm) -> list[Entry]:
    if alarm.fixed is None:
        return [Entry(alarm.name, alarm.family, (alarm,))]
    shipped = Entry(alarm.name, alarm.family, (alarm,), tuned=False)
    if not set(alarm.grid) - {alarm.fixed}:
        return [shipped]
    return [shipped, Entry(f"{alarm.name}, tuned", alarm.family, (alarm,))]
