"""One receiver that is told of what happens, notice after notice, in order, each at least once (webhook_feed).

Its worker looks at a run whenever something but a plain update happened to it, tells what is pending, and then moves
the stored cursor; a restart goes on there. What is told and how is the caller's; `insist` is how often.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from triage_monitor.service.delivery import DELIVERED, FAILED, GAVE_UP, LONGEST_PAUSE
from triage_monitor.service.sidecar import Sidecar
from triage_monitor.service.webhook_feed import EVERY_RUN, Notice, first_cursor, pending
from triage_monitor.storage.records import CursorRow

logger = logging.getLogger("triage_monitor")


class Follower:
    """`name` is that of its cursors. `tell` returns once the notice needs no more of it."""

    def __init__(self, name: str, sidecar: Sidecar, tell: Callable[[Follower, Notice], Awaitable[None]]) -> None:
        self.name = name
        self.outcomes: Counter[str] = Counter()
        self.failing = False
        self._sidecar = sidecar
        self._tell = tell
        self._began_at = 0.0
        self._older: frozenset[str] = frozenset()  # runs that were there when this process began
        self._runs: dict[str, None] = {}  # to be looked at, in order
        self._wake = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins where the last process ended."""
        store = self._sidecar.store
        begun = await asyncio.to_thread(store.get, CursorRow, EVERY_RUN, self.name)
        if begun is None:
            begun = CursorRow(EVERY_RUN, self.name, self._sidecar.now(), 0, 0)
            await self._sidecar.write(begun)
        self._began_at = begun.at
        self._older = frozenset(await asyncio.to_thread(store.runs))
        self._runs = dict.fromkeys(sorted(self._older))
        self._wake.set()
        self._sidecar.hub.taps.append(self._heard)
        self._worker = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Lets go of what is being told; the next start tells it again."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    def _heard(self, run: str, event: str) -> None:
        if event != "update":
            self._runs[run] = None
            self._wake.set()

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._runs:
                run = next(iter(self._runs))
                del self._runs[run]
                try:
                    await self._catch_up(run)
                except Exception:  # the worker must outlive what one run does to it; it is said and tried again
                    logger.exception("%s could not be served", self.name)
                    self._runs[run] = None
                    await asyncio.sleep(LONGEST_PAUSE / 30)

    async def _catch_up(self, run: str) -> None:
        store, began_at = self._sidecar.store, self._began_at if run in self._older else None
        first = await asyncio.to_thread(first_cursor, store, run, self.name, began_at)
        if first is not None:
            await self._sidecar.write(first)
        for notice in await asyncio.to_thread(pending, store, run, self.name):
            await self._tell(self, notice)
            await self._sidecar.write(notice.cursor)

    async def insist(
        self, send: Callable[[], Awaitable[tuple[str, float]]], delivery: str, attempts: int, pause: float
    ) -> None:
        """Sends until it did not merely fail, at most `attempts` times with doubling pauses; counts how it went."""
        outcome = GAVE_UP
        for attempt in range(1, attempts + 1):
            outcome, asked_pause = await send()
            self.failing = outcome != DELIVERED
            if outcome != FAILED:
                break
            self.outcomes[FAILED] += 1
            outcome = GAVE_UP
            if attempt < attempts:
                await asyncio.sleep(min(max(pause, asked_pause), LONGEST_PAUSE))
                pause *= 2
        if outcome != DELIVERED:
            logger.warning("%s: delivery %s: %s", self.name, delivery, outcome)
        self.outcomes[outcome] += 1
