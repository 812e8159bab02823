"""What `bench ingest` puts on a server: shards from several connections at once, slow peers, and the look at it.

Every sender is a thread with one connection and the standard library's HTTP client, the same for the sidecar and for
the sink beside it. Latency is from the first byte sent to the last one of the answer.
"""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from triage_monitor.errors import ConfigError

MIME = {"Content-Type": "application/vnd.apache.arrow.stream"}
GONE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Shot:
    """One shard to send."""

    path: str
    body: bytes


@dataclass(slots=True)
class Outcome:
    """What sending a list came to; latencies in seconds, of the answers that were as wanted."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    body_bytes: int = 0
    statuses: dict[int, int] = field(default_factory=dict)

    def quantile(self, q: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")


@contextmanager
def server(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Address and process of a module of this package; killed at the end if it still runs."""
    process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline() if process.stdout is not None else ""
        if "http" not in line:
            raise ConfigError(f"{arguments[0]} did not start")
        yield line.split()[-1], process
    finally:
        process.kill()
        process.communicate()


def connect(address: str) -> http.client.HTTPConnection:
    parts = urlsplit(address)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)


def send_all(address: str, shots: Sequence[Shot], senders: int) -> Outcome:
    """Sends them in order from `senders` connections at once."""
    outcome, lock = Outcome(), threading.Lock()
    waiting = iter(shots)

    def send() -> None:
        link = connect(address)
        while True:
            with lock:
                shot = next(waiting, None)
            if shot is None:
                break
            started = time.perf_counter()
            link.request("PUT", shot.path, shot.body, MIME)
            answer = link.getresponse()
            answer.read()
            took = time.perf_counter() - started
            with lock:
                outcome.statuses[answer.status] = outcome.statuses.get(answer.status, 0) + 1
                outcome.body_bytes += len(shot.body)
                if answer.status == 201:
                    outcome.latencies.append(took)
        link.close()

    threads = [threading.Thread(target=send) for _ in range(senders)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcome.seconds = time.perf_counter() - started
    return outcome


def get_seconds(address: str, path: str, times: int) -> list[float]:
    """How long each of so many GETs took."""
    link, found = connect(address), []
    for _ in range(times):
        started = time.perf_counter()
        link.request("GET", path)
        link.getresponse().read()
        found.append(time.perf_counter() - started)
    link.close()
    return found


@contextmanager
def asking(address: str, path: str, every: float = 0.1) -> Iterator[list[float]]:
    """Asks for a path again and again meanwhile; the list grows by how long each answer took."""
    over, found = threading.Event(), list[float]()

    def ask() -> None:
        while not over.wait(every):
            found.extend(get_seconds(address, path, 1))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


@contextmanager
def slow_peers(address: str, writers: int, readers: int, declared_bytes: int) -> Iterator[None]:
    """Senders that have declared a body and do not send it, and readers that do not read their answer."""
    parts = urlsplit(address)
    head = f"HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: {MIME['Content-Type']}\r\n"
    with ExitStack() as stack:
        for number in range(writers + readers):
            peer = stack.enter_context(socket.create_connection((parts.hostname or "", parts.port or 0), 30))
            if number < writers:
                place = f"PUT /v1/runs/slow/updates/{number}/shards/0 {head}Content-Length: {declared_bytes}\r\n\r\n"
                peer.sendall(place.encode() + b"\xff")
            else:
                peer.sendall(f"GET /metrics {head}\r\n".encode() * 20)
        yield


def refusal(address: str, shot: Shot) -> tuple[int, str | None]:
    """Status and Retry-After of one shard."""
    link = connect(address)
    link.request("PUT", shot.path, shot.body, MIME)
    answer = link.getresponse()
    answer.read()
    link.close()
    return answer.status, answer.headers.get("retry-after")


def resident_bytes(process: subprocess.Popen[str]) -> int | None:
    """What the process holds in memory; None where /proc does not tell."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def in_background(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread
