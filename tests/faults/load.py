"""Load on a served sidecar whose every value is known beforehand, and the check that none of it is lost or wrong."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
from service.live_server import STREAM, masses
from service.served_process import ServedProcess

SENDERS = 3
RUN = "run"


def parts(step: int) -> tuple[int, int]:
    return step % 7 + 1, step % 5 + 1


class Load:
    """Senders that go on until their server dies. `acknowledged` holds the steps whose 201 or 200 arrived."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self.next_step = 0
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, address: str) -> None:
        self._threads = [threading.Thread(target=self._send, args=(address,)) for _ in range(SENDERS)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _send(self, address: str) -> None:
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as http:
            while True:
                with self._lock:
                    step, self.next_step = self.next_step, self.next_step + 1
                path = f"/v1/runs/{RUN}/updates/{step}/shards/0"
                try:
                    answer = http.put(path, content=masses(*parts(step)), headers=STREAM)
                except httpx.HTTPError:
                    return
                assert answer.status_code == 201, answer.text
                self.acknowledged.add(step)


def lost_and_wrong(server: ServedProcess, acknowledged: set[int]) -> tuple[list[int], list[int]]:
    """Acknowledged steps that are not there, and steps with another value than was sent."""
    found = server.http.get(f"/v1/runs/{RUN}/series", params={"name": "rho_asym"}).json()["series"][0]
    values = dict(zip(found["steps"], found["values"], strict=True))
    wrong = [step for step, value in values.items() if value != parts(step)[0] / parts(step)[1]]
    return sorted(acknowledged - values.keys()), wrong


def total_size(directory: Path) -> int:
    """Of the log: it grows while a commit is written."""
    try:
        return (directory / "triage.db-wal").stat().st_size
    except FileNotFoundError:
        return 0
