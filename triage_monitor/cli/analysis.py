"""What `analyze` works out: recorded updates -> merged summaries -> judged windows and findings.

Shards of an update are merged by (attempt, step), so order and files do not matter; of each update only its encoded
summary and symptoms are kept until all rows are read. Then the updates go through the same `RunMonitor` and
`CauseTracker` as live ones, in the order of attempt and step. All arithmetic is `summary`'s and `judge`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triage_monitor.judge.calibration import calibrate
from triage_monitor.judge.causes import Finding, folded
from triage_monitor.judge.causes_run import CauseTracker
from triage_monitor.judge.context import Context, context_of
from triage_monitor.judge.run import Judgement, JudgeSettings, RunMonitor
from triage_monitor.judge.stages import Notice, Transition
from triage_monitor.storage.recordings import RecordedUpdate
from triage_monitor.summary.codec import decode, encode
from triage_monitor.summary.rows import UpdateRows
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.summary.step import StepSummary, merge_all
from triage_monitor.summary.symptoms_codec import decode_symptoms, encode_symptoms
from triage_monitor.summary.symptoms_rows import symptoms_of
from triage_monitor.summary.worst import WorstResponse, decode_worst, encode_worst, merge_worst
from triage_monitor.summary.worst_rows import worst_of

Key = tuple[int, int]  # attempt, step


@dataclass(frozen=True, slots=True)
class Story:
    """What the judge said beside the numbers: changes of stage, what holds at the end and why, the run's own normal
    (medians by indicator), the sampling settings, and each update's worst responses when they were asked for."""

    transitions: tuple[Transition, ...] = ()
    why: str = ""
    notices: tuple[Notice, ...] = ()
    normal: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    encoded_worst: Mapping[Key, bytes] = field(default_factory=dict)

    def worst(self, key: Key) -> tuple[WorstResponse, ...]:
        encoded = self.encoded_worst.get(key)
        return () if encoded is None else decode_worst(encoded)


@dataclass(frozen=True, slots=True)
class Analysis:
    """`document` is the contract's object of `analyze --json`; `notes` are sentences for the person who ran it;
    `calibration` is what the first window of sound updates says the spec's thresholds should be, `left_out` how many
    of the first were not sound."""

    document: dict[str, Any]
    notes: tuple[str, ...]
    calibration: dict[str, float] = field(default_factory=dict)
    left_out: int = 0
    story: Story = field(default_factory=Story)


@dataclass(slots=True)
class _Update:
    """One update while the recording is read, encoded, and the groups seen when it has any."""

    encoded: bytes
    symptoms: bytes
    groups: np.ndarray[Any, Any] | None
    shards: int = 1
    worst: bytes = b""


@dataclass(slots=True)
class Collector:
    """Takes shards in any order; holds a few ten kilobytes for each update."""

    spec: SummarySpec
    keep_worst: bool = False
    run: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    updates: dict[Key, _Update] = field(default_factory=dict)
    newest: Key | None = None
    came_back: int | None = None
    ignored: dict[str, None] = field(default_factory=dict)

    def add(self, shard: RecordedUpdate) -> None:
        key = (shard.attempt, shard.step)
        summary, symptoms, groups = shard.rows.summarize(self.spec), symptoms_of(shard.rows), _groups(shard.rows)
        before = self.updates.get(key)
        shards = 0 if before is None else before.shards
        worst = worst_of(shard.rows, self.spec, shard=shards) if self.keep_worst else ()
        if before is not None:
            if not shard.attempt_given and self.newest is not None and key < self.newest and self.came_back is None:
                self.came_back = shard.step
            summary, groups = _merged(decode(before.encoded), before.groups, summary, groups)
            symptoms = decode_symptoms(before.symptoms).merge(symptoms)
            worst = merge_worst((decode_worst(before.worst), worst)) if self.keep_worst else ()
        kept = encode_worst(worst) if self.keep_worst else b""
        self.updates[key] = _Update(encode(summary), encode_symptoms(symptoms), groups, shards + 1, kept)
        self.newest = key if self.newest is None else max(key, self.newest)
        self.run = self.run or shard.run
        self.settings |= shard.rows.settings
        self.ignored |= dict.fromkeys(shard.rows.ignored_columns)

    def notes(self) -> tuple[str, ...]:
        notes = []
        if self.ignored:
            notes.append(f"columns left alone: {', '.join(self.ignored)}")
        if self.came_back is not None:
            notes.append(
                f"step {self.came_back} comes again after later steps; its rows were merged into one update. "
                "If the run was resumed, record its attempt in a column `attempt`"
            )
        return tuple(notes)


