"""Arrow Flight beside HTTP: a DoPut becomes the same request to the same application, so that nothing can differ.

    descriptor: JSON {"run", "step", "shard", "shards", "attempt", "side", "bytes", "dropped"}, or a path of the first 3
    stream:     one binary column `body`, the pieces of what HTTP would carry (an Arrow IPC stream)
    answer:     one metadata message, the JSON that HTTP answers, once the shard is durable
    refusal:    a Flight error; its extra_info is the problem document, with `retry_after` where HTTP has the header

Tokens are asked for before a call's first message is read. The application asks for each piece, so what is refused is
not read on, and what is held is promised from the same budget. gRPC gives a server no timeout for a read: the
connection of a sender that was timed out is closed. What stays gRPC's own is one message of each open call, held before
it is seen here (pyarrow takes no largest message for a server): at most 2 GiB by the protocol, and unpacked if it is
compressed; give Flight to senders with a token.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import unquote, urlencode

import numpy as np
import pyarrow as pa
from pyarrow import flight
from starlette.datastructures import Headers
from starlette.types import Message

from triage_monitor.config import ServerSettings, Settings
from triage_monitor.config_access import TlsSettings
from triage_monitor.service.app import Application
from triage_monitor.service.names import checked_run
from triage_monitor.service.problems import Problem
from triage_monitor.service.sockets import sever
from triage_monitor.summary.rows import STREAM_MIME

SCHEMA = pa.schema([pa.field("body", pa.binary(), nullable=False)])
_QUERY = ("shards", "attempt", "side")
_NAMES = frozenset({"run", "step", "shard", *_QUERY, "bytes", "dropped"})
_SENTENCE = 500  # characters of a refusal: gRPC carries it in headers, which are bounded
_STOP_SECONDS = 5.0
_ERRORS = {
    401: flight.FlightUnauthenticatedError,
    403: flight.FlightUnauthorizedError,
    408: flight.FlightTimedOutError,
    **dict.fromkeys((429, 502, 503, 504, 507), flight.FlightUnavailableError),
    500: flight.FlightInternalError,
}
logger = logging.getLogger("triage_monitor")


class FlightPort:
    """The Flight server of one application; made on its event loop, listens at once."""

    def __init__(self, application: Application, settings: Settings) -> None:
        self._application = application
        self._host = settings.server.host
        self._scheme = "grpc+tls" if settings.tls.cert_file else "grpc"
        self.loop = asyncio.get_running_loop()
        self._calls: set[_Call] = set()
        self._stopping = False
        self._server = _Server(self, self._location(settings.server), _certificates(settings.tls))
        self.port: int = self._server.port

    @property
    def address(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self._scheme}://{host}:{self.port}"

    async def admit(self, headers: Headers) -> None:
        """The Problem that refuses a call before anything of it is read."""
        access = self._application.access
        try:
            if self._stopping:
                raise Problem(503, "stopping", "the monitor is being shut down")
            shard = {"type": "http", "method": "PUT", "path": "/v1/runs/-/updates/0/shards/0"}
            await access.admit(shard, headers, _nothing)
        except Problem as problem:
            access.refused[problem.reason] += 1
            raise

    async def answer(self, call: _Call, scope: dict[str, Any]) -> None:
        """Puts the request to the application; ends the wait of the call's thread whatever happens."""
        self._calls.add(call)
        try:
            await self._application.asgi(scope, call.receive, call.send)
        except Exception as error:
            logger.error("a Flight call failed: %s", type(error).__name__, exc_info=error)
        finally:
            self._calls.discard(call)
            call.end()
            if call.is_reading:
                sever(self.port, call.peer)

    async def stop(self, drain_seconds: float) -> None:
        """Lets open calls finish for `drain_seconds`, then ends them with their connections."""
        self._stopping = True
        end = self.loop.time() + drain_seconds
        while self._calls and self.loop.time() < end:
            await asyncio.sleep(0.02)
        for call in list(self._calls):
            call.leave()
        sever(self.port)
        over = threading.Thread(target=self._server.shutdown, name="flight-shutdown", daemon=True)
        over.start()
        await asyncio.to_thread(over.join, _STOP_SECONDS)
        if over.is_alive():
            logger.error("the Flight server did not end in %g s", _STOP_SECONDS)

    def reject(self, reason: str) -> None:
        sidecar = self._application.sidecar
        sidecar.tally.reject(reason, sidecar.now())

    def _location(self, server: ServerSettings) -> str:
        host = f"[{server.host}]" if ":" in server.host else server.host
        return f"{self._scheme}://{host}:{server.flight_port}"


