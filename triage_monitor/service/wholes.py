"""Whole shards on their way in: which update one belongs to, and what it leaves there.

A shard that comes after its update was closed without it joins it as a new revision, until the update is thinned. The
pieces of the partial update that was closed last are kept, so that a hundred late shards of it do not each read the
others from the store again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from triage_monitor.service.admission import arrived
from triage_monitor.service.arrivals import Admission, Arrival
from triage_monitor.service.live import LiveRun
from triage_monitor.service.open_update import OpenUpdate, Piece
from triage_monitor.service.sidecar import Sidecar
from triage_monitor.service.thinning import refuse_thinned
from triage_monitor.storage.records import ShardRow


async def admit(sidecar: Sidecar, arrival: Arrival, keep: Callable[[], Awaitable[None]] | None = None) -> Admission:
    """Takes a shard in, durably; raises ConflictError or StoreFull and then stores nothing of it. `keep` as in
    `arrived`."""
    expected, placed = partial(_expected, sidecar), partial(_placed, sidecar, piece=arrival.piece)
    return await sidecar.spawn(arrived(sidecar, arrival.row, arrival.beside(), expected, placed, keep))


async def _expected(sidecar: Sidecar, live: LiveRun, row: ShardRow) -> OpenUpdate:
    """The update a shard belongs to, opened by its first shard; ConflictError when their counts differ."""
    place = (row.attempt, row.step)
    update = live.collecting(place)
    if update is None and live.newest is not None and place <= (live.newest.attempt, live.newest.step):
        closed = await asyncio.to_thread(live.closed, place)
        if closed is not None:
            async with live.lock:  # not while it is being thinned
                if live.partial is None or live.partial.place != place:  # whose pieces are at hand
                    await asyncio.to_thread(refuse_thinned, live, place)
            update = live.open.get(place) or OpenUpdate.after(closed, sidecar.deadline())
    if update is None:
        update = live.open.setdefault(place, OpenUpdate(*place, row.shards, sidecar.deadline()))
        sidecar.wake.set()
    update.refuse_whole(row.shards)
    return update


async def _placed(sidecar: Sidecar, live: LiveRun, row: ShardRow, *, piece: Piece) -> None:
    place = (row.attempt, row.step)
    update = live.open.get(place) or live.grown_again(place)
    if update is None:
        # Closed before, or while this shard was being written: start again from what is stored.
        update = await asyncio.to_thread(live.reopened, place, sidecar.deadline())
    live.open[place] = update
    live.counters["late_shards"] += update.revision > 0
    update.pieces[row.shard] = piece
    update.wait(sidecar.settings.ingest.grace_seconds, sidecar.clock.monotonic())
