"""What a reader waits for ends when the reader leaves: whoever comes again and again must not pile up here."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from triage_monitor.service.problems import Problem

T = TypeVar("T")


async def unless_left(request: Request, waiting: Coroutine[Any, Any, T]) -> T:
    """What is waited for; Problem 400, which nobody reads, once the sender of a request without a body has left."""
    answer, left = asyncio.create_task(waiting), asyncio.create_task(_left(request))
    try:
        await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise Problem(400, "disconnected", "the reader left while it waited")
        return answer.result()
    finally:
        answer.cancel()
        left.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
