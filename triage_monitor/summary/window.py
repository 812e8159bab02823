"""The trailing window: the N newest complete updates, re-merged (estimands section 7).

Never updated by subtraction, which drifts in floats and cannot undo a minimum. One summary a step: a newer attempt
replaces the older ones' updates from its own first step on, so a run resumed from a checkpoint is judged on the history
that still exists (C34). Late updates take their own place in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from triage_monitor.errors import ConfigError
from triage_monitor.summary.spec import DEFAULT_SPEC, SummarySpec
from triage_monitor.summary.step import StepSummary, merge_all

DEFAULT_WINDOW_UPDATES = 25


@dataclass(frozen=True, slots=True)
class Window:
    """A merge of `updates` updates from `first_step` to `last_step`."""

    first_step: int
    last_step: int
    updates: int
    summary: StepSummary


@dataclass(slots=True)
class TrailingWindow:
    """Keeps the newest `size` live updates (and no more)."""

    size: int = DEFAULT_WINDOW_UPDATES
    spec: SummarySpec = DEFAULT_SPEC
    _live: dict[int, tuple[int, StepSummary]] = field(default_factory=dict)
    _starts: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"a window needs at least one update, not {self.size}")

    def put(self, step: int, attempt: int, summary: StepSummary) -> bool:
        """Adds or replaces an update; False when a newer attempt has superseded it."""
        first = min(step, self._starts.get(attempt, step))
        self._starts[attempt] = first
        if any(start <= step for other, start in self._starts.items() if other > attempt):
            return False
        for old in [s for s, (other, _) in self._live.items() if other < attempt and s >= first]:
            del self._live[old]
        self._live[step] = (attempt, summary)
        if len(self._live) > self.size:
            del self._live[min(self._live)]
        return step in self._live

    def start_attempt(self, attempt: int, from_step: int) -> None:
        """Declares an attempt before its first update arrives."""
        self._starts[attempt] = min(from_step, self._starts.get(attempt, from_step))
        for old in [s for s, (other, _) in self._live.items() if other < attempt and s >= from_step]:
            del self._live[old]

    def live(self) -> Iterator[tuple[int, int, StepSummary]]:
        """(step, attempt, summary) in order of step."""
        for step in sorted(self._live):
            attempt, summary = self._live[step]
            yield step, attempt, summary

    @property
    def starts(self) -> dict[int, int]:
        """Attempt -> its first step."""
        return dict(self._starts)

    def merged(self) -> Window | None:
        """None before the first update."""
        if not self._live:
            return None
        steps = sorted(self._live)
        merged = merge_all((self._live[step][1] for step in steps), self.spec)
        return Window(steps[0], steps[-1], len(steps), merged)
