"""Connections that hold something and do nothing with it: closed after a while, so that they cost nobody else.

Two kinds that nothing else times out: a peer that does not read its answer (the answer waits in memory), and one that
has not finished the head of a request, or never began one (it holds a file descriptor). Bodies that stall are refused
while they are read (`body.py`), idle connections after a request end with uvicorn's keep-alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any


class Stalled:
    """Looks at the server's connections now and then; `seconds` without any progress is too long."""

    def __init__(self, seconds: float, monotonic: Callable[[], float]) -> None:
        self._seconds = seconds
        self._monotonic = monotonic
        self._seen: dict[Any, tuple[object, float]] = {}
        self.closed = 0

    def look(self, connections: Iterable[Any]) -> None:
        now, seen = self._monotonic(), dict[Any, tuple[object, float]]()
        for connection in list(connections):
            state = _state(connection)
            if state is None:
                continue
            before, since = self._seen.get(connection, (None, now))
            if before != state:
                since = now
            if now - since > self._seconds:
                connection.transport.abort()
                self.closed += 1
            else:
                seen[connection] = (state, since)
        self._seen = seen


def _state(connection: Any) -> object:
    """What should change if the peer did its part; None while it is our turn, or nothing is due."""
    transport: asyncio.Transport | None = connection.transport
    if transport is None:
        return None
    waiting = transport.get_write_buffer_size()
    if waiting:
        return waiting
    cycle = getattr(connection, "cycle", None)
    is_answering = cycle is not None and not cycle.response_complete
    return None if is_answering or connection.timeout_keep_alive_task is not None else "head"
