"""Sends inputs to a served sidecar as an outsider would, and keeps what the pass mark is measured by.

Every answer's status and form, the slowest answer, the slowest `/healthz` asked meanwhile on another connection, the
slowest answer of an idle server beside it (how slow the machine itself is), and the peak memory of the process.
"""

from __future__ import annotations

import http.client
import json
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from service.served_process import ServedProcess

INTENDED = (503, 507)
PROBLEM_FIELDS = {"type", "title", "status", "detail", "reason"}


@dataclass
class Findings:
    """What was seen; `wrong` holds one line for every answer that should not have been given."""

    sent: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    slowest_input: str = ""
    wrong: list[str] = field(default_factory=list)


class Wire:
    """One connection, opened anew when the server closes it."""

    def __init__(self, address: str, timeout: float = 20.0) -> None:
        parts = urlsplit(address)
        self._place = (parts.hostname or "", parts.port)
        self._timeout = timeout
        self._http: http.client.HTTPConnection | None = None

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, str, bytes]:
        """Status, media type, content."""
        for turn in range(2):
            if self._http is None:
                self._http = http.client.HTTPConnection(*self._place, timeout=self._timeout)
            try:
                self._http.request(method, path, body, dict(headers or {}))
                answer = self._http.getresponse()
                return answer.status, answer.headers.get("content-type", ""), answer.read()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self.close()
                if turn:
                    raise
        raise AssertionError("unreachable")

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None


class Fuzz:
    """Sends to one server and judges its answers."""

    def __init__(self, server: ServedProcess) -> None:
        self.server = server
        self.found = Findings()
        self.accepted: set[tuple[str, int, int, int]] = set()
        self.accepted_halves: set[tuple[str, int, int, str, int]] = set()
        self._wire = Wire(server.address)

    def close(self) -> None:
        self._wire.close()

    def send(
        self, label: str, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> int:
        started = time.perf_counter()
        try:
            status, media, content = self._wire.ask(method, path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            self.found.wrong.append(f"{label}: {type(error).__name__} {error}")
            self._wire.close()
            return 0
        took = time.perf_counter() - started
        found = self.found
        found.sent += 1
        found.statuses[status] += 1
        if took > found.slowest:
            found.slowest, found.slowest_input = took, label
        if status >= 500 and status not in INTENDED:
            found.wrong.append(f"{label}: {status} {content[:300]!r}")
        elif status >= 400 and method != "HEAD":
            self._check_problem(label, status, media, content)
        elif "json" in media and method != "HEAD":
            self._check_json(label, content)
        return status

    def put(self, label: str, run: str, step: int, body: bytes, media: str, query: str = "") -> int:
        status = self.send(
            label, "PUT", f"/v1/runs/{run}/updates/{step}/shards/0{query}", body, {"Content-Type": media}
        )
        if status == 201:
            self.accepted.add((run, 0, step, 0))
        return status

    def put_half(self, label: str, side: str, run: str, step: int, body: bytes, media: str) -> int:
        path = f"/v1/runs/{run}/updates/{step}/shards/0?side={side}"
        status = self.send(label, "PUT", path, body, {"Content-Type": media})
        if status == 201:
            self.accepted_halves.add((run, 0, step, side, 0))
        return status

    def _check_problem(self, label: str, status: int, media: str, content: bytes) -> None:
        try:
            problem = json.loads(content)
            sound = media == "application/problem+json" and problem.keys() >= PROBLEM_FIELDS
            if not (sound and problem["status"] == status and problem["detail"].strip()):
                raise ValueError
            self.found.reasons[problem["reason"]] += 1
        except (ValueError, AttributeError):
            self.found.wrong.append(f"{label}: {status} is no problem document: {media} {content[:200]!r}")

    def _check_json(self, label: str, content: bytes) -> None:
        try:
            json.loads(content, parse_constant=_refused)
        except ValueError as error:
            self.found.wrong.append(f"{label}: not strict JSON: {error}")


def _refused(name: str) -> float:
    raise ValueError(name)


@contextmanager
def probing(address: str, path: str = "/healthz") -> Iterator[list[float]]:
    """Asks again and again meanwhile; the list grows by how long each answer took."""
    times: list[float] = []
    over = threading.Event()

    def ask() -> None:
        wire = Wire(address)
        while not over.wait(0.02):
            started = time.perf_counter()
            with suppress(OSError, http.client.HTTPException):
                wire.ask("GET", path)
                times.append(time.perf_counter() - started)
        wire.close()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield times
    finally:
        over.set()
        thread.join()


def peak_memory(server: ServedProcess) -> int:
    """Bytes the process held at most since `forget_peak` (or its start)."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


def forget_peak(server: ServedProcess) -> int:
    """What it holds now; the peak is counted from here."""
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
    return peak_memory(server)


def stored_keys(data_dir: Path, table: str = "shards", *columns: str) -> set[tuple[object, ...]]:
    """Read from the file of a server that has ended."""
    with sqlite3.connect(data_dir / "triage.db") as db:
        keys = set(db.execute(f"SELECT {', '.join(columns or ('run', 'attempt', 'step', 'shard'))} FROM {table}"))
    db.close()
    return keys
