"""The application: everything is built here and passed on; nothing is global, so two fit in one interpreter.

    settings, store, clock, registry -> Sidecar -> routes

`create_app` starts nothing; the application's lifespan does. The store belongs to the caller, who closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from triage_monitor import __version__
from triage_monitor.config import Settings
from triage_monitor.config_access import AuthSettings, read_secret
from triage_monitor.service import control_routes, hooks, ingest, page, problems, query, worst_routes
from triage_monitor.service.access import Access, AccessMiddleware, Rules, caller_of
from triage_monitor.service.access_metrics import access_families, witness_families
from triage_monitor.service.alertmanager import AlertmanagerPush
from triage_monitor.service.body import small_bodies
from triage_monitor.service.clock import Clock
from triage_monitor.service.control import Desk
from triage_monitor.service.exposition import SidecarCollector
from triage_monitor.service.exposition_text import SharedPage, TextPage
from triage_monitor.service.notify import Notifier
from triage_monitor.service.retention import Retention
from triage_monitor.service.sidecar import Sidecar
from triage_monitor.service.stderr import UnblockedStderr, stderr_families
from triage_monitor.service.tokens import Scope, TokenSet
from triage_monitor.service.webhook import Webhooks
from triage_monitor.storage.audit import WITNESS_FILE
from triage_monitor.storage.audit_witness import Witness
from triage_monitor.storage.base import Store


@dataclass(frozen=True, slots=True)
class Application:
    """The ASGI application and what its server and its tests need to hold."""

    asgi: FastAPI
    sidecar: Sidecar
    ingest: ingest.Ingest
    registry: CollectorRegistry
    access: Access


def build(
    settings: Settings,
    store: Store,
    *,
    clock: Clock | None = None,
    registry: CollectorRegistry | None = None,
    stderr: UnblockedStderr | None = None,
) -> Application:
    """Puts the parts together; a registry that is passed in may hold collectors of the caller's too. What `stderr`
    had to drop is told on /metrics."""
    home = Path(settings.store.data_dir)
    witness = Witness(Path(settings.store.audit_witness or home / WITNESS_FILE)) if store.durable else None
    sidecar = Sidecar(settings, store, clock or Clock(), witness)
    retention = Retention(home / "recordings") if settings.store.retain_raw else None
    intake = ingest.Ingest(sidecar, retention)
    access = Access(
        _rules(settings.auth, settings.server.host, sidecar.clock), sidecar.clock.wall, sidecar.clock.monotonic
    )
    tellers = (
        Webhooks(settings.webhooks, sidecar),
        AlertmanagerPush(settings.alertmanager, sidecar, settings.page_url),
        Notifier(settings.notify, sidecar, settings.page_url),
    )
    collector = SidecarCollector(
        sidecar,
        intake.budget,
        [
            partial(access_families, access),
            partial(witness_families, witness),
            partial(stderr_families, stderr),
            *(item.families for item in tellers),
            *([] if retention is None else [retention.families]),
        ],
    )
    text = TextPage(collector) if registry is None else None
    registry = registry or CollectorRegistry()
    registry.register(collector)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        app.openapi()  # builds all routes before a thread compiles: it would undo how FastAPI silences its warnings
        await asyncio.to_thread(intake.warm_up)
        await sidecar.start()
        for teller in tellers:
            await teller.start()
        try:
            yield
        finally:
            for teller in tellers:
                await teller.stop()
            await sidecar.stop()
            intake.close()

    app = FastAPI(title="triage-monitor", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    problems.install(app)
    app.state.small_bodies = small_bodies()
    app.add_middleware(AccessMiddleware, access=access)
    desk = Desk(sidecar)
    app.include_router(ingest.routes(intake, sidecar))
    app.include_router(control_routes.routes(sidecar, desk))
    app.include_router(query.routes(sidecar))
    app.include_router(worst_routes.routes(sidecar))
    app.include_router(hooks.routes(desk, settings.hooks))
    app.include_router(page.routes())
    _service_routes(app, sidecar, registry, text, access)
    return Application(app, sidecar, intake, registry, access)


def create_app(
    settings: Settings, store: Store, *, clock: Clock | None = None, registry: CollectorRegistry | None = None
) -> FastAPI:
    """The ASGI application alone, for any server."""
    return build(settings, store, clock=clock, registry=registry).asgi


def _rules(settings: AuthSettings, host: str, clock: Clock) -> Rules:
    """Raises ConfigError for a token or secret file that cannot be used at the start."""
    tokens = TokenSet(Path(settings.tokens_file), clock.wall, clock.monotonic) if settings.tokens_file else None
    secret = read_secret(settings.hook_secret_file, "auth.hook_secret_file") if settings.hook_secret_file else None
    return Rules(tokens, settings.open_metrics, (*settings.allowed_hosts, host), secret)


def _service_routes(
    app: FastAPI, sidecar: Sidecar, registry: CollectorRegistry, text: TextPage | None, access: Access
) -> None:
    page = SharedPage(partial(generate_latest, registry) if text is None else text.render)

    @app.get("/metrics", tags=["service"])
    async def metrics() -> Response:
        """Prometheus exposition, always in its plain text format."""
        return Response(await page.made(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    @app.get("/healthz", tags=["service"])
    async def healthz() -> JSONResponse:
        """Alive: the event loop answers."""
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", tags=["service"])
    async def readyz(request: Request) -> JSONResponse:
        """Ready: runs are loaded, nothing is being shut down, the store is whole and took the last write. Details need
        `read`."""
        damage = await asyncio.to_thread(lambda: sidecar.store.damage)
        failed = sidecar.store.suspect or sidecar.last_write_failed
        ready = sidecar.ready and failed is None
        body = {
            "status": "ready" if ready else "not_ready",
            "store": "ok" if failed is None else failed,
            "durable": sidecar.store.durable,
            "corrupt_rows": sidecar.store.corrupt_rows,
            "tokens_file": access.tokens_file(),
            "verified": sidecar.store.scrubbed,
            "damaged": damage.times,
            "lost_writes": damage.lost_writes,
            "set_aside": damage.set_aside,
            "unclosable_updates": sidecar.unclosable(),
        }
        if Scope.READ not in caller_of(request).may:
            body = {"status": body["status"]}
        return JSONResponse(body, 200 if ready else 503)
