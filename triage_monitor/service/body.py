"""Request bodies under bounds: size, silence, total time, and memory over all requests together.

A body is refused by its declared length before a byte is read, or at the byte that exceeds the limit; one that stalls
is timed out. Memory is promised from a `ByteBudget` first: a request that would exceed it is answered 503 at once
instead of waiting, so a full sidecar says so while it is still small.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from triage_monitor.service.problems import Problem, busy

STEP_BYTES = 1 << 20
MAX_JSON_BYTES = 1 << 18
MAX_JSON_BODIES = 128
JSON_SECONDS = 10.0
M = TypeVar("M", bound=BaseModel)
_CLOSE = {"Connection": "close"}


class ByteBudget:
    """Bytes that all requests may hold together, and how many requests may be inside."""

    def __init__(self, max_bytes: int, max_requests: int) -> None:
        self.max_bytes = max_bytes
        self.max_requests = max_requests
        self.used_bytes = 0
        self.requests = 0

    def share(self) -> Share:
        return Share(self)

    @contextmanager
    def request(self) -> Iterator[Share]:
        """A place for one request; raises the 503 problem when all are taken."""
        if self.requests >= self.max_requests:
            raise busy("busy", f"{self.requests} requests are being taken in already; send again")
        self.requests += 1
        share = self.share()
        try:
            yield share
        finally:
            self.requests -= 1
            self.used_bytes -= share.held_bytes


class Share:
    """What one request holds of the budget."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.held_bytes = 0

    def grow(self, held_bytes: int) -> None:
        """Raises the 503 problem when the budget cannot give `held_bytes` in all."""
        more = held_bytes - self.held_bytes
        if self._budget.used_bytes + more > self._budget.max_bytes:
            raise busy("busy", f"{self._budget.used_bytes} bytes are being taken in already; send again")
        self._budget.used_bytes += more
        self.held_bytes = held_bytes


async def read_body(
    request: Request,
    share: Share,
    *,
    max_bytes: int,
    stall_seconds: float,
    total_seconds: float,
    seen: Callable[[memoryview], None] | None = None,
) -> memoryview:
    """The whole body. Raises Problem 413, 408, 400 (shorter than declared) or 503.

    `seen` is told what there is of it, after every piece; what it was told stays as it is.
    """
    declared = _declared_length(request)
    if declared is not None and declared > max_bytes:
        raise _too_large(declared, max_bytes)
    share.grow(min(STEP_BYTES, max_bytes) if declared is None else declared)
    buffer = _room(share.held_bytes)
    size = 0
    time = asyncio.get_running_loop().time
    until = time() + total_seconds
    try:
        async with asyncio.timeout_at(min(until, time() + stall_seconds)) as patience:
            async for chunk in request.stream():
                end = size + len(chunk)
                if end > max_bytes:
                    raise _too_large(end, max_bytes)
                if end > len(buffer):
                    share.grow(min(max(2 * len(buffer), end), max_bytes))
                    larger = _room(share.held_bytes)
                    larger[:size] = buffer[:size]
                    buffer = larger
                buffer[size:end] = chunk
                size = end
                if seen is not None:
                    seen(buffer[:size])
                patience.reschedule(min(until, time() + stall_seconds))
    except TimeoutError:
        why = f"not complete after {total_seconds:g} s" if time() >= until else f"silent for {stall_seconds:g} s"
        raise Problem(408, "body_timeout", f"the body was {why}, at byte {size}", headers=_CLOSE) from None
    except ClientDisconnect:
        raise Problem(400, "disconnected", f"the sender left at byte {size}") from None
    return buffer[:size]


def _room(size: int) -> memoryview:
    """Memory that the machine gives only as it is written: a body that is declared and not sent takes none."""
    return np.empty(size, np.uint8).data


def small_bodies() -> ByteBudget:
    """For all JSON requests of one application together."""
    return ByteBudget(MAX_JSON_BODIES * MAX_JSON_BYTES, MAX_JSON_BODIES)


async def read_small(request: Request, budget: ByteBudget) -> bytes:
    """The body of a JSON request. Raises Problem 413, 408, 400 or 503."""
    with budget.request() as share:
        return bytes(
            await read_body(
                request,
                share,
                max_bytes=MAX_JSON_BYTES,
                stall_seconds=JSON_SECONDS,
                total_seconds=JSON_SECONDS,
            )
        )


async def read_model(request: Request, kind: type[M]) -> M:
    """A small JSON object as a `kind`; Problem 400, 413, 422 naming the field, or 503. The application's state holds
    the budget."""
    text = await read_small(request, request.app.state.small_bodies)
    try:
        data = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_once)
        # Half a surrogate pair and 1e999 are refused here: no store takes them.
        json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise Problem(400, "json", f"the body is no JSON: {str(error)[:200]}") from None
    try:
        return kind.model_validate(data, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        column = ".".join(str(part) for part in first["loc"]) or None
        raise Problem(422, "bad_request", f"{column or 'body'}: {first['msg']}", column=column) from None


def json_body(kind: type[BaseModel]) -> dict[str, Any]:
    """The request body for the OpenAPI document: bodies are read by hand, under a limit."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": kind.model_json_schema()}}}}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A name that is there twice could be read in two ways."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"'{twice[:100]}' is there more than once")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _declared_length(request: Request) -> int | None:
    text = request.headers.get("content-length")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Problem(400, "content_length", "Content-Length is not a number", headers=_CLOSE)
    return int(text)


def _too_large(size: int, limit: int) -> Problem:
    return Problem(
        413,
        "too_large",
        f"the body has at least {size} bytes and at most {limit} are taken; send the update in more shards",
        limit_bytes=limit,
    )
