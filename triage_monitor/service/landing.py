"""Shards that are stored and wait to be placed in their update: late ones of one update are closed as one revision.

    stored -> landed -> the first that gets the run's lock places all that have landed -> one closing -> every answer

Without it each late shard of an update of thousands would have the whole update merged and judged again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from triage_monitor.service.open_update import Place
from triage_monitor.storage.records import UpdateRow


@dataclass(slots=True, eq=False)
class Landed:
    """`place` puts the shard into its update; `closed` is a closing that it is in."""

    place: Callable[[], Awaitable[None]]
    is_placed: bool = False
    closed: UpdateRow | None = None

    async def put(self) -> None:
        if not self.is_placed:
            await self.place()
            self.is_placed = True


class Landings:
    """Those of one run, by update. What is placed, and what was closed, is changed under the run's lock."""

    def __init__(self) -> None:
        self._waiting: defaultdict[Place, list[Landed]] = defaultdict(list)

    @contextmanager
    def waiting(self, place: Place, put: Callable[[], Awaitable[None]]) -> Iterator[Landed]:
        """From its being stored to its answer."""
        landed = Landed(put)
        self._waiting[place].append(landed)
        try:
            yield landed
        finally:
            self._waiting[place].remove(landed)
            if not self._waiting[place]:
                del self._waiting[place]

    def at(self, place: Place) -> list[Landed]:
        return list(self._waiting.get(place, ()))

    def closed(self, row: UpdateRow) -> None:
        """An update was closed: the shards that were placed in it have their answer."""
        for landed in self.at((row.attempt, row.step)):
            if landed.is_placed:
                landed.closed = row
