"""Routes that read: runs, one run, history, events. Answers are strict JSON; a number not known is null.

History shows each step once, as its newest attempt reported it; what a newer attempt replaced stays stored.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from triage_monitor.judge.indicators import INDICATOR_NAMES
from triage_monitor.judge.run import JudgeSettings
from triage_monitor.judge.score import SCORE
from triage_monitor.service.events import MAX_LISTENERS
from triage_monitor.service.joining import JOINED, unmatched_rows
from triage_monitor.service.leaving import unless_left
from triage_monitor.service.live import LiveRun
from triage_monitor.service.long_reads import listed
from triage_monitor.service.names import MAX_STEP, Run, checked_run
from triage_monitor.service.problems import Problem, busy
from triage_monitor.service.sidecar import Sidecar
from triage_monitor.service.unclosable import MAX_SHOWN
from triage_monitor.storage.base import Store, effective_count, effective_updates
from triage_monitor.storage.records import ParamsRow, RunRow, TransitionRow, UpdateRow
from triage_monitor.storage.series import Scope, is_series_name, read_series, series_arrow
from triage_monitor.summary.rows import STREAM_MIME

Bound = Annotated[int | None, Query(ge=0, le=MAX_STEP)]
MAX_SERIES = 64


def routes(sidecar: Sidecar) -> APIRouter:
    router = APIRouter(prefix="/v1/runs", tags=["query"])

    @router.get("")
    async def runs() -> JSONResponse:
        """Every run, the retired ones too."""
        names = await asyncio.to_thread(sidecar.store.runs)
        briefs = [await _brief(sidecar, name) for name in names]
        return JSONResponse({"runs": [brief for brief in briefs if brief is not None]})

    @router.get("/{run}")
    async def one_run(run: Run) -> JSONResponse:
        """Stage, newest update and window, parameters, integrity counters, and `settings`: name -> the values that the
        newest update's shards told."""
        live = await sidecar.find(checked_run(run))
        return JSONResponse(await asyncio.to_thread(_detail, sidecar, live))

    @router.get("/{run}/series")
    async def series(
        request: Request,
        run: Run,
        name: Annotated[list[str], Query(min_length=1, max_length=MAX_SERIES)],
        scope: Annotated[list[Scope] | None, Query(max_length=2)] = None,
        first: Annotated[int | None, Query(alias="from", ge=0, le=MAX_STEP)] = None,
        last: Annotated[int | None, Query(alias="to", ge=0, le=MAX_STEP)] = None,
        accept: Annotated[str, Header()] = "",
    ) -> Response:
        """Values by step; JSON, or an Arrow stream when `Accept` asks for one."""
        await sidecar.find(checked_run(run))
        for wanted in name:
            if not is_series_name(wanted, INDICATOR_NAMES):
                raise Problem(422, "unknown_indicator", f"there is no indicator '{wanted[:100]}'", column="name")
        media = STREAM_MIME if STREAM_MIME in accept else JSONResponse.media_type

        def answer() -> bytes:
            found = read_series(sidecar.store, run, name, scope or [Scope.UPDATE], first, last)
            if media == STREAM_MIME:
                return series_arrow(found)
            return listed("series", (item.to_dict() for item in found))

        return Response(await unless_left(request, sidecar.long_reads.run(answer)), media_type=media)

    @router.get("/{run}/updates")
    async def updates(
        request: Request,
        run: Run,
        first: Annotated[int | None, Query(alias="from", ge=0, le=MAX_STEP)] = None,
        last: Annotated[int | None, Query(alias="to", ge=0, le=MAX_STEP)] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        scope: Literal["update", "window"] = "update",
    ) -> Response:
        """Whole reports, the newest `limit` within the bounds, in order of step."""
        await sidecar.find(checked_run(run))

        def answer() -> bytes:
            rows = effective_updates(sidecar.store, run, UpdateRow, first_step=first, last_step=last, newest=limit)
            return listed(f"{scope}s", (update_json(row, scope) for row in rows))

        return Response(await unless_left(request, sidecar.long_reads.run(answer)), media_type=JSONResponse.media_type)

    @router.get("/{run}/transitions")
    async def transitions(run: Run, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> JSONResponse:
        """Every change of stage with its evidence."""
        await sidecar.find(checked_run(run))
        rows = await asyncio.to_thread(sidecar.store.rows, TransitionRow, run, newest=limit)
        return JSONResponse({"transitions": [{"at": row.at, **row.evidence} for row in rows]})

    @router.get("/{run}/events")
    async def events(run: Run, last_event_id: Annotated[str, Header()] = "") -> StreamingResponse:
        """Server-sent events: update, stage, params, action. `Last-Event-ID` gets the recent ones behind it first."""
        await sidecar.find(checked_run(run))
        if sidecar.hub.listeners >= MAX_LISTENERS:
            raise busy("busy", f"{MAX_LISTENERS} event streams are open already")
        listener = sidecar.hub.subscribe(run, last_event_id)
        headers = {"Cache-Control": "no-store"}
        return StreamingResponse(sidecar.hub.stream(run, listener), media_type="text/event-stream", headers=headers)

    return router


def update_json(row: UpdateRow, scope: str = "update") -> dict[str, Any]:
    """The contract's UPDATE or WINDOW of a closed update, with how it was closed."""
    return {
        **row.report[scope],
        "status": row.status,
        "shards": row.shards,
        "missing_shards": row.missing_shards,
        "revision": row.revision,
        "closed_at": row.closed_at,
        "stage": row.stage,
    }


async def _brief(sidecar: Sidecar, name: str) -> dict[str, Any] | None:
    live = sidecar.runs.get(name)
    if live is None:
        return await asyncio.to_thread(_brief_from_store, sidecar.store, name)
    return _brief_json(name, live.snapshot.newest, live.version, live.attempt, sidecar.is_retired(live), live.held_by)


def _brief_from_store(store: Store, name: str) -> dict[str, Any] | None:
    row = store.get(RunRow, name)
    if row is None:
        return None
    newest = effective_updates(store, name, UpdateRow, newest=1)
    attempt = newest[-1].attempt if newest else 0
    return _brief_json(name, newest[-1] if newest else None, store.top(ParamsRow, name), attempt, True, row.held_by)


def _brief_json(
    name: str, newest: UpdateRow | None, version: int, attempt: int, retired: bool, held_by: str | None
) -> dict[str, Any]:
    window = (None if newest is None else newest.report["window"]) or {}
    return {
        "run": name,
        "stage": "warming_up" if newest is None else newest.stage,
        "attempt": attempt,
        "last_step": None if newest is None else newest.step,
        "last_update_at": None if newest is None else newest.closed_at,
        "params_version": version,
        "held_by": held_by,
        "retired": retired,
        "score": (window.get("score") or {}).get("value"),
        "rho_asym": window.get("indicators", {}).get("rho_asym"),
    }


def _detail(sidecar: Sidecar, live: LiveRun) -> dict[str, Any]:
    now = live.snapshot
    newest = now.newest
    report = {} if newest is None else newest.report
    open_updates = [
        {"step": item.step, "attempt": item.attempt, "shards_in": item.shards_in, "shards": item.shards}
        for item in list(live.open.values())
        if not item.is_empty
    ]
    return {
        "run": now.run,
        "stage": now.stage,
        "why": report.get("why", ""),
        "notices": report.get("notices", []),
        "findings": [dict(item) for item in now.findings],
        "attempt": now.attempt,
        "retired": sidecar.is_retired(live),
        "held_by": now.held_by,
        "policy_note": now.policy_note,
        "last_update": None if newest is None else update_json(newest),
        "window": report.get("window"),
        "objective": report.get("objective", {}),
        "settings": report.get("settings", {}),
        "open_updates": open_updates,
        "unclosable_updates": [item.to_dict() for item in list(live.troubles.aside.values())[-MAX_SHOWN:]],
        "params": now.params.to_dict(),
        "params_version": now.params.version,
        "params_at": now.params_at,
        "params_applied": now.applied,
        "epoch": sidecar.store.fence.epoch,
        "fenced_by": now.fenced_by,
        "dry_run": now.proposed is not None,
        "proposed": now.proposed,
        "integrity": _integrity(sidecar, live),
        "baseline": live.monitor.normal,
        "thresholds": _thresholds(live.settings),
    }


def _thresholds(settings: JudgeSettings) -> dict[str, Any]:
    """What charts draw beside the numbers: the levels this run is judged by."""
    rules = {"drift": settings.detector.drift, "pre_terminal": settings.detector.pre_terminal}
    score = {stage: item.level for stage, rule in rules.items() for item in rule.criteria if item.indicator == SCORE}
    return {
        "score": score,
        "rho_asym": settings.notices.ratio,
        "excess_band": settings.notices.excess_band,
        "window_updates": settings.window_updates,
        "minimum_updates": settings.detector.minimum.updates,
        "alarms_per_1000_updates": settings.detector.alarms_per_1000_updates,
    }


def _integrity(sidecar: Sidecar, live: LiveRun) -> dict[str, Any]:
    names = (
        *("updates", "partial_updates", "empty_updates", "missing_shards", "late_shards"),
        *("duplicate_shards", "conflicting_shards", "refused_params"),
    )
    counts: dict[str, Any] = {name: live.counters[name] for name in names}
    stored = sidecar.store.count(UpdateRow, live.name)
    counts["superseded_updates"] = stored - effective_count(sidecar.store, live.name)
    counts["corrupt_rows"] = sidecar.store.corrupt_rows
    counts["client_dropped"] = dict(live.snapshot.client_drops)
    counts["joined_rows"], counts["unmatched_rows"] = live.counters[JOINED], unmatched_rows(live.counters)
    return counts
