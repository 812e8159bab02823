"""Arrow Flight as a stranger would call it: a DoPut by hand, and the server process that takes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight
from service.served_process import ServedProcess, served

SCHEMA = pa.schema([("body", pa.binary())])


@dataclass(frozen=True)
class Said:
    """What came back: the answer's document, or the refusal's with the kind of error it came as."""

    document: dict[str, Any]
    error: str | None = None


@contextmanager
def with_flight(data_dir: Path, env: Mapping[str, str] | None = None) -> Iterator[tuple[ServedProcess, str]]:
    """A served process and its Flight address, which it prints on its second line."""
    with served(data_dir, env, "--flight-port", "0") as server:
        assert server.process.stdout is not None
        yield server, server.process.stdout.readline().split()[-1]


@contextmanager
def opened(
    url: str, command: object, token: str | None = None, schema: pa.Schema = SCHEMA
) -> Iterator[tuple[Any, Any]]:
    """An open call's writer and reader."""
    headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
    options = flight.FlightCallOptions(timeout=60, headers=headers)
    with flight.FlightClient(url, generic_options=[("grpc.use_local_subchannel_pool", 1)]) as client:
        descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
        if isinstance(command, list):
            descriptor = flight.FlightDescriptor.for_path(*command)
        writer, reader = client.do_put(descriptor, schema, options)
        try:
            yield writer, reader
        finally:
            with suppress(pa.ArrowException, OSError):  # it was refused, which the caller has seen
                writer.close()


def a_batch(piece: bytes) -> pa.RecordBatch:
    return pa.record_batch([pa.array([piece], pa.binary())], schema=SCHEMA)


def put(url: str, command: object, body: bytes, token: str | None = None, pieces: int = 3) -> Said:
    """Sends the body in so many pieces."""
    size = -(-len(body) // pieces)
    try:
        with opened(url, command, token) as (writer, reader):
            for start in range(0, len(body), size):
                writer.write_batch(a_batch(body[start : start + size]))
            writer.done_writing()
            answer = reader.read()
            writer.close()
            return Said(json.loads(answer.to_pybytes()))
    except flight.FlightError as error:
        return refused(error)


def refused(error: flight.FlightError) -> Said:
    return Said(json.loads(error.extra_info), type(error).__name__)


def place(run: str, step: int, **more: Any) -> dict[str, Any]:
    return {"run": run, "step": step, "shard": 0, **more}
