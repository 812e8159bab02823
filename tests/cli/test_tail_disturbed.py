"""`tail` beside a sidecar that is killed and a log rotation that renames and truncates: nothing is lost or doubled."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from service.served_process import served
from storage.dump_writers import synthetic, write_nemo

STEPS = (1, 2, 3, 4, 5)
WAIT_SECONDS = 60.0


def until(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)


def stored(http: httpx.Client) -> dict[int, dict[str, Any]]:
    """Step -> what is shown of it; `attempt` with it."""
    answer = http.get("/v1/runs/disturbed/updates", params={"from": 0, "to": 99})
    return {} if answer.status_code != 200 else {item["step"]: item for item in answer.json()["updates"]}


def test_a_killed_sidecar_and_rotated_dumps_lose_and_double_nothing(tmp_path: Path) -> None:
    dumps, data = tmp_path / "dumps", tmp_path / "data"
    series = synthetic(seed=31, steps=STEPS)
    write_nemo(dumps, {1: series[1], 2: series[2]})
    with served(data) as server:
        port = server.address.rpartition(":")[2]
        command = [
            "tail",
            str(dumps),
            "--to",
            server.address,
            "--run",
            "disturbed",
            "--poll",
            "0.05",
            "--settle",
            "0.1",
        ]
        tail = subprocess.Popen(
            [sys.executable, "-m", "triage_monitor", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        until(tail, lambda: 2 in stored(server.http))
        server.kill()
    try:
        write_nemo(dumps, {3: series[3]})  # while nobody answers
        (dumps / "train_data_step1.jsonl").rename(dumps / "train_data_step1.jsonl.1")
        with served(data, None, "--port", port) as server:
            until(tail, lambda: 3 in stored(server.http))
            shutil.copy(dumps / "train_data_step2.jsonl", dumps / "train_data_step2.jsonl.1")
            (dumps / "train_data_step2.jsonl").write_bytes(b"")
            write_nemo(dumps, {4: series[4]})
            until(tail, lambda: 4 in stored(server.http))
            write_nemo(dumps, {5: series[5]})  # several looks after the truncation
            until(tail, lambda: 5 in stored(server.http))
            seen = stored(server.http)
            run = server.http.get("/v1/runs/disturbed").json()
    finally:
        tail.terminate()
        _, errors = tail.communicate(timeout=20)
    assert sorted(seen) == list(STEPS)
    assert run["last_update"]["attempt"] == 1
    assert run["integrity"]["conflicting_shards"] == 0
    assert "written again" not in errors and "passed over" not in errors
    for step, answers in series.items():
        assert seen[step]["counts"]["tokens"] == sum(int(answer.mask.sum()) for answer in answers if answer.trained)
