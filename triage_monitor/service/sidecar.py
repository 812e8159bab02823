"""The sidecar's runs: which are loaded, and when updates close.

Shards come in through admission.py. `close_overdue` closes as partial what waited longer than the grace period. All of
a run's changes happen under its lock, on the event loop; the blocking parts run in threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from triage_monitor.config import Settings
from triage_monitor.errors import StoreFull, TriageError
from triage_monitor.service.auditing import POLICY, audit_news, audit_params, dry_run_news
from triage_monitor.service.clock import Clock
from triage_monitor.service.closing import Closing, issued, judge_update
from triage_monitor.service.events import EventHub
from triage_monitor.service.live import LiveRun
from triage_monitor.service.long_reads import LongReads
from triage_monitor.service.open_update import OpenUpdate, Place
from triage_monitor.service.problems import Problem
from triage_monitor.service.tally import Tally
from triage_monitor.service.thinning import thin_if_due
from triage_monitor.service.unclosable import MAX_SHOWN, Unclosable, is_own_fault
from triage_monitor.storage.audit import links_in
from triage_monitor.storage.audit_witness import Witness
from triage_monitor.storage.base import Store, effective_updates
from triage_monitor.storage.records import (
    Outcome,
    ParamsRow,
    Record,
    RunRow,
    UpdateRow,
)

logger = logging.getLogger("triage_monitor")
T = TypeVar("T")
IDLE_SECONDS = 5.0


class Sidecar:
    """Made once per application; `start` before use, `stop` at the end."""

    def __init__(self, settings: Settings, store: Store, clock: Clock, witness: Witness | None = None) -> None:
        self.settings = settings
        self.witness = witness
        self.store = store
        self.clock = clock
        self.hub = EventHub()
        self.tally = Tally()
        self.runs: dict[str, LiveRun] = {}
        self.ready = False
        self.last_write_failed: str | None = None
        self.probes: list[Callable[[], None]] = [store.probe]  # each raises StoreFull while its part takes no write
        self.run_begun = asyncio.Event()  # set, and replaced by another, when a run is made
        self._creating = asyncio.Lock()
        self.wake = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._judging = ThreadPoolExecutor(1, thread_name_prefix="judge")
        self.long_reads = LongReads()
        self._closer: asyncio.Task[None] | None = None
        self._told: str | None = None  # why updates cannot be closed, as the log has it

    async def start(self) -> None:
        """Loads the runs that are not retired and closes what was complete when the last process ended."""
        if self.witness is not None:
            await asyncio.to_thread(self.witness.reconcile, self.store)
        for name in await asyncio.to_thread(self.store.runs):
            self.tally.updates += await asyncio.to_thread(self.store.count, UpdateRow, name)
            if not await asyncio.to_thread(self._is_asleep, name):
                await self._load(name)
        await self._close_quietly()
        self._closer = asyncio.create_task(self._close_loop())
        self.ready = True

    def begin_stop(self) -> None:
        """Lets go of everybody who waits: event streams and long polls end now."""
        self.ready = False
        self.hub.close()
        self.run_begun.set()
        for live in self.runs.values():
            live.params_changed.set()

    async def stop(self) -> None:
        """Finishes what is under way. The store stays open: whoever made it closes it."""
        self.begin_stop()
        if self._closer is not None:
            self._closer.cancel()
            await asyncio.gather(self._closer, return_exceptions=True)
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._judging.shutdown()
        self.long_reads.close()

    def now(self) -> float:
        return self.clock.wall()

    def unclosable(self) -> list[dict[str, Any]]:
        """Updates that are set aside, of all runs, a few of each."""
        runs = [(live.name, list(live.troubles.aside.values())[-MAX_SHOWN:]) for live in list(self.runs.values())]
        return [{"run": name, **item.to_dict()} for name, aside in runs for item in aside]

    def is_retired(self, live: LiveRun) -> bool:
        """Silence is counted by the monotonic clock: no jump of the wall clock retires a run or keeps it."""
        silent = self.clock.monotonic() - live.heard_at
        return live.retired or silent > self.settings.runs.retire_after_seconds

    def _is_asleep(self, name: str) -> bool:
        """True for a stored run that is retired and waits for nothing: it is loaded when somebody asks. Blocking."""
        row = self.store.get(RunRow, name)
        newest = effective_updates(self.store, name, UpdateRow, newest=1)
        if row is None or self.store.unclosed(name):
            return False
        seen = max([row.created_at, *(update.closed_at for update in newest)])
        return row.retired or self.now() - seen > self.settings.runs.retire_after_seconds

    async def find(self, name: str) -> LiveRun:
        """A run that exists; Problem 404 when none has this name."""
        live = self.runs.get(name)
        if live is not None:
            return live
        async with self._creating:
            if name in self.runs:
                return self.runs[name]
            if name not in await asyncio.to_thread(self.store.runs):
                raise Problem(404, "unknown_run", f"there is no run '{name}'")
            return await self._load(name)

    async def peek(self, name: str) -> LiveRun | None:
        """The run, or None when there is none of this name."""
        try:
            return await self.find(name)
        except Problem:
            return None

    async def ensure(self, name: str) -> LiveRun:
        """The run, made when it is new, with a first parameter set unless its policy only observes."""
        return await self.peek(name) or await self._create(name)

    async def _create(self, name: str) -> LiveRun:
        async with self._creating:
            if name in self.runs:
                return self.runs[name]
            known = await asyncio.to_thread(self.store.runs)
            if len(known) >= self.settings.runs.max_runs:
                raise Problem(507, "too_many_runs", f"there are {len(known)} runs, as many as max_runs allows")
            live = LiveRun(name, self.store, self.settings.judge_for(name), self.settings.summary)
            live.created_at, live.last_seen, live.heard_at = self.now(), self.now(), self.clock.monotonic()
            change, row = live.monitor.start(), None
            records: list[Record] = [live.run_row(), live.state_row()]
            if change is not None:
                params = change.params.issued(version=1, step=0, reason=change.reason)
                origin = {"kind": change.kind}
                row = ParamsRow(name, 1, live.created_at, POLICY, change.reason, params.to_dict(), origin)
                records += [row, entry := audit_params(live, row, change.kind, POLICY)]
                live.audited(entry)
                live.next_version, live.params, live.params_at = 2, params, live.created_at
            await self.write(*records)
            live.snapshot = live.take_snapshot()
            self.runs[name] = live
            self.run_begun.set()
            self.run_begun = asyncio.Event()
            if row is not None:
                self.tell_params(live, row)
            return live

    async def _load(self, name: str) -> LiveRun:
        live = LiveRun(name, self.store, self.settings.judge_for(name), self.settings.summary)
        await self.reload(live)
        live.heard_at = self.clock.monotonic() - max(0.0, self.now() - live.last_seen)
        self.runs[name] = live
        return live

    async def reload(self, live: LiveRun, *, failed: Place | None = None) -> None:
        """Back to what the store says."""
        await asyncio.to_thread(live.load, self.deadline(), failed=failed)

    async def write(self, *records: Record) -> tuple[Outcome, ...]:
        """One durable batch; remembers whether the store takes writes, for readiness."""
        try:
            outcomes = await asyncio.wrap_future(self.store.write(*records))
        except StoreFull as error:
            self.last_write_failed = str(error)
            raise
        self.last_write_failed = None
        links = links_in(records)
        if links and self.witness is not None:
            await asyncio.to_thread(self.witness.note, links)
        return outcomes

    def spawn(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Work that a leaving client must not cut short; `stop` waits for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen here, also when the client that would have been told is gone

    async def close_overdue(self) -> int:
        """Closes every update that is complete or waited long enough; returns how many. Forgets retired runs."""
        closed = 0
        failures: list[Exception] = []
        for live in list(self.runs.values()):
            is_idle = all(update.is_ahead for update in live.open.values()) and not live.arriving
            if self.is_retired(live) and is_idle and not live.lock.locked():
                del self.runs[live.name]
                continue
            try:
                closed += await self._close_due(live)
            except (TriageError, ValueError, ArithmeticError) as error:  # one run's fault holds no other open
                failures.append(error)
        if failures:
            raise failures[0]
        return closed

    async def _close_due(self, live: LiveRun) -> int:
        closed = 0
        async with live.lock:
            for place in sorted(live.open):
                update = live.open.get(place)  # one that failed has loaded all of them anew
                if update is not None and self._is_due(live, update):
                    with suppress(Unclosable):  # told and counted; the others go on
                        await self.close(live, update)
                        closed += 1
        return closed

    def _is_due(self, live: LiveRun, update: OpenUpdate) -> bool:
        if update.is_empty or self.is_paused(live, update):
            return False
        return update.missing_shards == 0 or update.revision > 0 or update.deadline <= self.clock.monotonic()

    def is_paused(self, live: LiveRun, update: OpenUpdate) -> bool:
        """True while a closing that failed waits for its next try."""
        again_at = live.troubles.again_at(update.place)
        return again_at is not None and self.clock.monotonic() < again_at

    async def close(self, live: LiveRun, update: OpenUpdate) -> UpdateRow:
        """Raises Unclosable where the update itself is to blame; then it is tried again by and by."""
        judging = asyncio.get_running_loop().run_in_executor
        try:
            closing = await judging(self._judging, judge_update, live, update, self.now())
            await self.write(*closing.records)
        except BaseException as error:
            told = self._noted(live, update, error) if is_own_fault(error) else None
            # The judge has moved on while nothing was written.
            await self.reload(live, failed=None if told is None else update.place)
            if told is not None:
                raise told from error
            raise
        del live.open[update.place]
        live.troubles.closed(update.place)
        live.keep_partial(update)
        self._apply(live, closing)
        return closing.row

    def _noted(self, live: LiveRun, update: OpenUpdate, error: BaseException) -> Unclosable:
        self.tally.reject("close_failed")
        self.wake.set()
        return live.troubles.note(update, error, self.clock.monotonic(), self.now())

    def _apply(self, live: LiveRun, closing: Closing) -> None:
        row = closing.row
        live.note_closing(row.closed_at, self.clock.monotonic(), first_time=closing.first_time)
        if live.newest is None or (row.attempt, row.step) >= (live.newest.attempt, live.newest.step):
            live.newest = row
        live.transitions += closing.transition is not None
        live.action_count += closing.action is not None
        live.audited(closing.audit)
        self.tally.updates += closing.first_time
        live.thinned_before = min(live.thinned_before, row.step)
        if live.is_thinning_due():
            self.spawn(thin_if_due(live, self.settings.store))
        if closing.params is not None:
            self.issue(live, closing.params)
        live.snapshot = live.take_snapshot()
        self._tell(live, closing)

    def issue(self, live: LiveRun, row: ParamsRow) -> None:
        """A stored parameter set becomes the one in force here; wakes every long poll."""
        live.next_version, live.params, live.params_at = row.version + 1, issued(row), row.at
        live.params_changed.set()
        live.params_changed = asyncio.Event()

    def _tell(self, live: LiveRun, closing: Closing) -> None:
        row = closing.row
        rho = {scope: (row.report[scope] or {}).get("indicators", {}).get("rho_asym") for scope in ("update", "window")}
        place = {"step": row.step, "attempt": row.attempt}
        about = {"status": row.status, "missing_shards": row.missing_shards, "revision": row.revision}
        named = {"findings": [item["cause"] for item in row.report.get("findings", ())]}
        self.hub.publish(live.name, "update", {**place, **about, "stage": row.stage, "rho_asym": rho, **named})
        if closing.transition is not None:
            self.hub.publish(live.name, "stage", closing.transition.evidence)
        if closing.params is not None:
            self.tell_params(live, closing.params)
        elif closing.audit is not None:
            self.hub.publish(live.name, "action", audit_news(closing.audit))
        elif closing.action is not None:
            self.hub.publish(live.name, "action", dry_run_news(closing.action))

    def tell_params(self, live: LiveRun, row: ParamsRow) -> None:
        news = {"version": row.version, "actor": row.actor, "reason": row.reason, "params": row.params}
        self.hub.publish(live.name, "params", news)

    def deadline(self) -> float:
        return self.clock.monotonic() + self.settings.ingest.grace_seconds

    async def _close_loop(self) -> None:
        looked = self.clock.monotonic()
        while True:
            runs = self.runs.values()
            until = min([looked + IDLE_SECONDS, *(live.due_at(u) for live in runs for u in live.open.values())])
            self.wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.wake.wait(), max(until - self.clock.monotonic(), 0.01))
            if self.clock.monotonic() >= until:  # also when updates keep waking it
                await self._close_quietly()
                looked = self.clock.monotonic()

    async def _close_quietly(self) -> None:
        try:
            await self.spawn(self.close_overdue())
            self._told = None
            await self._try_disk_again()
        except Exception as error:  # the loop must outlive what one closing does; it is counted and tried again
            if repr(error) != self._told:  # once: it is tried again every second
                logger.exception("an update could not be closed; it is tried again until it can be")
            self._told = repr(error)
            self.tally.reject("close_failed")
            self.last_write_failed = str(error)
            await asyncio.sleep(IDLE_SECONDS / 5)

    async def _try_disk_again(self) -> None:
        """A monitor that says it is not ready may be sent no shard to try the disk with: it tries by itself."""
        failed = self.last_write_failed
        if failed is None:
            return
        with suppress(TriageError):
            for probe in self.probes:
                await asyncio.to_thread(probe)
            if self.last_write_failed is failed:
                self.last_write_failed = None
