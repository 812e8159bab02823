"""The worst responses of an update over HTTP: `GET /v1/runs/{run}/worst?step=`, merged over its shards.

Only shards that came with their rows have any; the answer says how many of the update's shards those were.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from triage_monitor.errors import InputError
from triage_monitor.service.names import MAX_STEP, Run, checked_run
from triage_monitor.service.problems import Problem
from triage_monitor.service.sidecar import Sidecar
from triage_monitor.storage.base import Store, effective_updates
from triage_monitor.storage.records import UpdateRow, WorstRow
from triage_monitor.summary.spec import SummarySpec
from triage_monitor.summary.worst import WorstResponse, decode_worst, merge_worst


def routes(sidecar: Sidecar) -> APIRouter:
    router = APIRouter(prefix="/v1/runs", tags=["query"])

    @router.get("/{run}/worst")
    async def worst(run: Run, step: Annotated[int | None, Query(ge=0, le=MAX_STEP)] = None) -> JSONResponse:
        """The few worst responses of one update (the newest by default) with their tail tokens by segment."""
        await sidecar.find(checked_run(run))
        return JSONResponse(await asyncio.to_thread(_answer, sidecar.store, run, step, sidecar.settings.summary))

    return router


def _answer(store: Store, run: str, step: int | None, spec: SummarySpec) -> dict[str, Any]:
    found = effective_updates(store, run, UpdateRow, first_step=step, last_step=step, newest=1)
    if step is not None and not found:
        raise Problem(404, "unknown_step", f"run '{run}' has no closed update at step {step}", column="step")
    answer = {"run": run, "segment": spec.segment, "tau_ana": spec.tau_ana, "phi": spec.phi}
    if not found:
        return {**answer, "step": None, "attempt": None, "shards": 0, "shards_with_rows": 0, "responses": []}
    update = found[-1]
    rows = store.rows(WorstRow, run, attempt=update.attempt, first_step=update.step, last_step=update.step)
    known = [responses for row in rows if (responses := _decoded(row.worst)) is not None]
    return {
        **answer,
        "step": update.step,
        "attempt": update.attempt,
        "shards": update.shards,
        "shards_with_rows": len(known),
        "responses": [asdict(response) for response in merge_worst(known)],
    }


def _decoded(encoded: bytes) -> tuple[WorstResponse, ...] | None:
    """None for those of an unknown version: they are not shown, nothing else."""
    try:
        return decode_worst(encoded)
    except InputError:
        return None
