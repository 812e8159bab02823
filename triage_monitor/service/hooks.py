"""Incoming alerts: a firing alert triggers the action that the configuration maps its name to.

Alertmanager and Grafana send the same: `{"alerts": [{"status", "labels", "startsAt", "fingerprint"}]}`. The run is
the label `run`. The idempotency key is made of the alert's fingerprint and start, so that re-sent notifications do
nothing twice. Resolved and unmapped alerts are answered and ignored.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from triage_monitor.config import HookSettings
from triage_monitor.errors import ConfigError, ConflictError, InputError
from triage_monitor.service.access import caller_of
from triage_monitor.service.body import json_body, read_model
from triage_monitor.service.control import Desk, check_action
from triage_monitor.service.problems import Problem
from triage_monitor.storage.records import RUN_NAME

MAX_ALERTS = 256


class Alert(BaseModel):
    status: str = "firing"
    labels: dict[str, str] = Field(default_factory=dict)
    startsAt: str = ""
    fingerprint: str = ""


class Notification(BaseModel):
    alerts: list[Alert] = Field(max_length=MAX_ALERTS)


def routes(desk: Desk, settings: HookSettings) -> APIRouter:
    _check(settings)
    router = APIRouter(prefix="/v1/hooks", tags=["hooks"])

    @router.get("")
    async def mapped() -> JSONResponse:
        """Alert name -> the action it triggers."""
        return JSONResponse({"actions": {name: settings.action(name) for name in settings.actions}})

    @router.post("/alertmanager", openapi_extra=json_body(Notification))
    async def alertmanager(request: Request) -> JSONResponse:
        """Alertmanager's webhook."""
        return await _all(desk, settings, await read_model(request, Notification), "alertmanager", request)

    @router.post("/grafana", openapi_extra=json_body(Notification))
    async def grafana(request: Request) -> JSONResponse:
        """Grafana's webhook contact point."""
        return await _all(desk, settings, await read_model(request, Notification), "grafana", request)

    return router


def _check(settings: HookSettings) -> None:
    """A mapping to an action that does not exist raises ConfigError now, not when the alert fires."""
    for name in settings.actions:
        try:
            check_action(settings.action(name) or {})
        except InputError as error:
            raise ConfigError(f"hooks.actions.{name}: {error}") from None


async def _all(
    desk: Desk, settings: HookSettings, notification: Notification, sender: str, request: Request
) -> JSONResponse:
    who = caller_of(request).name
    results = [await _one(desk, settings, alert, sender, who) for alert in notification.alerts]
    return JSONResponse({"results": results})


async def _one(desk: Desk, settings: HookSettings, alert: Alert, sender: str, who: str) -> dict[str, Any]:
    name, run = alert.labels.get("alertname", ""), alert.labels.get("run", "")
    result: dict[str, Any] = {"alert": name[:200], "run": run[:128]}
    action = settings.action(name)
    if alert.status != "firing":
        return {**result, "outcome": "not_firing"}
    if action is None:
        return {**result, "outcome": "not_mapped"}
    if RUN_NAME.fullmatch(run) is None:
        return {**result, "outcome": "no_run"}
    labels = "\n".join(f"{key}={value}" for key, value in sorted(alert.labels.items()))
    key = sha256(f"{alert.fingerprint or labels}\n{alert.startsAt}".encode()).hexdigest()[:32]
    request = {**action, "reason": f"alert {name[:200]}"}
    try:
        row, repeated = await desk.act(run, f"alert-{key}", request, sender, who)
    except Problem as problem:
        return {**result, "outcome": problem.reason}
    except (InputError, ConflictError) as error:
        return {**result, "outcome": "refused", "reason": str(error)}
    outcome = "repeated" if repeated else row.outcome
    return {**result, "outcome": outcome, "params_version": row.answer["params_version"]}
