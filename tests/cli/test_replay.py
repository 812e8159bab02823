"""`replay` against a real server: every shard arrives once, in order, under the attempts the server gave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from service.live_server import LiveServer, serving

from triage_monitor.storage.recordings import RecordingWriter


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with serving() as live:
        yield live


def record(directory: Path, places: list[tuple[int, int]], shard: int | None = None) -> None:
    """One response of each sign an update; M(A-) is the step, M(A+) is 1."""
    writer = RecordingWriter(directory, run="run-a", shard=shard)
    for attempt, step in places:
        arrays: dict[str, Any] = {"gap": [[-0.1] * step, [0.1]], "advantages": [-1.0, 1.0]}
        writer.append(step, attempt, arrays | {"settings": {"temperature": 0.7}})


def series(server: LiveServer, name: str = "rho_asym") -> dict[int, float]:
    answer = server.http.get("/v1/runs/run-a/series", params={"name": name, "scope": "update"}).json()
    (found,) = answer["series"]
    return dict(zip(found["steps"], found["values"], strict=True))


def test_a_recording_arrives_as_its_trainer_would_have_sent_it(cli, server: LiveServer, tmp_path: Path) -> None:
    record(tmp_path, [(1, step) for step in (1, 2, 3)])
    done = cli("replay", tmp_path, "--to", server.address)
    assert done.code == 0, done.err
    assert done.out == "run-a: 3 updates, 3 shards (0 known before)\n"
    assert series(server) == {1: 1.0, 2: 2.0, 3: 3.0}


def test_a_second_replay_changes_nothing(cli, server: LiveServer, tmp_path: Path) -> None:
    record(tmp_path, [(1, 1), (1, 2)])
    assert cli("replay", tmp_path, "--to", server.address).code == 0
    again = cli("replay", tmp_path, "--to", server.address)
    assert again.out == "run-a: 2 updates, 2 shards (2 known before)\n"
    assert series(server) == {1: 1.0, 2: 2.0}


def test_recorded_attempts_become_attempts_of_the_server(cli, server: LiveServer, tmp_path: Path) -> None:
    record(tmp_path, [(1, 1), (1, 2), (1, 3), (4, 2)])
    assert cli("replay", tmp_path, "--to", server.address, "--run", "run-b").code == 0
    last = server.run("run-b")["last_update"]
    assert (last["attempt"], last["step"]) == (2, 2)


def test_files_of_ranks_become_shards(cli, server: LiveServer, tmp_path: Path) -> None:
    for rank in (0, 1):
        places = [(step, sign) for step in (1, 2) for sign in (-1, 1)]
        rows = [{"step": step, "advantage": sign, "gap": [sign * 0.1] * (step + rank)} for step, sign in places]
        (tmp_path / f"rank-{rank}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = cli("replay", tmp_path, "--to", server.address, "--run", "run-a")
    assert done.out == "run-a: 2 updates, 4 shards (0 known before)\n"
    assert series(server, "mass_a_neg") == {1: 0.5, 2: 0.5}


def test_wrong_recordings_and_addresses_exit_with_2(cli, server: LiveServer, tmp_path: Path) -> None:
    assert cli("replay", tmp_path / "nowhere", "--to", server.address).code == 2
    record(tmp_path, [(1, 1)])
    done = cli("replay", tmp_path, "--to", "localhost:8750")
    assert done.code == 2 and "http://host:8750" in done.err


def test_a_refusal_is_told_with_the_servers_words(cli, server: LiveServer, tmp_path: Path) -> None:
    record(tmp_path, [(1, 1)])
    done = cli("replay", tmp_path, "--to", server.address, "--run", "no name")
    assert done.code == 1 and "422" in done.err and "Traceback" not in done.err


def test_an_update_the_server_refuses_is_named_by_file_step_and_row(cli, server: LiveServer, tmp_path: Path) -> None:
    """An id of megabytes beside two tokens: more than a body of so few positions may hold."""
    file = tmp_path / "huge.jsonl"
    row = {"step": 4, "gap": [0.1, -0.1], "advantage": 1.0}
    lines = [row | {"step": 3, "response_id": "a"}, row | {"response_id": "x" * 10_000_000}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = cli("replay", file, "--to", server.address, "--run", "huge")
    assert done.code == 1
    assert f"{file}, step 4, from row 1: PUT" in " ".join(done.err.split())
    assert "too_large" in done.err
    assert server.run("huge")["last_update"]["step"] == 3


def test_no_server_ends_with_1_when_patience_is_over(cli, tmp_path: Path) -> None:
    record(tmp_path, [(1, 1)])
    done = cli("replay", tmp_path, "--to", "http://127.0.0.1:9", "--patience", "0.05")
    assert done.code == 1 and "attempts" in done.err


class Busy(BaseHTTPRequestHandler):
    """503 to every second call, then what a monitor answers."""

    calls: list[tuple[str, str]] = []  # noqa: RUF012

    def answer(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.calls.append((self.command, self.path))
        busy = len(self.calls) % 2 == 1
        body = json.dumps({"attempt": 3, "params_version": 0}).encode()
        self.send_response(503 if busy else 201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_POST = answer

    def log_message(self, *_: object) -> None:
        pass


def test_a_busy_server_is_asked_again(cli, tmp_path: Path) -> None:
    record(tmp_path, [(1, 7)])
    Busy.calls.clear()
    with HTTPServer(("127.0.0.1", 0), Busy) as http:
        Thread(target=http.serve_forever, daemon=True).start()
        done = cli("replay", tmp_path, "--to", f"http://127.0.0.1:{http.server_port}")
        http.shutdown()
    assert done.code == 0, done.err
    assert (
        Busy.calls
        == [("POST", "/v1/runs/run-a/attempts")] * 2
        + [("PUT", "/v1/runs/run-a/updates/7/shards/0?shards=1&attempt=3")] * 2
    )
