"""How often people and alerts may change a run's parameters: `control.max_changes` in `control.per_updates` updates.

All sets count, the policy's too, whose own pace is `judge.policy.min_dwell_updates`. Never refused: what changes
`control` alone, what pauses or stops, and the way back to the set that the run is configured to begin with. A trainer
has a limit of its own (trainer/pace.py); this one says so before a set is issued that it would refuse.
"""

from __future__ import annotations

from itertools import pairwise

from triage_monitor.config import ControlSettings
from triage_monitor.parameters import TriageParams, changed
from triage_monitor.service.live import LiveRun
from triage_monitor.service.problems import Problem
from triage_monitor.storage.records import ParamsRow


def check_pace(live: LiveRun, after: TriageParams, settings: ControlSettings) -> None:
    """Problem 429 when `after` would be one change too many. Blocking."""
    if after.control != "run" or not _differs(live.params, after) or not _differs(_first(live), after):
        return
    step = 0 if live.newest is None else live.newest.step
    rows = live.store.rows(ParamsRow, live.name, newest=settings.max_changes + 1)
    sets = [_first(live), *(TriageParams.from_dict(row.params) for row in rows)]
    made = [now.issued_at_step for before, now in pairwise(sets) if _differs(before, now)]
    recent = sum(step - settings.per_updates < at <= step for at in made)
    if recent >= settings.max_changes:
        raise Problem(
            429,
            "change_rate",
            f"{recent} changes in the last {settings.per_updates} updates, as many as control.max_changes allows;"
            " pause, stop and the way back to the run's first set are always taken",
        )


def _first(live: LiveRun) -> TriageParams:
    return live.settings.policy.initial()


def _differs(before: TriageParams, after: TriageParams) -> bool:
    return not changed(before, after).keys() <= {"control"}
