"""Halves on their way in: one shard of what the samplers, or the learners, report of an update on their own.

    body -> checked as a half -> stored, durably -> counted in its update -> (last one, or overdue) joined and closed

The promises are those of whole shards: a half is acknowledged when it is stored, again is a duplicate, with other
content a conflict; one that comes after its update was closed without it joins it as a new revision, until the update
is thinned. Sampler halves that run ahead of training are bounded in updates and bytes; beyond that they are told to
come again (503). Raw retention keeps whole shards only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from triage_monitor.errors import ConflictError
from triage_monitor.service.admission import arrived
from triage_monitor.service.arrivals import Admission
from triage_monitor.service.intake import Address, check_place
from triage_monitor.service.live import LiveRun
from triage_monitor.service.open_update import Halves, OpenUpdate, Place
from triage_monitor.service.problems import Problem, busy
from triage_monitor.service.sidecar import Sidecar
from triage_monitor.storage.records import HalfContentRow, HalfRow, UpdateRow
from triage_monitor.summary.rows import STREAM_MIME, sound_table
from triage_monitor.summary.rows_halves import SAMPLER, checked_half, half_to_bytes


@dataclass(frozen=True, slots=True)
class HalfArrival:
    """A half that was read and understood: its row without digest and time, and its rows as they are stored."""

    row: HalfRow
    content: HalfContentRow


def read_half(address: Address, side: str, media: str, body: memoryview, *, max_tokens: int) -> HalfArrival:
    """Blocking. Raises InputError naming column and row, Problem 415 for an encoded summary."""
    if media != STREAM_MIME:
        raise Problem(415, "media_type", f"halves are joined by their rows; send them as {STREAM_MIME}")
    table = checked_half(side, sound_table(body, max_tokens=max_tokens), max_tokens=max_tokens)
    check_place(address, body)
    place = (address.run, address.attempt or 0, address.step, side, address.shard)
    row = HalfRow(*place, address.shards, "", 0.0, len(body))
    return HalfArrival(row, HalfContentRow(*place, half_to_bytes(table)))


async def admit(sidecar: Sidecar, arrival: HalfArrival) -> Admission:
    """Takes a half in, durably; raises ConflictError, StoreFull or Problem 503 and then keeps nothing of it."""
    expected, placed = partial(_expected, sidecar), partial(_placed, sidecar)
    return await sidecar.spawn(arrived(sidecar, arrival.row, [arrival.content], expected, placed))


async def _expected(sidecar: Sidecar, live: LiveRun, row: HalfRow) -> OpenUpdate:
    """The update a half belongs to, opened by its first one."""
    place = (row.attempt, row.step)
    update = live.collecting(place)
    if update is None and live.newest is not None and place <= (live.newest.attempt, live.newest.step):
        closed = await _closed(live, place)
        if closed is not None:
            update = live.open.get(place) or OpenUpdate.after(closed[0], sidecar.deadline())
            if update.halves is not None and not update.halves.count:
                update.halves = Halves.of(closed[1])
    if update is None:
        if row.side == SAMPLER:
            _refuse_too_far(sidecar, live, row)
        update = live.open.setdefault(place, OpenUpdate(*place, 2, sidecar.deadline(), halves=Halves()))
        update.take_halves(update.halves or Halves(), ahead=not _is_passed(live, place))
        sidecar.wake.set()
    if update.halves is None:
        raise ConflictError(f"step {row.step} was begun with whole shards; a half cannot join them")
    update.halves.declare(row.side, row.shards, row.step)
    update.shards = update.halves.expected
    return update


async def _closed(live: LiveRun, place: Place) -> tuple[UpdateRow, list[HalfRow]] | None:
    """A closed update and its halves; ConflictError when their rows were given back while some were missing."""

    def read() -> tuple[UpdateRow, list[HalfRow]] | None:
        closed = live.closed(place)
        if closed is None:
            return None
        attempt, step = place
        rows = live.store.rows(HalfRow, live.name, attempt=attempt, first_step=step, last_step=step)
        is_thinned = bool(rows) and live.store.get(HalfContentRow, *rows[0].key) is None
        if closed.missing_shards and is_thinned:
            raise ConflictError(f"step {step} was closed long ago and its halves were thinned; a late one cannot join")
        return closed, rows

    async with live.lock:  # not while it is being thinned
        return await asyncio.to_thread(read)


def _is_passed(live: LiveRun, place: Place) -> bool:
    """Whether training has gone beyond an update already."""
    newest = live.newest is not None and place < (live.newest.attempt, live.newest.step)
    return newest or any(
        other > place and update.halves is not None and update.halves.has_learner for other, update in live.open.items()
    )


def _refuse_too_far(sidecar: Sidecar, live: LiveRun, row: HalfRow) -> None:
    settings = sidecar.settings.ingest
    ahead = [update for update in live.open.values() if update.is_ahead]
    waiting = sum(
        update.halves.body_bytes for run in sidecar.runs.values() for update in run.open.values() if update.halves
    )
    if len(ahead) >= settings.max_ahead_updates or waiting + row.body_bytes > settings.max_ahead_bytes:
        detail = (
            f"{len(ahead)} updates of this run and {waiting} bytes of all runs wait for their learner's half; "
            "send again once training has caught up"
        )
        raise busy("sampler_ahead", detail)


async def _placed(sidecar: Sidecar, live: LiveRun, row: HalfRow) -> None:
    place = (row.attempt, row.step)
    update = live.open.get(place)
    if update is None:
        # Closed as partial before, or while this half was being written: start again from what is stored.
        update = await asyncio.to_thread(live.reopened, place, sidecar.deadline())
        live.open[place] = update
    live.counters["late_shards"] += update.revision > 0
    was_ahead = update.is_ahead
    halves = update.halves or Halves()
    halves.add(row)
    update.take_halves(halves, ahead=False)
    if was_ahead and not update.is_ahead:
        _set_deadlines(sidecar, live, place)
    if not update.is_ahead:
        update.wait(sidecar.settings.ingest.grace_seconds, sidecar.clock.monotonic())


def _set_deadlines(sidecar: Sidecar, live: LiveRun, place: Place) -> None:
    """Training has come to this update: it and older ones that only samplers reported wait no longer than others."""
    deadline = sidecar.deadline()
    live.open[place].deadline = deadline
    for other, update in live.open.items():
        if other < place and update.is_ahead:
            update.deadline = min(update.deadline, deadline)
    sidecar.wake.set()
