"""Runs the application under uvicorn: one process, one address, a clean end.

Prints its address once it answers. On SIGTERM or SIGINT it first lets go of event streams and long polls, then lets
requests finish for `drain_seconds`, cuts the connections of those that did not, closes the store and ends with exit
code 0. The data directory is locked; a second process on it ends with an error that names the first. Should the store's
files turn out damaged while it runs, it drains in the same way, opens the store anew, which mends it, and goes on at
the same address. With `server.flight_port` Arrow Flight is taken beside HTTP (flight.py), and its address printed on a
second line. What it says on standard error never holds it up (stderr.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from triage_monitor.config import Settings
from triage_monitor.errors import ConfigError, StoreCorrupt
from triage_monitor.service.app import Application, build
from triage_monitor.service.connections import Stalled
from triage_monitor.service.stderr import UnblockedStderr, unblocked_stderr
from triage_monitor.storage.base import Store
from triage_monitor.storage.memory import MemoryStore
from triage_monitor.storage.sqlite import SqliteStore

if TYPE_CHECKING:
    from triage_monitor.service.flight import FlightPort

_KEEP_ALIVE_SECONDS = 75
_TICKS_PER_LOOK = 5  # a tick is a tenth of a second
_CUT_OFF_SECONDS = 5  # for requests whose connection was cut to end by themselves, before uvicorn cancels them
MAX_REOPENINGS = 5
logger = logging.getLogger("triage_monitor")


class Server(uvicorn.Server):
    """uvicorn's server that says when it answers and ends waiting streams before it drains."""

    def __init__(self, application: Application, settings: Settings, announce: Callable[[str], None]) -> None:
        super().__init__(
            uvicorn.Config(
                application.asgi,
                host=settings.server.host,
                port=settings.server.port,
                log_level="warning",
                access_log=False,
                lifespan="on",
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=ceil(settings.server.drain_seconds) + _CUT_OFF_SECONDS,
                ws="none",
                **settings.tls.options(),
            )
        )
        logging.getLogger("uvicorn.error").addFilter(_is_ours)
        self.application = application
        self._scheme = "https" if settings.tls.cert_file else "http"
        self._announce = announce
        self.stalled = Stalled(settings.ingest.stall_seconds, application.sidecar.clock.monotonic)
        self._settings = settings
        self.port = settings.server.port
        self.flight: FlightPort | None = None
        self.told_to_end = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.port = self.servers[0].sockets[0].getsockname()[1]
            if self._settings.server.flight_port >= 0:
                from triage_monitor.service.flight import FlightPort  # gRPC is loaded only where it is asked for

                self.flight = FlightPort(self.application, self._settings)
            self._announce(self.address)
            if self.flight is not None:
                self._announce(self.flight.address)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_LOOK == 0:
            self.stalled.look(self.server_state.connections)
        return await super().on_tick(counter) or self.application.sidecar.store.suspect is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.application.sidecar.begin_stop()
        if self.flight is not None:
            for server in self.servers:
                server.close()
            await self.flight.stop(self._settings.server.drain_seconds)
        cutting = asyncio.create_task(self._cut_off())
        await super().shutdown(sockets)
        cutting.cancel()

    async def _cut_off(self) -> None:
        """A request that waits for its sender, or its reader, ends by itself when they are gone."""
        await asyncio.sleep(self._settings.server.drain_seconds)
        left = [item.transport for item in self.server_state.connections if item.transport is not None]
        if left:
            logger.warning("%d requests were not finished after drain_seconds and are cut off", len(left))
        for transport in left:
            transport.abort()

    def _end(self, how: int) -> None:
        self.told_to_end = True
        self.handle_exit(how, None)

    @property
    def address(self) -> str:
        """http(s)://host:port as it really listens; only after the start."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"{self._scheme}://[{host}]:{port}" if ":" in host else f"{self._scheme}://{host}:{port}"

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM ask for the end, and the process then ends by itself, not by the signal."""
        loop = asyncio.get_running_loop()
        ends = (signal.SIGINT, signal.SIGTERM)
        for end in ends:
            loop.add_signal_handler(end, self._end, end)
        yield
        for end in ends:
            loop.remove_signal_handler(end)


def _is_ours(record: logging.LogRecord) -> bool:
    """False for an answer to a peer that has gone. uvloop raises for it when requests were waiting behind one another,
    and each would be a traceback: any reader who leaves could fill the log."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, RuntimeError) and "the handler is closed" in str(error))


def open_store(settings: Settings) -> Store:
    """Raises ConfigError when the data directory is in use, cannot be made or is of a newer version."""
    if settings.store.kind == "memory":
        return MemoryStore(settings.store.epoch_above)
    try:
        store = SqliteStore(Path(settings.store.data_dir), settings.store.epoch_above)
        store.begin_scrub()
        return store
    except OSError as error:
        raise ConfigError(f"the data directory {settings.store.data_dir} cannot be used: {error.strerror}") from error


def serve(settings: Settings, announce: Callable[[str], None] = print) -> None:
    """Serves until it is told to end. `announce` gets the address once it answers. Raises ConfigError."""
    _refuse_taken_address(settings)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    with unblocked_stderr() as stderr:
        _serve_until_told(settings, announce, stderr)


def _serve_until_told(settings: Settings, announce: Callable[[str], None], stderr: UnblockedStderr | None) -> None:
    for _ in range(MAX_REOPENINGS):
        suspect, server = _serve_once(settings, announce, stderr)
        if suspect is None:
            return
        logger.error("the store is damaged and will be opened anew: %s", suspect)
        flight_port = -1 if server.flight is None else server.flight.port
        settings = replace(settings, server=replace(settings.server, port=server.port, flight_port=flight_port))
        announce = _silent
    raise StoreCorrupt(f"the store was damaged {MAX_REOPENINGS} times while it was served; check the disk: {suspect}")


def _serve_once(
    settings: Settings, announce: Callable[[str], None], stderr: UnblockedStderr | None
) -> tuple[str | None, Server]:
    """Until it is told to end, or the store needs to be mended: then why. And the server, for its ports."""
    store = open_store(settings)
    try:
        server = Server(build(settings, store, stderr=stderr), settings, announce)
        server.run()
        if not server.started:
            raise ConfigError(f"could not start on {settings.server.host}:{settings.server.port}")
        return (None if server.told_to_end else store.suspect), server
    finally:
        store.close()


def _silent(_: str) -> None:
    """The address was said before."""


def _refuse_taken_address(settings: Settings) -> None:
    for port in (settings.server.port, settings.server.flight_port):
        if port >= 0:
            _refuse_taken_port(settings.server.host, port)


def _refuse_taken_port(host: str, port: int) -> None:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
