"""The monitor's HTTP calls as a trainer makes them: every one ends by its deadline, whatever the server does.

httpx bounds each read, so a server that sends a byte a second never trips it. `DeadlineBackend` bounds the whole call:
each socket operation gets what is left of it. Answers are read up to 64 KiB
unless a Link is told otherwise. Proxies of the environment are not used.

One `Link` serves one thread and holds one connection; `abort` may come from any thread.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  resolving a host name loads it otherwise, in a thread: see Route.rehearse
import json
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

import httpcore
import httpx

from triage_monitor.errors import ConfigError
from triage_monitor.trainer.answers import Answer, Verdict, read_answer

ORDINARY_ANSWER = 64 * 1024
_WRITE_SLICE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: to connect, of silence within an answer, and for a whole call."""

    connect_timeout: float
    timeout: float
    call_timeout: float

    def __post_init__(self) -> None:
        for name in ("connect_timeout", "timeout", "call_timeout"):
            seconds = getattr(self, name)
            if not isinstance(seconds, int | float) or not 0 < seconds <= 86_400:
                raise ConfigError(f"{name} must be a number of seconds above 0, got {seconds!r}")


def checked_url(url: str) -> str:
    """The base URL without its trailing slash; ConfigError says what is wrong with it."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        shown = "url" if "@" in str(url) else f"url {url!r}"  # it may hold a password
        raise ConfigError(f"{shown} cannot be read: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"url {url!r} must look like http://host:8750")
    if parsed.userinfo:
        raise ConfigError("url must not hold credentials; pass token=")
    if parsed.port is not None and not 1 <= parsed.port <= 65_535:
        raise ConfigError(f"url {url!r} must have a port from 1 to 65535")
    if parsed.query or parsed.fragment:
        raise ConfigError(f"url {url!r} must have no query and no fragment")
    return str(parsed).rstrip("/")


class _DeadlineStream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream, backend: DeadlineBackend) -> None:
        self._inner = inner
        self._backend = backend

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, self._backend.remaining(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # In slices: the deadline is looked at between them, and httpcore would copy the rest after each send.
        view = memoryview(buffer)
        for start in range(0, len(view), _WRITE_SLICE):
            left = self._backend.remaining(timeout, httpcore.WriteTimeout)
            self._inner.write(bytes(view[start : start + _WRITE_SLICE]), left)

    def close(self) -> None:
        self._backend.streams.discard(self)
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = self._backend.remaining(timeout, httpcore.ConnectTimeout)
        self._inner = self._inner.start_tls(ssl_context, server_hostname, left)
        return self

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class DeadlineBackend(httpcore.NetworkBackend):
    """httpcore's sockets under one deadline per call."""

    def __init__(self) -> None:
        self._inner = httpcore.SyncBackend()
        self.deadline = 0.0
        self.aborted = False
        self.streams: set[_DeadlineStream] = set()

    def remaining(self, timeout: float | None, error: type[Exception]) -> float:
        left = self.deadline - monotonic()
        if left <= 0 or self.aborted:
            raise error("the call's time is over")
        return left if timeout is None else min(timeout, left)

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left = self.remaining(timeout, httpcore.ConnectTimeout)
        stream = _DeadlineStream(self._inner.connect_tcp(host, port, left, local_address, socket_options), self)
        self.streams.add(stream)
        return stream

    def abort(self) -> None:
        """Ends the call in progress from another thread, and every later one."""
        self.aborted = True
        for stream in list(self.streams):
            with suppress(OSError, AttributeError):
                socket.socket.shutdown(stream.get_extra_info("socket"), socket.SHUT_RDWR)

    def close_in_child(self) -> None:
        """Closes a forked child's copies of the descriptors; the parent's connections live on."""
        for stream in list(self.streams):
            with suppress(OSError, AttributeError):
                socket.socket.close(stream.get_extra_info("socket"))


class _Body(httpx.SyncByteStream):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __iter__(self) -> Iterator[bytes]:
        yield from self._inner

    def close(self) -> None:
        self._inner.close()


class _Transport(httpx.BaseTransport):
    """httpx over one httpcore connection that uses our backend (httpx's own transport takes no backend)."""

    def __init__(self, backend: DeadlineBackend, ssl_context: ssl.SSLContext | None) -> None:
        self._pool = httpcore.ConnectionPool(ssl_context=ssl_context, max_connections=1, network_backend=backend)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        answer = self._pool.handle_request(
            httpcore.Request(
                request.method,
                httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx.Response(answer.status, headers=answer.headers, stream=_Body(answer.stream))

    def close(self) -> None:
        self._pool.close()


class Link:
    """One connection to the monitor, for one thread."""

    def __init__(
        self,
        url: str,
        token: str | None,
        timeouts: Timeouts,
        ssl_context: ssl.SSLContext | None = None,
        answer_bytes: int = ORDINARY_ANSWER,
    ) -> None:
        self._timeouts = timeouts
        self._answer_bytes = answer_bytes
        self.backend = DeadlineBackend()
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if ssl_context is None and url.startswith("https"):
            ssl_context = httpx.create_ssl_context(trust_env=False)
        self._client = httpx.Client(
            base_url=url, headers=headers, transport=_Transport(self.backend, ssl_context), trust_env=False
        )

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        patience: float = 0.0,
    ) -> Answer:
        """One request. `patience` is how long the server may keep it waiting on purpose (the long poll)."""
        limits = self._timeouts
        self.backend.deadline = monotonic() + limits.call_timeout + patience
        timeout = httpx.Timeout(limits.timeout + patience, connect=limits.connect_timeout)
        try:
            with self._client.stream(
                method, path, params=query, content=content, headers=headers, timeout=timeout
            ) as response:
                return read_answer(response.status_code, response.headers, _read(response, self._answer_bytes))
        except (httpcore.TimeoutException, httpx.TimeoutException) as error:
            return Answer(Verdict.AGAIN, "timeout", f"{type(error).__name__}: {error or 'no answer in time'}")
        except (httpcore.NetworkError, httpx.NetworkError) as error:
            return Answer(Verdict.AGAIN, "unreachable", f"{type(error).__name__}: {error}")
        except (httpcore.ProtocolError, httpx.HTTPError, _TooLong, ValueError, OSError) as error:
            return Answer(Verdict.AGAIN, "garbage", f"{type(error).__name__}: {error}")

    def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        return self.call("POST", path, content=json.dumps(body).encode(), headers={"Content-Type": "application/json"})

    def abort(self) -> None:
        self.backend.abort()

    def close(self) -> None:
        self._client.close()


class _TooLong(Exception):
    """The answer is longer than any answer of ours."""


def _read(response: httpx.Response, longest: int) -> bytes:
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > longest:
            raise _TooLong(f"more than {longest} bytes")
    return bytes(body)
