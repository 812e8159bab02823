"""Attempts: each start or resume of a trainer is one, and its updates replace older ones from its first step on.

The same launch id always gets the same number. A new attempt of a stopped run sets `control` back to run: `stop` ends
an attempt for good, and whoever starts the next one means it.
"""

from __future__ import annotations

from uuid import uuid4

from triage_monitor.service.auditing import TRAINER, audit_params
from triage_monitor.service.names import MAX_ATTEMPT
from triage_monitor.service.problems import Problem
from triage_monitor.service.sidecar import Sidecar
from triage_monitor.storage.records import AttemptRow, ParamsRow, Record


async def begin(sidecar: Sidecar, run: str, from_step: int, launch_id: str | None, who: str) -> tuple[AttemptRow, bool]:
    """The attempt of this launch, and whether it was made now. `who` asks for it."""
    return await sidecar.spawn(_begin(sidecar, run, from_step, launch_id or f"anonymous-{uuid4().hex}", who))


async def _begin(sidecar: Sidecar, run: str, from_step: int, launch_id: str, who: str) -> tuple[AttemptRow, bool]:
    live = await sidecar.ensure(run)
    async with live.lock:
        for row in live.attempts.values():
            if row.digest == launch_id:
                return row, False
        if live.attempt >= MAX_ATTEMPT:
            raise Problem(
                409, "attempts", f"the run had {MAX_ATTEMPT} attempts, as many as there can be", column="attempt"
            )
        now = sidecar.now()
        row = AttemptRow(run, live.attempt + 1, from_step, launch_id, now)
        records: list[Record] = [row]
        params, audit = None, None
        if live.params.control == "stop":
            reason = f"attempt {row.attempt} was started after a stop"
            freed = live.params.with_changes({"control": "run"}).issued(
                version=live.next_version, step=from_step, reason=reason
            )
            params = ParamsRow(run, freed.version, now, TRAINER, reason, freed.to_dict(), {"kind": "attempt"})
            audit = audit_params(live, params, "attempt", who)
            records += [params, audit]
        await sidecar.write(*records)
        live.attempts[row.attempt] = row
        live.attempt = row.attempt
        live.fenced_by = None  # a new trainer process has met no monitor yet
        live.last_seen, live.heard_at = now, sidecar.clock.monotonic()
        live.audited(audit)
        if params is not None:
            live.monitor.adopt(freed)
            sidecar.issue(live, params)
            sidecar.tell_params(live, params)
        live.snapshot = live.take_snapshot()
        return row, True
