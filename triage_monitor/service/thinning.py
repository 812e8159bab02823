"""When a run's old updates are thinned: every `THIN_EVERY` closed updates, while nothing late is on its way into them.

Done in small steps, each under the run's lock. A shard that comes for a thinned update is refused (409): what it would
have to be merged with is gone. See `storage.thinning` for what goes and what stays.
"""

from __future__ import annotations

import asyncio

from triage_monitor.config import StoreSettings
from triage_monitor.errors import ConflictError
from triage_monitor.service.live import THIN_EVERY, LiveRun
from triage_monitor.service.open_update import Place
from triage_monitor.storage.records import ShardRow
from triage_monitor.storage.thinning import is_thinned


async def thin_if_due(live: LiveRun, settings: StoreSettings) -> int:
    """How many rows changed. Takes the run's lock for each step, so that shards get in between."""
    if live.closed_since_thinning < THIN_EVERY:
        return 0
    live.closed_since_thinning = 0
    changed = 0
    while True:
        async with live.lock:
            limits = _limits(live, settings)
            if limits is None:
                live.closed_since_thinning = THIN_EVERY  # with the next closing
                return changed
            shards_before, summaries_before = limits
            step = live.store.thin(
                live.name,
                shards_from=live.thinned_before,
                shards_before=shards_before,
                summaries_before=summaries_before,
            )
            done = await asyncio.wrap_future(step)
            changed += done.rows
            if done.shards_from is None:
                live.thinned_before = max(live.thinned_before, shards_before)
                return changed
            live.thinned_before = done.shards_from


def _limits(live: LiveRun, settings: StoreSettings) -> tuple[int, int] | None:
    """The steps before which shards, and merged summaries, are thinned; None while something late is on its way."""
    if live.newest is None:
        return None
    shards_before = live.newest.step - settings.keep_shards + 1
    joined = [step for (_, step), aside in live.troubles.aside.items() if aside.update.halves is not None]
    shards_before = min([shards_before, *joined])  # their halves are needed when they are tried again
    if any(step < shards_before for _, step in (*live.open, *live.arriving)):
        return None
    return shards_before, live.newest.step - settings.keep_summaries + 1


def refuse_thinned(live: LiveRun, place: Place) -> None:
    """ConflictError when a shard of this closed update has been thinned. Blocking."""
    attempt, step = place
    rows = live.store.rows(ShardRow, live.name, attempt=attempt, first_step=step, last_step=step)
    if any(is_thinned(row) for row in rows):
        raise ConflictError(f"step {step} was closed long ago and its shards were thinned; a late one cannot join them")
