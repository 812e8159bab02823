"""A disk that is full, read-only or damaged under a served sidecar, seen from outside."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from service.live_server import masses
from service.served_process import ServedProcess, served


@contextmanager
def _small_disk(directory: Path, megabytes: int) -> Iterator[Path]:
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(directory)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"a small disk needs the right to mount one: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@contextmanager
def _immutable(files: list[Path]) -> Iterator[None]:
    command = shutil.which("chattr")
    names = [str(file) for file in files]
    done = None if command is None else subprocess.run([command, "+i", *names], capture_output=True, text=True)
    if done is None or done.returncode:
        pytest.skip("a file nobody may write needs chattr and the right to use it")
    try:
        yield
    finally:
        subprocess.run([str(command), "-i", *names], check=True)


def _fill(directory: Path) -> None:
    with pytest.raises(OSError), (directory / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def _metric(server: ServedProcess, name: str) -> float:
    lines = server.http.get("/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def _ready_within(server: ServedProcess, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if server.http.get("/readyz").status_code == 200:
            return True
        threading.Event().wait(0.1)
    return False


def test_full_disk_is_507_and_room_again_needs_no_restart(tmp_path: Path) -> None:
    with _small_disk(tmp_path / "disk", 8) as disk, served(disk / "data") as server:
        assert server.put("run", 1, masses(3, 2)).status_code == 201
        _fill(disk)
        refused = [server.put("run", step, masses(3, 2)) for step in range(2, 40)]
        assert {answer.status_code for answer in refused} <= {201, 507}
        assert (refused[-1].status_code, refused[-1].json()["reason"]) == (507, "store_full")
        assert server.http.get("/readyz").status_code == 503
        assert _metric(server, "triage_store_writable") == 0
        assert not _ready_within(server, 7), "it tries the disk by itself, and the disk is still full"
        (disk / "ballast").unlink()
        assert _ready_within(server, 60), "nobody has sent anything meanwhile"
        assert _metric(server, "triage_store_writable") == 1
        again = [server.put("run", step, masses(3, 2)).status_code for step in range(2, 40)]
        assert set(again) <= {200, 201}
        assert server.http.get("/readyz").status_code == 200
        series = server.http.get("/v1/runs/run/series", params={"name": "rho_asym"}).json()["series"][0]
        assert (series["steps"], set(series["values"])) == (list(range(1, 40)), {1.5})


def test_disk_that_takes_no_writes_is_507_and_recovers_without_a_restart(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        assert server.put("run", 1, masses(3, 2)).status_code == 201
        with _immutable([tmp_path / "triage.db", tmp_path / "triage.db-wal"]):
            refused = server.put("run", 2, masses(3, 2))
            assert refused.status_code in (503, 507)
            assert server.http.get("/readyz").status_code == 503
            assert server.http.get("/v1/runs/run").json()["last_update"]["step"] == 1
            assert not _ready_within(server, 7)
        assert _ready_within(server, 60)
        assert server.put("run", 2, masses(3, 2)).status_code == 201
        assert server.http.get("/readyz").status_code == 200


def test_damaged_database_is_reported_and_the_rest_is_served(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        for step in range(1, 9):
            assert server.put("run", step, masses(3, 2)).status_code == 201
        assert server.end() == 0
    with (tmp_path / "triage.db").open("r+b") as file:
        file.write(bytes(100))
    with served(tmp_path) as server:
        ready = server.http.get("/readyz").json()
        assert (ready["status"], ready["damaged"], ready["lost_writes"], ready["set_aside"]) == ("ready", 1, 0, 1)
        assert _metric(server, "triage_store_damaged_total") == 1
        assert _metric(server, "triage_store_lost_writes_total") == 0
        series = server.http.get("/v1/runs/run/series", params={"name": "rho_asym"}).json()["series"][0]
        assert (series["steps"], set(series["values"])) == (list(range(1, 9)), {1.5})
        assert server.put("run", 9, masses(3, 2)).status_code == 201


def test_database_damaged_while_it_is_served_is_mended_at_the_same_address(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        for step in range(1, 9):
            assert server.put("run", step, masses(3, 2)).status_code == 201
        assert server.end() == 0
    with served(tmp_path) as server:
        damaged = bytearray((tmp_path / "triage.db").read_bytes())
        for page in range(1, len(damaged) // 4096):
            if damaged[page * 4096] in (2, 5):
                damaged[page * 4096 : page * 4096 + 64] = bytes(64)  # every inner page of every tree
        (tmp_path / "triage.db").write_bytes(damaged)
        until, ready = time.monotonic() + 60, {}
        while not ready.get("damaged") and time.monotonic() < until:
            try:
                server.http.get("/v1/runs/run/series", params={"name": "rho_asym"})
                server.put("run", 9, masses(3, 2))
                ready = server.http.get("/readyz").json()
            except httpx.HTTPError:
                threading.Event().wait(0.05)
        assert ready["damaged"] == 1
        series = server.http.get("/v1/runs/run/series", params={"name": "rho_asym"}).json()["series"][0]
        assert series["steps"][:8] == list(range(1, 9))
        assert set(series["values"]) == {1.5}
