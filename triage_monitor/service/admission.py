"""How a shard gets into its update, a whole one and a half alike: written first, counted afterwards.

    expected by an update -> kept, where rows are -> written, durably -> placed in it -> the update closed if that was
    its last one

Once its write is durable it is part of its update, whatever happens next. The last shard of an update closes it before
its own answer goes out, so an acknowledged update is visible in its window. Late shards of one update that come at the
same time are closed as one revision. What differs between the kinds of shard, which update one belongs to and what it
leaves there, is wholes.py's and halves.py's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from triage_monitor.errors import ConflictError
from triage_monitor.service.arrivals import Admission
from triage_monitor.service.landing import Landed
from triage_monitor.service.live import LiveRun
from triage_monitor.service.open_update import OpenUpdate, Place
from triage_monitor.service.sidecar import Sidecar
from triage_monitor.service.unclosable import UNCLOSABLE, Unclosable
from triage_monitor.storage.records import AttemptRow, HalfRow, Outcome, Record, ShardRow, UpdateRow

IMPLICIT = "implicit"
R = TypeVar("R", ShardRow, HalfRow)


async def arrived(
    sidecar: Sidecar,
    row: R,
    beside: list[Record],
    expected: Callable[[LiveRun, R], Awaitable[OpenUpdate]],
    placed: Callable[[LiveRun, R], Awaitable[None]],
    keep: Callable[[], Awaitable[None]] | None = None,
) -> Admission:
    """Takes a shard in, durably; raises ConflictError, StoreFull or Problem and then stores nothing of it.

    `expected` finds or opens its update, `placed` puts it there once it is stored, under the run's lock. `keep`
    records its rows: only once its update does not refuse it, as a recording takes nothing back.
    """
    live = await sidecar.ensure(row.run)
    row = replace(row, received_at=sidecar.now())
    place = (row.attempt, row.step)
    with live.expecting(place):
        update = await expected(live, row)
        update.arriving += 1
        outcome = None
        try:
            if keep is not None:
                await keep()
            outcome = await _written(sidecar, live, row, beside)
        except ConflictError:
            live.counters["conflicting_shards"] += 1
            raise
        finally:
            update.arriving -= 1
            nothing_kept = outcome is not Outcome.NEW and not update.arriving and update.is_empty
            if nothing_kept and live.open.get(place) is update:
                del live.open[place]
        if outcome is Outcome.DUPLICATE:
            return await _repeated(sidecar, row)
        with live.landings.waiting(place, lambda: placed(live, row)) as landed:
            async with live.lock:
                live.last_seen, live.heard_at = row.received_at, sidecar.clock.monotonic()
                try:
                    if live.retired:
                        live.retired = False
                        await sidecar.write(live.run_row())
                    await _place(live, place, landed)
                except BaseException:
                    live.partial = None
                    await sidecar.reload(live)  # this shard is stored, and in no update that is open here
                    raise
                return await _settled(sidecar, live, row, landed)


async def _place(live: LiveRun, place: Place, landed: Landed) -> None:
    """Into its update, which is open then; with a late shard all others of the update that wait for the run's lock,
    so that one revision is for all of them. The run is locked."""
    if place in live.troubles.aside:
        live.troubles.aside[place].shards_in += 1
    elif not landed.is_placed:
        await landed.put()
        update = live.open.get(place)
        if update is not None and update.revision:
            for other in live.landings.at(place):
                await other.put()


async def repeat(sidecar: Sidecar, row: ShardRow | HalfRow) -> Admission:
    """The answer to a shard that is stored already; closes its update if that is still due."""
    return await sidecar.spawn(_repeated(sidecar, row))


async def _repeated(sidecar: Sidecar, row: ShardRow | HalfRow) -> Admission:
    live = await sidecar.ensure(row.run)
    async with live.lock:
        live.counters["duplicate_shards"] += 1
        return await _settled(sidecar, live, row, None)


async def _settled(sidecar: Sidecar, live: LiveRun, row: ShardRow | HalfRow, landed: Landed | None) -> Admission:
    """Closes the update if its last shard is in, or it is late; the run is locked. `landed` None: a duplicate."""
    place = (row.attempt, row.step)
    update, aside = live.open.get(place), live.troubles.aside.get(place)
    if landed is not None and landed.closed is not None:
        state, shards_in = _counted(landed.closed)
    elif aside is not None:
        state, shards_in = UNCLOSABLE, aside.shards_in
    elif update is None:
        state, shards_in = _counted(await asyncio.to_thread(live.closed, place))
    elif (update.missing_shards and not update.revision) or sidecar.is_paused(live, update):
        state, shards_in = "open", update.shards_in
    else:
        try:
            closed = await sidecar.close(live, update)
            live.landings.closed(closed)
            state, shards_in = _counted(closed)
        except Unclosable:  # it is stored all the same
            state, shards_in = UNCLOSABLE, update.shards_in
    live.snapshot = live.take_snapshot()
    return Admission(landed is None, row.attempt, row.shards, state, shards_in, live.version)


def _counted(closed: UpdateRow | None) -> tuple[str, int]:
    return ("unknown", 0) if closed is None else (closed.status, closed.shards - closed.missing_shards)


async def _written(sidecar: Sidecar, live: LiveRun, row: ShardRow | HalfRow, beside: list[Record]) -> Outcome:
    if row.attempt <= live.attempt:
        return (await sidecar.write(row, *beside))[0]
    # A shard under a higher attempt than any asked for begins that attempt by itself.
    begun = AttemptRow(live.name, row.attempt, row.step, IMPLICIT, row.received_at)
    outcome = (await sidecar.write(begun, row, *beside))[1]
    live.attempts.setdefault(row.attempt, begun)
    live.attempt = max(live.attempt, row.attempt)
    return outcome
