"""One run as the service holds it: open updates, the judge, the parameters in force, and a snapshot for readers.

Everything here can be rebuilt from the store, and is: at start, and whenever a write failed half way. `LiveRun` is
changed by one owner at a time (its lock); readers take `snapshot`, which is immutable and replaced as a whole.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from triage_monitor.errors import InputError, StoreCorrupt
from triage_monitor.judge.causes_run import HEAD_STEPS, CauseTracker
from triage_monitor.judge.run import JudgeSettings, RunMonitor
from triage_monitor.parameters import TriageParams, changed
from triage_monitor.service.landing import Landings
from triage_monitor.service.open_update import Halves, OpenUpdate, Piece, Place
from triage_monitor.service.unclosable import Troubles
from triage_monitor.storage.audit import Head, first_head, head_of
from triage_monitor.storage.base import Store, effective_updates
from triage_monitor.storage.records import (
    ActionRow,
    AttemptRow,
    AuditRow,
    HalfRow,
    ParamsRow,
    RunRow,
    ShardRow,
    StateRow,
    SummaryRow,
    SymptomRow,
    TransitionRow,
    UpdateRow,
)
from triage_monitor.summary.codec import decode
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.summary.step import StepSummary
from triage_monitor.summary.symptoms import Symptoms, merge_symptoms
from triage_monitor.summary.symptoms_codec import decode_symptoms

PACE_UPDATES = 26  # whose intervals make the run's pace
PARTIAL_BYTES, PARTIAL_UPDATES = 32 << 20, 8
PACE_MINIMUM = 5  # intervals
THIN_EVERY = 64  # closed updates


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is true of a run now. `row` is the update closed last, `newest` the one furthest on."""

    run: str
    attempt: int
    newest: UpdateRow | None
    stage: str
    params: TriageParams
    params_at: float
    applied: Mapping[str, Any] | None
    held_by: str | None
    retired: bool
    policy_note: str
    last_seen: float
    counters: Mapping[str, int]
    actions: Mapping[str, int]
    client_drops: Mapping[str, int]
    findings: Sequence[Mapping[str, Any]] = ()
    normal: Mapping[str, float] = field(default_factory=dict)
    interval_seconds: float | None = None
    fenced_by: int | None = None
    proposed: Mapping[str, Any] | None = None  # what a dry run would have set by now; None outside of one
    unclosable: int = 0  # updates that are set aside

    @property
    def unacknowledged_updates(self) -> int | None:
        """Updates closed since the newest version was issued, 0 once a trainer runs on it; None before there is one."""
        if self.params.version == 0:
            return None
        applied = -1 if self.applied is None else int(self.applied["version"])
        return 0 if applied >= self.params.version else self.counters.get("params_updates", 0)

    @property
    def is_refused(self) -> bool:
        """Whether the trainer refused the newest version."""
        waiting = self.unacknowledged_updates is not None and (self.applied or {}).get("version") != self.params.version
        return waiting and self.counters.get("refused_version") == self.params.version