class _Call:
    """One DoPut: `receive` and `send` run on the event loop, `feed` in the call's own thread."""

    def __init__(self, reader: Any, peer: str, declared: int | None) -> None:
        self.peer = peer
        self.is_reading = False
        self.status = 503
        self.headers = Headers(raw=[])
        self.body = b""
        self._reader = reader
        self._declared = declared
        self._came = 0
        self._asked: SimpleQueue[asyncio.Future[Message] | None] = SimpleQueue()
        self._waiting: asyncio.Future[Message] | None = None

    async def receive(self) -> Message:
        self._waiting = asyncio.get_running_loop().create_future()
        self._asked.put(self._waiting)
        return await self._waiting

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], Headers(raw=message["headers"])
        else:
            self.body += message.get("body", b"")

    def end(self) -> None:
        self._asked.put(None)

    def leave(self) -> None:
        """To the application the sender has gone."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result({"type": "http.disconnect"})

    def feed(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reads a piece whenever one is asked for, until there is an answer."""
        while (wanted := self._asked.get()) is not None:
            self.is_reading = True
            try:
                came: Message | Problem = self._next()
            except Problem as problem:
                came = problem
            self.is_reading = False
            loop.call_soon_threadsafe(_give, wanted, came)

    def _next(self) -> Message:
        try:
            piece = _bytes_of(self._reader.read_chunk().data)
        except StopIteration:
            piece = None
        except (pa.ArrowException, OSError):
            return {"type": "http.disconnect"}
        self._came += 0 if piece is None else len(piece)
        is_wrong = self._declared is not None and (
            self._came > self._declared or (piece is None and self._came < self._declared)
        )
        if is_wrong:
            detail = f"{self._came} bytes of the body came, and {self._declared} were declared"
            raise Problem(400, "content_length", detail)
        return {"type": "http.request", "body": b"" if piece is None else piece, "more_body": piece is not None}


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow is untyped
    def __init__(self, port: FlightPort, location: str, certificates: Mapping[str, Any]) -> None:
        self._port = port
        super().__init__(location, middleware={"access": _Doorman(port)}, **certificates)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        loop = self._port.loop
        try:
            command = _command(descriptor)
            if not _is_body(reader.schema):
                raise Problem(415, "media_type", "the stream must be one binary column 'body' without nulls")
            call = _Call(reader, context.peer(), command.get("bytes"))
            scope = _scope(command, context.get_middleware("access").headers, context.peer())
        except Problem as problem:
            loop.call_soon_threadsafe(self._port.reject, problem.reason)
            raise _refusal(problem.status, bytes(problem.response().body), problem.headers) from None
        asyncio.run_coroutine_threadsafe(self._port.answer(call, scope), loop)
        call.feed(loop)
        if call.status not in (200, 201):
            raise _refusal(call.status, call.body, call.headers)
        writer.write(pa.py_buffer(call.body))


