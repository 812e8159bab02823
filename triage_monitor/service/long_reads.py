"""Reads of long histories, in threads of their own: all of a run's series take seconds and tens of megabytes.

A few run at a time, so that shards, scrapes and probes, which share the event loop's threads, wait for none of them;
some more wait for their turn, and beyond that a reader is told to come again. The answer is written out there too, in
pieces: the interpreter gives no other thread a turn within one call that writes all of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from triage_monitor.service.problems import busy

THREADS = 2
MAX_READS = 64


class LongReads:
    """One for each application; `run` on the event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="read")
        self.under_way = 0

    async def run(self, answer: Callable[[], bytes]) -> bytes:
        """What `answer` gives. Problem 503 when `MAX_READS` are under way."""
        if self.under_way >= MAX_READS:
            raise busy("busy", f"{MAX_READS} reads of histories are under way already; send again")
        self.under_way += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, answer)
        finally:
            self.under_way -= 1

    def close(self) -> None:
        """Finishes those that have begun."""
        self._threads.shutdown(cancel_futures=True)


def listed(name: str, items: Iterable[Mapping[str, Any]]) -> bytes:
    """A JSON object that holds one list."""
    written = (json.dumps(item, ensure_ascii=False, allow_nan=False, separators=(",", ":")) for item in items)
    return b"".join((b'{"%b":[' % name.encode(), ",".join(written).encode(), b"]}"))
