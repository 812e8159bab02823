"""kill -9 at random moments, from outside: only HTTP and the data directory. Nothing acknowledged may be lost or wrong.

Moments: under load at a random time; the instant the log grows (inside a commit); while a recording is being written;
while old updates are thinned; during a start. `TRIAGE_FAULT_KILLS` sets how many the long form does (500).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.load import Load, lost_and_wrong, total_size
from service.served_process import ServedProcess, served

ENV = {"TRIAGE_STORE__RETAIN_RAW": "true", "TRIAGE_STORE__KEEP_SHARDS": "25", "TRIAGE_STORE__KEEP_SUMMARIES": "30"}
Moment = Callable[[Path, random.Random], None]


def _any_time(_: Path, rng: random.Random) -> None:
    threading.Event().wait(rng.uniform(0, 1.0))


def _inside_a_commit(data_dir: Path, rng: random.Random) -> None:
    _any_time(data_dir, random.Random(rng.randrange(1000)))
    size, until = total_size(data_dir), time.monotonic() + 5
    while total_size(data_dir) == size and time.monotonic() < until:
        pass


def _while_recording(data_dir: Path, rng: random.Random) -> None:
    _any_time(data_dir, rng)
    until = time.monotonic() + 5
    while time.monotonic() < until and not any((data_dir / "recordings").rglob(".*.tmp")):
        pass


MOMENTS: tuple[Moment, ...] = (_any_time, _inside_a_commit, _while_recording)


def _kill_under_load(data_dir: Path, load: Load, moment: Moment, rng: random.Random) -> None:
    with served(data_dir, ENV) as server:
        before = len(load.acknowledged)
        load.start(server.address)
        until = time.monotonic() + 60
        while len(load.acknowledged) < before + 3 and time.monotonic() < until:
            threading.Event().wait(0.01)
        moment(data_dir, rng)
        server.kill()
        load.join()


def _kill_while_starting(data_dir: Path, rng: random.Random, seconds: float) -> None:
    command = [sys.executable, "-m", "triage_monitor", "serve", "--port", "0", "--data-dir", str(data_dir)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **ENV}
    ) as started:
        try:
            started.wait(rng.uniform(0.2, 1.1) * seconds)
        except subprocess.TimeoutExpired:
            started.kill()


def _kill_again_and_again(data_dir: Path, kills: int, seed: int) -> None:
    rng, load = random.Random(seed), Load()
    began = time.monotonic()
    with served(data_dir, ENV) as first:
        seconds = time.monotonic() - began
        assert first.http.get("/readyz").status_code == 200
    for number in range(kills):
        if number % 4 == 3:
            _kill_while_starting(data_dir, rng, seconds)
        else:
            _kill_under_load(data_dir, load, MOMENTS[number % 4], rng)
    _check(data_dir, load, kills)


def _check(data_dir: Path, load: Load, kills: int) -> None:
    with served(data_dir, ENV) as server:
        lost, wrong = lost_and_wrong(server, load.acknowledged)
        ready = _verified(server)
        print(f"{kills} kills, {len(load.acknowledged)} acknowledged, {len(lost)} lost, {len(wrong)} wrong")
        assert (lost, wrong) == ([], [])
        assert (ready["corrupt_rows"], ready["damaged"], ready["lost_writes"]) == (0, 0, 0)
    assert len(load.acknowledged) >= kills


def _verified(server: ServedProcess) -> dict[str, int]:
    """/readyz once every stored row has been read."""
    until = time.monotonic() + 60
    while not (ready := server.http.get("/readyz").json())["verified"] and time.monotonic() < until:
        threading.Event().wait(0.05)
    assert ready["verified"]
    return dict(ready)


def test_eight_kills_lose_nothing(tmp_path: Path) -> None:
    _kill_again_and_again(tmp_path, 8, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_hundreds_of_kills_lose_nothing(tmp_path: Path) -> None:
    _kill_again_and_again(tmp_path, int(os.environ.get("TRIAGE_FAULT_KILLS", "500")), seed=2)