class LiveRun:
    """Mutable; see the module. Built by `load` for a run that the store knows."""

    def __init__(self, name: str, store: Store, settings: JudgeSettings, spec: SummarySpec) -> None:
        self.name = name
        self.store = store
        self.settings = settings
        self.spec = spec
        self.lock = asyncio.Lock()
        self.params_changed = asyncio.Event()
        self.created_at = 0.0
        self.retired = False
        self.held_by: str | None = None
        self.attempts: dict[int, AttemptRow] = {}
        self.attempt = 0
        self.open: dict[Place, OpenUpdate] = {}
        self.partial: OpenUpdate | None = None  # of those closed as partial the last one, should more of it come
        self.newest: UpdateRow | None = None
        self.params = settings.policy.base_params() if settings.policy.dry_run else settings.policy.initial()
        self.params_at = 0.0
        self.next_version = 1
        self.applied: dict[str, Any] | None = None
        self.fenced_by: int | None = None  # epoch of the monitor that the trainer said it obeys instead
        self.last_seen = 0.0
        self.closings: deque[float] = deque(maxlen=PACE_UPDATES)
        self.heard_at = 0.0  # as last_seen, by the monotonic clock
        self.judged_attempt = 0
        self.arriving: Counter[Place] = Counter()  # updates that a shard is on its way into: not to be thinned
        self.thinned_before = 0  # step; what is closed before it has been looked through by this process
        self.closed_since_thinning = THIN_EVERY  # what an earlier process left over goes with the first closing
        self.transitions = 0
        self.action_count = 0
        self.audit = first_head(name)
        self.counters: Counter[str] = Counter()
        self.actions: Counter[str] = Counter()
        self.client_drops: dict[int, dict[str, int]] = {}
        self.monitor = RunMonitor(settings, spec)
        self.causes = CauseTracker(settings.window_updates)
        self.troubles = Troubles(name)
        self.landings = Landings()
        self.snapshot = self.take_snapshot()

    @contextmanager
    def expecting(self, place: Place) -> Iterator[None]:
        """While a shard is on its way into an update, that is not thinned."""
        self.arriving[place] += 1
        try:
            yield
        finally:
            self.arriving[place] -= 1
            if not self.arriving[place]:
                del self.arriving[place]

    def note_closing(self, at: float, heard_at: float, *, first_time: bool) -> None:
        self.last_seen, self.heard_at = at, heard_at
        if first_time:
            self.closings.append(at)

    def collecting(self, place: Place) -> OpenUpdate | None:
        """The update that a shard of this place has to fit, if there is one: open, or set aside."""
        aside = self.troubles.aside.get(place)
        return self.open.get(place) if aside is None else aside.update

    def due_at(self, update: OpenUpdate) -> float:
        """When it is closed though shards are missing, or a closing of it that failed is tried again."""
        again_at = self.troubles.again_at(update.place)
        return update.deadline if again_at is None else again_at

    def awaits(self, place: Place, shard: int) -> bool:
        """True only when nothing is stored of this shard, or is just being: its update is open for the first time, and
        what is stored of an open update is among its pieces."""
        update = self.open.get(place)
        return update is not None and not (update.revision or update.halves) and shard not in update.pieces

    def is_thinning_due(self) -> bool:
        """Asked once an update is closed."""
        self.closed_since_thinning += 1
        return self.closed_since_thinning >= THIN_EVERY

    @property
    def version(self) -> int:
        """Of the set that is served; below `next_version - 1` only when a newer stored one is damaged."""
        return self.params.version

    def load(self, deadline: float, *, failed: Place | None = None) -> None:
        """Everything from the store; open updates get until `deadline` for their missing shards. Blocking.

        After a closing that `failed` by its own fault the other open updates are as they were.
        """
        store, name = self.store, self.name
        row = store.get(RunRow, name)
        if row is not None:
            self.created_at, self.retired, self.held_by = row.created_at, row.retired, row.held_by
        self.attempts = {item.attempt: item for item in store.rows(AttemptRow, name)}
        closed = store.first_steps(name)
        self.attempt = max([*self.attempts, *closed], default=0)
        self.judged_attempt = max(closed, default=0)
        newest = effective_updates(store, name, UpdateRow, newest=PACE_UPDATES)
        self.newest = newest[-1] if newest else None
        self.closings = deque(sorted(row.closed_at for row in newest), maxlen=PACE_UPDATES)
        self.last_seen = max(self.created_at, self.newest.closed_at if self.newest else 0.0, self.last_seen)
        self.next_version = store.top(ParamsRow, name) + 1
        versions = store.rows(ParamsRow, name, newest=1) or store.rows(ParamsRow, name)[-1:]
        if versions:
            self.params, self.params_at = TriageParams.from_dict(versions[-1].params), versions[-1].at
        self.transitions = store.top(TransitionRow, name)
        actions = store.rows(ActionRow, name, newest=1)
        self.action_count = actions[-1].number if actions else 0
        self.audit = head_of(store, name)
        state = store.get(StateRow, name)
        if state is not None:
            self.counters, self.applied = Counter(state.counters["counts"]), state.applied
            self.actions = Counter(state.counters["actions"])
        self.monitor = self._restored_monitor(None if state is None else state.judge)
        if not self.settings.policy.dry_run:
            self.monitor.adopt(self.params)  # after a dry run the policy believes in what was never issued
        self.causes = self.restored_causes()
        self.partial = None
        waited = {place: update.deadline for place, update in self.open.items()}
        others = {} if failed is None else {place: item for place, item in self.open.items() if place != failed}
        unclosed = store.unclosed(name) if failed is None else [failed]
        loaded = [self.reopened(place, deadline) for place in unclosed if place not in self.troubles.aside]
        for update in loaded:
            update.deadline = min(update.deadline, waited.get(update.place, update.deadline))
        self.open = others | {update.place: update for update in loaded if not update.is_empty}
        self.snapshot = self.take_snapshot()

    def audited(self, row: AuditRow | None) -> None:
        """An audit entry became durable."""
        if row is not None:
            self.audit = Head(row.number, row.link)

    def state_row(self) -> StateRow:
        counters = {"counts": dict(self.counters), "actions": dict(self.actions)}
        return StateRow(self.name, self.monitor.state(), counters, self.applied)

    def run_row(self) -> RunRow:
        return RunRow(self.name, self.created_at, self.retired, self.held_by)

    def take_snapshot(self) -> Snapshot:
        return Snapshot(
            run=self.name,
            attempt=self.attempt,
            newest=self.newest,
            stage=self.monitor.stage.value,
            params=self.params,
            params_at=self.params_at,
            applied=self.applied,
            held_by=self.held_by,
            retired=self.retired,
            policy_note=self.monitor.policy_note,
            last_seen=self.last_seen,
            counters=dict(self.counters),
            actions=dict(self.actions),
            client_drops=self.dropped_by_clients(),
            findings=tuple(self.causes.current()),
            normal=self.monitor.normal,
            interval_seconds=median_interval(self.closings),
            fenced_by=self.fenced_by,
            proposed=self.proposed(),
            unclosable=len(self.troubles.aside),
        )

    def proposed(self) -> Mapping[str, Any] | None:
        """In a dry run: dotted name -> value for all that the policy would have other than it is."""
        if not self.settings.policy.dry_run:
            return None
        return {name: new for name, (_, new) in changed(self.params, self.monitor.params).items()}

    def dropped_by_clients(self) -> Mapping[str, int]:
        """What the trainer's ranks say they dropped, by reason, over all ranks."""
        return sum((Counter(drops) for drops in self.client_drops.values()), Counter[str]())

    def recent(
        self, *, last_step: int | None = None, held: Sequence[tuple[int, int]] = (), as_of: int | None = None
    ) -> list[tuple[int, int, StepSummary]]:
        """The window's updates up to a step, newest attempt (up to `as_of`) first choice, as (step, attempt, summary),
        and before them those of the (step, attempt) that a judge `held`. Blocking."""
        rows = effective_updates(
            self.store, self.name, SummaryRow, last_step=last_step, newest=self.settings.window_updates, as_of=as_of
        )
        first = rows[0].step if rows else 0
        older = [self.store.get(SummaryRow, self.name, attempt, step) for step, attempt in held if step < first]
        rows = [*(row for row in older if row is not None), *rows]
        decoded = [(row.step, row.attempt, self._decoded(row.summary)) for row in rows]
        return [(step, attempt, summary) for step, attempt, summary in decoded if summary is not None]

    def is_superseded(self, place: Place) -> bool:
        """Whether a newer attempt has closed this step, or one before it. Blocking."""
        attempt, step = place
        return attempt < self.judged_attempt and any(
            newer > attempt and first <= step for newer, first in self.store.first_steps(self.name).items()
        )

    def restored_causes(self, *, last_step: int | None = None, as_of: int | None = None) -> CauseTracker:
        """What the causes of later updates are told by, from the reports and symptoms up to a step. Blocking."""
        store, name, window = self.store, self.name, self.settings.window_updates
        wanted = CauseTracker(window).kept_updates
        newest = effective_updates(store, name, UpdateRow, last_step=last_step, newest=wanted, as_of=as_of)
        reports = {row.step: row for row in newest}
        if len(newest) == wanted:
            first = min(store.first_steps(name).values())
            head = first + HEAD_STEPS - 1
            bound = head if last_step is None else min(head, last_step)
            reports |= {
                row.step: row for row in effective_updates(store, name, UpdateRow, last_step=bound, as_of=as_of)
            }
        symptoms: dict[int, Symptoms] = {}
        for row in newest[-window:]:
            known = store.rows(SymptomRow, name, attempt=row.attempt, first_step=row.step, last_step=row.step)
            found = [item for item in (_symptoms(one.symptoms) for one in known) if item is not None]
            if found:
                symptoms[row.step] = merge_symptoms(found)
        judged = [(step, reports[step].report) for step in sorted(reports) if reports[step].report.get("window")]
        return CauseTracker.restore(window, judged, symptoms)

    def closed(self, place: Place) -> UpdateRow | None:
        """The stored closing of an update, if there was one. Blocking."""
        return self.store.get(UpdateRow, self.name, *place)

    def keep_partial(self, closed: OpenUpdate) -> None:
        """Of an update closed without all its shards these stay at hand for some updates, if they are not too large."""
        if closed.missing_shards and closed.halves is None:
            self.partial = closed if closed.held_bytes <= PARTIAL_BYTES else None
        elif self.partial is not None and closed.step > self.partial.step + PARTIAL_UPDATES:
            self.partial = None

    def grown_again(self, place: Place) -> OpenUpdate | None:
        """The partial update that was closed last, to be closed anew, if it is this one."""
        update = self.partial
        if update is None or update.place != place:
            return None
        self.partial = None
        update.revision += 1
        return update

    def reopened(self, place: Place, deadline: float) -> OpenUpdate:
        """An update with every shard the store has of it, to be closed anew. Blocking."""
        attempt, step = place
        closed = self.closed(place)
        rows = self.store.rows(ShardRow, self.name, attempt=attempt, first_step=step, last_step=step)
        update = OpenUpdate(attempt, step, max((row.shards for row in rows), default=1), deadline)
        if closed is not None:
            update.revision, update.shards = closed.revision + 1, closed.shards
        halves = self.store.rows(HalfRow, self.name, attempt=attempt, first_step=step, last_step=step)
        if halves:
            ahead = self.newest is None or place > (self.newest.attempt, self.newest.step)
            update.take_halves(Halves.of(halves), ahead=ahead)
            return update
        known = self.store.rows(SymptomRow, self.name, attempt=attempt, first_step=step, last_step=step)
        symptoms = {row.shard: _symptoms(row.symptoms) for row in known}
        for row in rows:
            summary = self._decoded(row.summary)
            if summary is not None:
                update.pieces[row.shard] = Piece(summary, row.groups, symptoms.get(row.shard))
        return update

    def _decoded(self, encoded: bytes) -> StepSummary | None:
        """None for a summary made under another spec or by an unknown version: it cannot enter this window."""
        try:
            summary = decode(encoded)
        except InputError:
            return None
        return summary if summary.spec.fingerprint == self.spec.fingerprint else None

    def _restored_monitor(self, judge: Mapping[str, Any] | None) -> RunMonitor:
        recent = self.recent(held=held_by(judge))
        if judge is not None:
            try:
                return RunMonitor.restore(self.settings, self.spec, judge, recent)
            except StoreCorrupt:
                judge = None
        monitor = RunMonitor.restore(self.settings, self.spec, RunMonitor(self.settings, self.spec).state(), recent)
        if self.next_version > 1:
            # The judge's memory is lost but the trainer still runs on these parameters: only a person may move them.
            monitor.hold(self.params, "the judge's state was lost; these are the last parameters, which")
        return monitor


def median_interval(times: Iterable[float]) -> float | None:
    """Median seconds between updates; None before there are enough of them."""
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return statistics.median(gaps) if len(gaps) >= PACE_MINIMUM else None


def held_by(judge: Mapping[str, Any] | None) -> list[tuple[int, int]]:
    """(step, attempt) of the updates that a stored judge held."""
    return [] if judge is None else [(step, attempt) for step, attempt in judge.get("held", ())]


def _symptoms(encoded: bytes) -> Symptoms | None:
    """None for symptoms of an unknown version: causes then go unnamed, nothing else."""
    try:
        return decode_symptoms(encoded)
    except InputError:
        return None
