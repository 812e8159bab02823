"""The trailing window: the N newest complete updates, re-merged (estimands section 7).

Never updated by subtraction, which drifts in floats and cannot undo a minimum. One summary a step: a newer attempt
replaces the older ones' updates from its own first step on, so a run resumed from a checkpoint is judged on the history
that still exists (C34). Late updates take their own place in order.

An update whose gaps are no basis for a verdict is put in as unsound: `merged` shows it like any other, `sound` looks
past it at older updates, so that a flaw in every tenth update does not withhold the verdict on the other nine.
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


@dataclass(frozen=True, slots=True)
class _Held:
    attempt: int
    summary: StepSummary
    sound: bool


@dataclass(slots=True)
class TrailingWindow:
    """Keeps the newest `size` live updates and the newest `size` sound ones (and no more)."""

    size: int = DEFAULT_WINDOW_UPDATES
    spec: SummarySpec = DEFAULT_SPEC
    _live: dict[int, _Held] = field(default_factory=dict)
    _starts: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"a window needs at least one update, not {self.size}")

    def put(self, step: int, attempt: int, summary: StepSummary, *, sound: bool = True) -> bool:
        """Adds or replaces an update; False when a newer attempt has superseded it."""
        first = min(step, self._starts.get(attempt, step))
        self._starts[attempt] = first
        if any(start <= step for other, start in self._starts.items() if other > attempt):
            return False
        for old in [s for s, held in self._live.items() if held.attempt < attempt and s >= first]:
            del self._live[old]
        self._live[step] = _Held(attempt, summary, sound)
        kept = {*self._newest(), *self._newest_sound()}
        self._live = {known: held for known, held in self._live.items() if known in kept}
        return step in self._live

    def start_attempt(self, attempt: int, from_step: int) -> None:
        """Declares an attempt before its first update arrives."""
        self._starts[attempt] = min(from_step, self._starts.get(attempt, from_step))
        for old in [s for s, held in self._live.items() if held.attempt < attempt and s >= from_step]:
            del self._live[old]

    def live(self) -> Iterator[tuple[int, int, StepSummary]]:
        """(step, attempt, summary) of everything held, in order of step."""
        for step in sorted(self._live):
            yield step, self._live[step].attempt, self._live[step].summary

    @property
    def starts(self) -> dict[int, int]:
        """Attempt -> its first step."""
        return dict(self._starts)

    @property
    def unsound(self) -> list[tuple[int, int]]:
        """(step, attempt) of the updates held that are no basis for a verdict."""
        return [(step, self._live[step].attempt) for step in sorted(self._live) if not self._live[step].sound]

    def merged(self) -> Window | None:
        """The newest `size` updates; None before the first."""
        return self._merge(self._newest())

    def sound(self) -> Window | None:
        """The newest `size` sound updates; None while there is none."""
        return self._merge(self._newest_sound())

    def all_sound(self) -> bool:
        """Whether `merged` and `sound` are the same."""
        return self._newest() == self._newest_sound()

    def sound_of(self, attempt: int) -> int:
        """How many of the newest `size` sound updates are this attempt's."""
        return sum(self._live[step].attempt == attempt for step in self._newest_sound())

    def _newest(self) -> list[int]:
        return sorted(self._live)[-self.size :]

    def _newest_sound(self) -> list[int]:
        return sorted(step for step, held in self._live.items() if held.sound)[-self.size :]

    def _merge(self, steps: list[int]) -> Window | None:
        if not steps:
            return None
        merged = merge_all((self._live[step].summary for step in steps), self.spec)
        return Window(steps[0], steps[-1], len(steps), merged)
