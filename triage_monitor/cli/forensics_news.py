"""When to look at a run again: as soon as the server tells of something, and now and then even if it does not.

The server's events only say that there is news; what it is, `watch` asks for. A thread reads the stream; where there is
none (an old server, a proxy that holds events back, no stream left), `watch` polls as if this did not exist.
"""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING

from triage_monitor.cli.operator import access, run_path

if TYPE_CHECKING:
    import httpx

SILENCE_SECONDS = 40.0  # the server says something every 15
QUIET_LOOKS = 10.0  # times as long between looks while events come
GATHER_SECONDS = 0.2  # several events in a row are one look


class News:
    """`wait` returns when it is time for another look."""

    def __init__(self, url: str, run: str, every: float) -> None:
        self._address = url.rstrip("/") + run_path(run) + "/events"
        self._every = every
        self._came = threading.Event()
        self._heard_at: float | None = None
        threading.Thread(target=self._listen, name="triage-watch-events", daemon=True).start()

    def wait(self) -> None:
        live = self._heard_at is not None and monotonic() - self._heard_at < SILENCE_SECONDS
        if self._came.wait(self._every * QUIET_LOOKS if live else self._every):
            threading.Event().wait(min(GATHER_SECONDS, self._every))
        self._came.clear()

    def _listen(self) -> None:
        import httpx

        bearer, context = access()
        timeout = httpx.Timeout(SILENCE_SECONDS, connect=10.0)
        with httpx.Client(headers=bearer, verify=context, timeout=timeout, trust_env=False) as http:
            while True:
                try:
                    with http.stream("GET", self._address) as answer:
                        self._read(answer)
                except (httpx.HTTPError, httpx.InvalidURL):
                    self._heard_at = None
                threading.Event().wait(self._every)

    def _read(self, answer: httpx.Response) -> None:
        if answer.is_error or "event-stream" not in answer.headers.get("content-type", ""):
            return
        self._came.set()  # whatever happened before the stream stood
        for line in answer.iter_lines():
            self._heard_at = monotonic()
            if line.startswith("event:"):
                self._came.set()
        self._heard_at = None
