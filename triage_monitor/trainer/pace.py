"""How often a monitor may change what a trainer runs on: at most `changes` in `updates` updates.

Not held back, since they cannot make the objective flutter or must never wait: a set that differs in `control` alone,
one that pauses or stops, one that says what the trainer's safe default says, and the return to the set that was in
force before a lease ran out. Those that change more than `control` are counted all the same.
"""

from __future__ import annotations

from collections import deque

from triage_monitor.errors import ConfigError
from triage_monitor.parameters import TriageParams, changed


def checked_pace(limit: object) -> tuple[int, int]:
    """(changes, updates), both at least 1; ConfigError otherwise."""
    if (
        isinstance(limit, tuple)
        and len(limit) == 2
        and all(type(number) is int and 1 <= number <= 1_000_000 for number in limit)
    ):
        return limit[0], limit[1]
    raise ConfigError(f"change_limit must be two integers of at least 1, (changes, updates), got {limit!r:.60}")


class Pace:
    """The steps of the changes made; one owner."""

    def __init__(self, limit: object, safe: TriageParams) -> None:
        self.changes, self.updates = checked_pace(limit)
        self._safe = safe
        self._steps: deque[int] = deque(maxlen=self.changes)

    def against(self, before: TriageParams, after: TriageParams, step: int) -> str | None:
        """Why `after` may not follow `before` at this step, or None; a change that may is counted."""
        if changed(before, after).keys() <= {"control"}:
            return None
        if self._steps and self._steps[-1] > step:  # a trainer that went back
            self._steps.clear()
        free = after.control != "run" or changed(self._safe, after).keys() <= {"control"}
        is_full = len(self._steps) == self.changes and self._steps[0] > step - self.updates
        if is_full and not free:
            return f"too many changes: {self.changes} in {self.updates} updates is the trainer's limit"
        self._steps.append(step)
        return None
