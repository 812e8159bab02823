"""Server-sent events of a run: update, stage, params, action, as they happen.

Every listener has a bounded queue; one that reads too slowly is told `lagged` and let go, so it costs nobody anything.
Events carry an id; they are a notice, not a record: whoever missed some reads the store through the query routes. The
newest are kept, so that a reader who comes back with `Last-Event-ID` gets those it missed; ids of another process are
not understood and bring nothing.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from typing import Any

QUEUE_EVENTS = 256
HEARTBEAT_SECONDS = 15.0
MAX_LISTENERS = 256
KEPT_EVENTS = 256
MAX_DIGITS = 18  # of an event's number: Python reads no whole number of thousands of them


class Listener:
    """One open stream."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[str | None] = asyncio.Queue(QUEUE_EVENTS)
        self.lagged = False


class EventHub:
    """Single-threaded: publish and listen on the event loop."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[Listener]] = defaultdict(set)
        self._recent: deque[tuple[int, str, str]] = deque(maxlen=KEPT_EVENTS)
        self._process = secrets.token_hex(4)
        self._number = 0
        self.closed = False
        self.taps: list[Callable[[str, str], None]] = []  # told the run and the kind of every event, at once

    @property
    def listeners(self) -> int:
        return sum(len(of_run) for of_run in self._listeners.values())

    def publish(self, run: str, event: str, data: dict[str, Any]) -> None:
        self._number += 1
        content = json.dumps({"run": run, **data}, allow_nan=False)
        text = f"id: {self._process}-{self._number}\nevent: {event}\ndata: {content}\n\n"
        self._recent.append((self._number, run, text))
        for listener in list(self._listeners.get(run, ())):
            try:
                listener.waiting.put_nowait(text)
            except asyncio.QueueFull:
                listener.lagged = True
                self._listeners[run].discard(listener)
        for tap in self.taps:
            tap(run, event)

    def subscribe(self, run: str, last_id: str = "") -> Listener:
        """`last_id` is the id of the last event that this reader had."""
        listener = Listener()
        process, _, number = last_id.partition("-")
        if process == self._process and number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS:
            missed = [text for at, of, text in self._recent if at > int(number) and of == run]
            for text in missed[-QUEUE_EVENTS:]:
                listener.waiting.put_nowait(text)
        self._listeners[run].add(listener)
        return listener

    def close(self) -> None:
        """Ends every stream."""
        self.closed = True
        for of_run in self._listeners.values():
            for listener in of_run:
                if not listener.waiting.full():
                    listener.waiting.put_nowait(None)
                else:
                    listener.lagged = True

    async def stream(self, run: str, listener: Listener) -> AsyncIterator[str]:
        """The text of one stream, heartbeats included, until it lags, the hub closes or the reader leaves."""
        try:
            yield f"retry: 2000\n: events of {run}\n\n"
            while not self.closed:
                try:
                    text = await asyncio.wait_for(listener.waiting.get(), HEARTBEAT_SECONDS)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                if text is None:
                    return
                yield text
                if listener.lagged and listener.waiting.empty():
                    yield 'event: lagged\ndata: {"reason": "this reader was too slow"}\n\n'
                    return
        finally:
            self._listeners[run].discard(listener)
            if not self._listeners[run]:
                del self._listeners[run]
