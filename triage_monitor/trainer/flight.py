"""Raw updates by Arrow Flight, for a `Monitor` with `flight_url`: same bodies, same keys, same answers as by HTTP.

One DoPut an update: the body in pieces of 2 MiB as a binary column; the answer is the JSON of HTTP's, after the update
is durable, or the problem document of a Flight error. Everything else goes by HTTP. Each call has the monitor's
`call_timeout` as its deadline and a connection of its own making: what failed once is made anew for the next try.
Proxies of the environment are not used; TLS is told by TRIAGE_CA_FILE, TRIAGE_CERT_FILE and TRIAGE_KEY_FILE.

gRPC does not outlive a fork: a process forked after its first use sends by HTTP. A call cannot be cut short; a closed
monitor leaves the one under way to its deadline, in its daemon thread.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from triage_monitor.errors import ConfigError
from triage_monitor.trainer.answers import Answer, Verdict, read_answer
from triage_monitor.trainer.transport import ORDINARY_ANSWER, Timeouts

PIECE_BYTES = 2 << 20
SCHEMA = pa.schema([pa.field("body", pa.binary(), nullable=False)])
_URL = re.compile(r"grpc(\+tcp|\+tls)?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})/?")
_first_process = 0  # where gRPC was used first


class FlightLink:
    """The way of one monitor's raw updates; `put` is the sending thread's. Raises ConfigError when made."""

    def __init__(self, url: object, token: str | None, timeouts: Timeouts, env: Mapping[str, str]) -> None:
        found = _URL.fullmatch(url) if isinstance(url, str) else None
        if found is None or not 1 <= int(found[3]) <= 65_535:
            shown = "flight_url" if "@" in str(url) else f"flight_url {url!r}"  # it may hold a password
            raise ConfigError(f"{shown} must look like grpc://host:8751, or grpc+tls://")
        self._url = found[0].rstrip("/")
        self._headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        self._seconds = float(timeouts.call_timeout)
        self._arguments: dict[str, Any] = {
            "generic_options": [
                ("grpc.enable_http_proxy", 0),
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.min_reconnect_backoff_ms", int(1000 * timeouts.connect_timeout)),
            ],
            **(_certificates(env) if found[1] == "+tls" else {}),
        }
        self._client: Any = None

    @property
    def is_usable(self) -> bool:
        return _first_process in (0, os.getpid())

    def put(self, command: Mapping[str, str | int], body: bytes) -> Answer:
        """One raw update; never raises for what the other side does."""
        try:
            text = self._put(flight.FlightDescriptor.for_command(json.dumps(command).encode()), body)
        except (pa.ArrowException, OSError, ValueError) as error:
            self.close()
            return _failed(error)
        status = 200 if b'"status":"duplicate"' in text else 201
        return read_answer(status, {}, text)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(pa.ArrowException, OSError):
                client.close()

    def _put(self, descriptor: Any, body: bytes) -> bytes:
        global _first_process
        _first_process = os.getpid()
        if self._client is None:
            self._client = flight.FlightClient(self._url, **self._arguments)
        options = flight.FlightCallOptions(timeout=self._seconds, headers=self._headers)
        writer, reader = self._client.do_put(descriptor, SCHEMA, options)
        try:
            for piece in _pieces(body):
                writer.write_batch(piece)
            writer.done_writing()
            answer = reader.read()
        except (pa.ArrowException, OSError):
            with suppress(pa.ArrowException, OSError):
                writer.close()
            raise
        writer.close()  # raises what the other side refused with
        text = b"" if answer is None else answer.to_pybytes()
        if len(text) > ORDINARY_ANSWER:
            raise ValueError(f"an answer of {len(text)} bytes")
        return text


def _pieces(body: bytes) -> Iterator[pa.RecordBatch]:
    """The body as binary values, without a copy of it."""
    whole = pa.py_buffer(body)
    for start in range(0, len(body), PIECE_BYTES):
        data = whole.slice(start, min(PIECE_BYTES, len(body) - start))
        ends = pa.array([0, data.size], pa.int32()).buffers()[1]
        value = pa.Array.from_buffers(pa.binary(), 1, [None, ends, data])
        yield pa.RecordBatch.from_arrays([value], schema=SCHEMA)


def _failed(error: Exception) -> Answer:
    """What HTTP would have said: the problem document where the error carries one."""
    document = getattr(error, "extra_info", b"") or b""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        problem = json.loads(document)
        retry_after = problem.get("retry_after")
        return read_answer(int(problem["status"]), {"retry-after": str(retry_after or "")}, document)
    detail = f"{type(error).__name__}: {str(error).partition('. Detail:')[0][:300]}"
    kinds = ((flight.FlightTimedOutError, "timeout"), (flight.FlightUnavailableError, "unreachable"))
    return Answer(Verdict.AGAIN, next((name for kind, name in kinds if isinstance(error, kind)), "garbage"), detail)


def _certificates(env: Mapping[str, str]) -> dict[str, bytes]:
    """The files that the environment names; without any, the authorities that gRPC knows."""
    authority, certificate, key = (env.get(f"TRIAGE_{name}_FILE") for name in ("CA", "CERT", "KEY"))
    named = {"tls_root_certs": authority, "cert_chain": certificate, "private_key": key or certificate}
    try:
        return {name: Path(path).read_bytes() for name, path in named.items() if path}
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be used for TLS: {error.strerror}") from None