class _Doorman(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow is untyped
    """Asks the application's own access rules before a call begins, whatever its method."""

    def __init__(self, port: FlightPort) -> None:
        self._port = port

    def start_call(self, info: Any, headers: Mapping[str, list[str | bytes]]) -> _Kept:
        given = [value for name, values in headers.items() if name.lower() == "authorization" for value in values]
        raw = [(b"authorization", item if isinstance(item, bytes) else item.encode()) for item in given]
        try:
            asyncio.run_coroutine_threadsafe(self._port.admit(Headers(raw=raw)), self._port.loop).result()
        except Problem as problem:
            raise _refusal(problem.status, bytes(problem.response().body), problem.headers) from None
        return _Kept(raw)


class _Kept(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow is untyped
    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.headers = headers


def _command(descriptor: Any) -> dict[str, Any]:
    """Where the shard belongs, its numbers as texts or as they were given; the application judges them."""
    if descriptor.descriptor_type is flight.DescriptorType.PATH:
        texts = [part.decode("utf-8", "replace") for part in descriptor.path]
        found: Any = dict(zip(("run", "step", "shard"), texts, strict=False)) if len(texts) == 3 else None
    else:
        try:
            found = json.loads(descriptor.command or b"")
        except (ValueError, RecursionError):
            found = None
    if not isinstance(found, dict) or not {"run", "step", "shard"} <= found.keys() <= _NAMES:
        raise Problem(
            422, "descriptor", f"the descriptor must be run/step/shard or JSON of {', '.join(sorted(_NAMES))}"
        )
    command = {name: value for name, value in found.items() if value is not None}
    for name, value in command.items():
        if type(value) is not int and (type(value) is not str or name == "bytes"):
            raise Problem(422, "descriptor", f"'{name}' must be a whole number or a text", column=name)
    checked_run(str(command["run"]))
    for name in ("step", "shard"):
        text = str(command.get(name, ""))
        if not (text.isascii() and text.isdigit()):
            raise Problem(422, "descriptor", f"'{name}' must be a whole number of digits only", column=name)
    return command


def _scope(command: Mapping[str, Any], headers: Iterable[tuple[bytes, bytes]], peer: str) -> dict[str, Any]:
    """What uvicorn would have made of the same shard by HTTP."""
    path = f"/v1/runs/{command['run']}/updates/{command['step']}/shards/{command['shard']}"
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    told = {b"content-length": command.get("bytes"), b"triage-client-dropped": command.get("dropped")}
    named = [(name, str(value).encode("ascii", "replace")) for name, value in told.items() if value is not None]
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "2", "method": "PUT", "scheme": "http",
        "path": path, "raw_path": path.encode(), "root_path": "", "state": {}, "server": None,
        "query_string": urlencode({name: command[name] for name in _QUERY if name in command}).encode(),
        "client": (host.strip("[]"), int(port) if port.isdigit() else 0),
        "headers": [(b"host", b"localhost"), (b"content-type", STREAM_MIME.encode()), *named, *headers],
    }  # fmt: skip


def _refusal(status: int, body: bytes, headers: Mapping[str, str]) -> Exception:
    problem = json.loads(body or b"{}")
    detail = str(problem.get("detail", "the monitor did not answer"))[:_SENTENCE]
    retry_after = {name.lower(): value for name, value in headers.items()}.get("retry-after")
    problem |= {"status": status, "detail": detail, "retry_after": retry_after}
    kind = _ERRORS.get(status, flight.FlightServerError)
    words = f"{status} {problem.get('reason', '')}: {detail}"
    refusal: Exception = kind(words, extra_info=json.dumps(problem).encode())
    return refusal


def _is_body(schema: pa.Schema) -> bool:
    return bool(schema.names == ["body"] and schema.field(0).type == pa.binary())


def _bytes_of(batch: pa.RecordBatch) -> memoryview:
    """The values of the one column end to end, without a copy."""
    batch.validate()
    column = batch.column(0)
    if column.null_count:
        raise Problem(422, "null", "the stream holds a null", column="body")
    _, ends, data = column.buffers()
    if not len(column) or data is None:
        return memoryview(b"")
    first, last = np.frombuffer(ends, np.int32)[[column.offset, column.offset + len(column)]]
    return memoryview(data).cast("B")[first:last]


def _give(wanted: asyncio.Future[Message], came: Message | Problem) -> None:
    if wanted.done():
        return  # it was timed out, or its sender given up
    if isinstance(came, Problem):
        wanted.set_exception(came)
    else:
        wanted.set_result(came)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def _certificates(tls: TlsSettings) -> dict[str, Any]:
    if not tls.cert_file:
        return {}
    certificate = Path(tls.cert_file).read_bytes()
    key = Path(tls.key_file).read_bytes() if tls.key_file else certificate
    mutual = {"verify_client": True, "root_certificates": Path(tls.client_ca_file).read_bytes()}
    return {"tls_certificates": [(certificate, key)], **(mutual if tls.client_ca_file else {})}