def analyse(
    shards: Iterable[RecordedUpdate],
    *,
    spec: SummarySpec,
    window: int,
    seen: Callable[[int], None] = lambda count: None,
    keep_worst: bool = False,
) -> Analysis:
    """`seen` hears how many updates were read so far; `keep_worst` keeps each update's worst responses."""
    collector = Collector(spec, keep_worst)
    for shard in shards:
        collector.add(shard)
        seen(len(collector.updates))
    updates, windows = [], []
    found: list[tuple[int, list[Finding]]] = []
    tracker = CauseTracker(window)
    sound: list[Key] = []
    told = _Told()
    for monitor, judgement, context in _judged(collector.updates, judge_settings(window), spec, tracker):
        told.hear(monitor, judgement)
        if not context.blinded_by and judgement.update["indicators"].get("not_observable") != 1.0:
            sound.append((judgement.attempt, judgement.step))
        place = {"step": judgement.step, "attempt": judgement.attempt}
        updates.append(place | judgement.update)
        windows.append(place | judgement.window)
        symptoms = decode_symptoms(collector.updates[judgement.attempt, judgement.step].symptoms)
        found.append((judgement.step, tracker.accept(judgement.step, judgement.update, judgement.window, symptoms)))
    document = {"run": collector.run, "updates": updates, "windows": windows, "findings": folded(found)}
    start = merge_all((decode(collector.updates[key].encoded) for key in sorted(sound)[:window]), spec)
    left_out = sum(key not in set(sound) for key in sorted(collector.updates)[:window])
    return Analysis(document, collector.notes(), calibrate(start).to_dict(), left_out, told.story(collector))


@dataclass(slots=True)
class _Told:
    """What the judge says while it goes through the updates."""

    transitions: list[Transition] = field(default_factory=list)
    why: str = ""
    notices: tuple[Notice, ...] = ()
    normal: dict[str, float] = field(default_factory=dict)

    def hear(self, monitor: RunMonitor, judgement: Judgement) -> None:
        if judgement.transition is not None:
            self.transitions.append(judgement.transition)
        self.why, self.notices, self.normal = judgement.why, judgement.notices, monitor.normal

    def story(self, collector: Collector) -> Story:
        worst = {key: item.worst for key, item in collector.updates.items() if item.worst}
        transitions = tuple(self.transitions)
        return Story(transitions, self.why, self.notices, self.normal, dict(collector.settings), worst)


def _judged(
    updates: dict[Key, _Update], settings: JudgeSettings, spec: SummarySpec, causes: CauseTracker
) -> Iterator[tuple[RunMonitor, Judgement, Context]]:
    """A new attempt goes on from the window that was in force before its first step, as it does live.

    `causes` is to be told of each judgement before the next one is asked for.
    """
    monitor = RunMonitor(settings, spec)
    in_force: dict[int, int] = {}
    newest = None
    for attempt, step in sorted(updates):
        if newest is not None and attempt > newest:
            in_force = {known: owner for known, owner in in_force.items() if known < step}
            held = {known for known, owner in monitor.window_keys() if in_force.get(known) == owner}
            steps = sorted({*sorted(in_force)[-settings.window_updates :], *held})
            recent = [(known, in_force[known], decode(updates[in_force[known], known].encoded)) for known in steps]
            monitor = RunMonitor.restore(settings, spec, monitor.state(), recent)
            causes.rewind(step)
        newest = attempt
        in_force[step] = attempt
        update = updates[attempt, step]
        context = context_of(causes, step, decode_symptoms(update.symptoms))
        yield monitor, monitor.accept(step, attempt, decode(update.encoded), context), context


def judge_settings(window: int) -> JudgeSettings:
    """The defaults at this window; a window too short for the detector's minimum data lowers that minimum."""
    settings = JudgeSettings()
    if window >= settings.window_updates:
        return JudgeSettings(window_updates=window)
    detector = {
        "minimum": {"updates": min(settings.detector.minimum.updates, window)},
        "baseline": {"first_updates": min(settings.detector.baseline.first_updates, window)},
    }
    return JudgeSettings.from_dict({"window_updates": window, "detector": detector})


def _groups(rows: UpdateRows) -> np.ndarray[Any, Any] | None:
    return None if rows.groups is None else np.unique(rows.groups)


def _merged(
    first: StepSummary, first_groups: Any, second: StepSummary, second_groups: Any
) -> tuple[StepSummary, np.ndarray[Any, Any] | None]:
    """A group found in two shards makes the response the sampling unit (estimands section 6)."""
    merged = first.merge(second)
    if first_groups is None or second_groups is None:
        return merged, first_groups if second_groups is None else second_groups
    if len(np.intersect1d(first_groups, second_groups)):
        merged = merged.with_split_groups()
    return merged, np.union1d(first_groups, second_groups)
