"""Routes of the control loop: parameter sets, acknowledgements, actions and their audit trail.

A parameter set is served with an `ETag` made of the store's epoch and the version. `?wait=30&after=V` answers as soon
as the version is another than V, at the latest after the wait; waiting costs no thread and no polling.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, RootModel

from triage_monitor.service.access import ANONYMOUS, caller_of
from triage_monitor.service.body import json_body, read_model
from triage_monitor.service.control import Desk, entry_json
from triage_monitor.service.leaving import unless_left
from triage_monitor.service.live import LiveRun
from triage_monitor.service.names import MAX_STEP, Run, checked_run
from triage_monitor.service.problems import Problem
from triage_monitor.service.sidecar import Sidecar
from triage_monitor.storage.audit import entry_json as link_json
from triage_monitor.storage.fence import Fence, origin_json
from triage_monitor.storage.records import AckRow, ActionRow, AuditRow, ParamsRow

MAX_WAIT_SECONDS = 60.0
MAX_EPOCH = 1 << 53
OPERATOR = "operator"
_ACTOR = re.compile(r"[A-Za-z0-9@._:+-]{1,64}")
_KEY = re.compile(r"[!-~]{1,255}")


class AckBody(BaseModel):
    """`refused` says why a trainer does not use the version; without it the version is in force from `step` on.

    `epoch` and `issuer` are those that the version came with; `fenced_by` is the epoch of the other monitor that the
    trainer obeys.
    """

    model_config = ConfigDict(extra="forbid")
    version: int = Field(ge=0, le=MAX_STEP)
    step: int = Field(ge=0, le=MAX_STEP)
    refused: str | None = Field(default=None, max_length=500)
    epoch: int | None = None
    issuer: str | None = Field(default=None, max_length=64)
    fenced_by: int | None = Field(default=None, ge=0, le=MAX_EPOCH)


class JsonObject(RootModel[dict[str, Any]]):
    """Any JSON object; what may stand in it is decided by the parameter set or the action."""


def routes(sidecar: Sidecar, desk: Desk) -> APIRouter:
    router = APIRouter(prefix="/v1/runs/{run}", tags=["control"])

    @router.get("/params")
    async def get_params(
        request: Request,
        run: Run,
        wait: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)] = 0.0,
        after: Annotated[int | None, Query(ge=0)] = None,
        if_none_match: Annotated[str | None, Header()] = None,
    ) -> Response:
        """The current parameter set; with `wait`, of a run that nobody knows yet as soon as it begins."""
        live = await unless_left(request, _found(sidecar, checked_run(run), wait))
        if after is not None:
            await unless_left(request, _news(sidecar, live, after, wait))
        if if_none_match is not None and if_none_match == _etag(sidecar, live):
            return Response(status_code=304, headers={"ETag": _etag(sidecar, live)})
        return _params_response(sidecar, live)

    @router.put("/params", openapi_extra=json_body(JsonObject), responses={412: {}, 422: {}, 428: {}, 429: {}})
    async def put_params(
        request: Request,
        run: Run,
        if_match: Annotated[str | None, Header()] = None,
        triage_actor: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Lays the given fields over the present set; holds the policy until `release`."""
        live = await sidecar.find(checked_run(run))
        if if_match is None:
            raise Problem(428, "if_match", "send If-Match with the ETag of the set you saw")
        changes = (await read_model(request, JsonObject)).root
        version = _version_of(sidecar, live, if_match)
        live, _ = await desk.override(run, changes, version, _actor(request, triage_actor), caller_of(request).name)
        return _params_response(sidecar, live)

    @router.post("/params/ack", openapi_extra=json_body(AckBody))
    async def acknowledge(request: Request, run: Run) -> JSONResponse:
        """A trainer says which version is in force from which step on, or why it refused one."""
        await sidecar.find(checked_run(run))
        body = await read_model(request, AckBody)
        if not _is_ours(sidecar.store.fence, body):
            detail = f"the acknowledgement is for epoch {body.epoch} of another monitor or another copy of this one"
            raise Problem(409, "epoch", f"{detail}; this is {sidecar.store.fence.epoch}")
        await desk.acknowledge(run, body.version, body.step, body.refused, body.fenced_by)
        answer = {"version": body.version, "step": body.step, "accepted": True, **origin_json(sidecar.store.fence)}
        return JSONResponse(answer)

    @router.get("/params/history")
    async def params_history(run: Run, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> JSONResponse:
        """Every version with its reason, who made it and on what evidence; the newest `limit`; what trainers said of
        them; and `initial`, the set that a run with these settings begins with, before version 1."""
        live = await sidecar.find(checked_run(run))
        rows = await asyncio.to_thread(sidecar.store.rows, ParamsRow, run, newest=limit)
        versions = [
            {"at": row.at, "actor": row.actor, "params": row.params, "evidence": row.evidence, "reason": row.reason}
            for row in rows
        ]
        acks = await asyncio.to_thread(sidecar.store.rows, AckRow, run, newest=limit)
        told = [{"version": ack.version, "step": ack.step, "at": ack.at, "refused": ack.refused} for ack in acks]
        initial = live.settings.policy.initial().to_dict()
        return JSONResponse({"initial": initial, "versions": versions, "acknowledgements": told})

    @router.post(
        "/actions", status_code=201, openapi_extra=json_body(JsonObject), responses={200: {}, 409: {}, 429: {}}
    )
    async def post_action(
        request: Request,
        run: Run,
        idempotency_key: Annotated[str | None, Header()] = None,
        triage_actor: Annotated[str | None, Header()] = None,
    ) -> JSONResponse:
        """`{"kind": ..., "reason": ..., arguments}`, carried out once per Idempotency-Key."""
        await sidecar.find(checked_run(run))
        if idempotency_key is None or _KEY.fullmatch(idempotency_key) is None:
            raise Problem(400, "idempotency_key", "send an Idempotency-Key of 1 to 255 printable characters")
        body = (await read_model(request, JsonObject)).root
        row, repeated = await desk.act(
            run, idempotency_key, body, _actor(request, triage_actor), caller_of(request).name
        )
        return JSONResponse(entry_json(row), 200 if repeated else 201)

    @router.get("/actions")
    async def get_actions(run: Run, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> JSONResponse:
        """The audit trail, oldest of the newest `limit` first."""
        await sidecar.find(checked_run(run))
        rows = await asyncio.to_thread(sidecar.store.rows, ActionRow, run, newest=limit)
        return JSONResponse({"actions": [entry_json(row) for row in rows]})

    @router.get("/audit")
    async def get_audit(run: Run, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> JSONResponse:
        """The hash-chained trail of every control change; `head` is its newest link, to be kept elsewhere."""
        live = await sidecar.find(checked_run(run))
        rows = await asyncio.to_thread(sidecar.store.rows, AuditRow, run, newest=limit)
        head = {"number": live.audit.number, "link": live.audit.link}
        return JSONResponse({"entries": [link_json(row) for row in rows], "head": head})

    return router


async def _found(sidecar: Sidecar, run: str, wait: float) -> LiveRun:
    """The run, once there is one of this name; Problem 404 after the wait."""
    if wait > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                begun = sidecar.run_begun
                while await sidecar.peek(run) is None and sidecar.ready:
                    await begun.wait()
                    begun = sidecar.run_begun
    return await sidecar.find(run)


async def _news(sidecar: Sidecar, live: LiveRun, after: int, wait: float) -> None:
    """Returns when the version is another than `after`, the wait is over or the sidecar stops."""
    try:
        async with asyncio.timeout(wait):
            while live.version == after and sidecar.ready:
                await live.params_changed.wait()
    except TimeoutError:
        return


def _params_response(sidecar: Sidecar, live: LiveRun) -> JSONResponse:
    body = {**live.params.to_dict(), **origin_json(sidecar.store.fence)}
    return JSONResponse(body, headers={"ETag": _etag(sidecar, live)})


def _etag(sidecar: Sidecar, live: LiveRun) -> str:
    return f'"{sidecar.store.fence.epoch}-{live.version}"'


def _version_of(sidecar: Sidecar, live: LiveRun, if_match: str) -> int | None:
    """The version an If-Match stands for; None for `*`. Problem 412 when it is none of this store."""
    if if_match.strip() == "*":
        return None
    match = re.fullmatch(r'"(\d{1,18})-(\d{1,18})"', if_match.strip())
    if match is None or int(match[1]) != sidecar.store.fence.epoch:
        raise Problem(412, "version_changed", f"{if_match[:60]} is not the ETag of this set: {_etag(sidecar, live)}")
    return int(match[2])


def _is_ours(fence: Fence, body: AckBody) -> bool:
    """Of this start, or of an earlier one of this store: a trainer's word may outlive a restart."""
    if body.epoch in (None, 0):
        return True
    if body.epoch == fence.epoch:
        return body.issuer in (None, fence.issuer)
    known = body.issuer is not None and body.issuer.partition(".")[0] == fence.store_id
    return known and body.epoch is not None and body.epoch < fence.epoch


def _actor(request: Request, said: str | None) -> str:
    """The token's name and behind it who it is used for, if the sender says so; without tokens just what he says."""
    if said is not None and _ACTOR.fullmatch(said) is None:
        raise Problem(422, "actor", "Triage-Actor is 1 to 64 of letters, digits and @ . _ : + -", column="triage-actor")
    name = caller_of(request).name
    if name == ANONYMOUS:
        return said or OPERATOR
    return name if said is None else f"{name}:{said}"
