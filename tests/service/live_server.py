"""A real uvicorn on a free loopback port in a thread, for tests that speak HTTP; and bodies to send to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
import numpy as np

from triage_monitor.config import Settings
from triage_monitor.service.app import Application, build
from triage_monitor.service.clock import Clock
from triage_monitor.service.server import Server
from triage_monitor.storage.base import Store
from triage_monitor.storage.memory import MemoryStore
from triage_monitor.summary.rows import STREAM_MIME, encode_arrays

T = TypeVar("T")
STREAM = {"Content-Type": STREAM_MIME}


class LiveServer:
    """`http` speaks to it; `call` runs a coroutine on its event loop."""

    def __init__(self, application: Application, server: Server, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self.application = application
        self.sidecar = application.sidecar
        self.server = server
        self.address = address
        self._loop = loop
        self.http = httpx.Client(base_url=address, timeout=120, trust_env=False)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def close_overdue(self) -> int:
        return self.call(self.sidecar.close_overdue())

    def put(
        self, run: str, step: int, body: bytes, *, shard: int = 0, shards: int = 1, attempt: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:  # fmt: skip
        query = {"shards": shards} | ({} if attempt is None else {"attempt": attempt})
        path = f"/v1/runs/{run}/updates/{step}/shards/{shard}"
        return self.http.put(path, params=query, content=body, headers=headers or STREAM)

    def run(self, run: str) -> dict[str, Any]:
        answer = self.http.get(f"/v1/runs/{run}")
        answer.raise_for_status()
        detail: dict[str, Any] = answer.json()
        return detail

    def metrics(self) -> dict[str, float]:
        """Every sample of a scrape by its name and labels as written."""
        lines = self.http.get("/metrics").text.splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in samples}


@contextmanager
def serving(
    settings: Settings | None = None, store: Store | None = None, clock: Clock | None = None
) -> Iterator[LiveServer]:
    settings = settings or Settings.from_dict({"server": {"port": 0}, "judge": {"policy": {"mode": "adaptive"}}})
    application = build(settings, store or MemoryStore(), clock=clock)
    started: list[Any] = []
    answered = threading.Event()

    def announce(address: str) -> None:
        started.append((address, asyncio.get_running_loop()))
        answered.set()

    server = Server(application, settings, announce)
    server.config.setup_event_loop = lambda: None  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: asyncio.run(_serve(server)), daemon=True)
    thread.start()
    assert answered.wait(180), "the server did not start"
    address, loop = started[0]
    live = LiveServer(application, server, address, loop)
    try:
        yield live
    finally:
        live.http.close()
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


async def _serve(server: Server) -> None:
    await server._serve()


class FakeClock:
    """Both clocks move only by `advance`."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0
        self.clock = Clock(lambda: self.seconds, lambda: self.seconds)

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


def arrow(gap: list[list[float]], advantages: list[float], **more: Any) -> bytes:
    """A body of these responses."""
    return encode_arrays(
        gap=[np.array(item, dtype=np.float32) for item in gap], advantages=np.array(advantages), **more
    )


def masses(a_neg: int, a_pos: int) -> bytes:
    """A body whose rho_asym is a_neg / a_pos: that many one-token responses in either amplifying region."""
    return arrow([[-0.1]] * a_neg + [[0.1]] * a_pos, [-1.0] * a_neg + [1.0] * a_pos)


Announce = Callable[[str], None]
