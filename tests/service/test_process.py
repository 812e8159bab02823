"""Real `serve` processes: restart, kill -9, a second process, the end (C39)."""

from __future__ import annotations

import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
from service.live_server import STREAM, masses
from service.served_process import served

from triage_monitor.storage.recordings import iter_updates
from triage_monitor.summary.rows import encode_arrays

ADAPTIVE = {"TRIAGE_JUDGE__POLICY__MODE": "adaptive"}


def test_restarted_server_continues_where_the_killed_one_was(tmp_path: Path) -> None:
    with served(tmp_path) as first:
        for step in range(1, 41):
            assert first.put("run", step, masses(3, 2)).status_code == 201
        for number in range(4):
            answer = first.http.post(
                "/v1/runs/run/actions", json={"kind": "gate", "w_min": 0.5 - number / 10},
                headers={"Idempotency-Key": f"k{number}"},
            )  # fmt: skip
            assert answer.json()["params_version"] == number + 2
        first.http.post("/v1/runs/run/params/ack", json={"version": 5, "step": 41})
        first.put("run", 41, masses(1, 0), shards=2)
        before = first.http.get("/v1/runs/run").json()
        params = first.http.get("/v1/runs/run/params")
        first.kill()
    with served(tmp_path) as second:
        again = second.http.get("/v1/runs/run/params")
        origin = ("epoch", "issuer")  # of each start its own, so that an old monitor can be told from this one
        assert {**again.json(), **dict.fromkeys(origin)} == {**params.json(), **dict.fromkeys(origin)}
        assert again.json()["epoch"] > params.json()["epoch"]
        assert again.json()["version"] == 5
        after = second.http.get("/v1/runs/run").json()
        for name in ("stage", "why", "window", "last_update", "params_applied", "held_by", "attempt", "open_updates"):
            assert after[name] == before[name], name
        assert after["window"]["updates"] == 25
        # The half that was acknowledged before the kill is still waiting for its other half.
        assert second.put("run", 41, masses(5, 4), shard=1, shards=2).json()["update"] == "complete"
        now = second.http.get("/v1/runs/run").json()
        assert (now["window"]["first_step"], now["window"]["updates"]) == (17, 25)
        assert now["window"]["indicators"]["rho_asym"] == (24 * 3 + 6) / (24 * 2 + 4)
        assert now["params_version"] == 5
        assert second.put("run", 7, masses(3, 2)).status_code == 200
        repeat = second.http.post(
            "/v1/runs/run/actions", json={"kind": "gate", "w_min": 0.5}, headers={"Idempotency-Key": "k0"}
        )
        assert (repeat.status_code, repeat.json()["params_version"]) == (200, 2)
        assert second.end() == 0


def test_killed_under_load_keeps_every_acknowledged_update(tmp_path: Path) -> None:
    acknowledged: set[int] = set()
    rng = np.random.default_rng(5)
    for turn, enough in enumerate((5, 40)):
        with served(tmp_path) as server:
            reached = threading.Event()

            def send(worker: int, address: str, turn: int = turn, enough: int = enough, reached=reached) -> None:
                with httpx.Client(base_url=address, timeout=20, trust_env=False) as http:
                    for number in range(10_000):
                        step = turn * 100_000 + number * 4 + worker
                        try:
                            answer = http.put(
                                f"/v1/runs/run/updates/{step}/shards/0", content=masses(3, 2), headers=STREAM
                            )
                        except httpx.HTTPError:
                            return
                        assert answer.status_code == 201
                        acknowledged.add(step)
                        if len(acknowledged) >= enough:
                            reached.set()

            workers = [threading.Thread(target=send, args=(worker, server.address)) for worker in range(4)]
            for worker in workers:
                worker.start()
            assert reached.wait(60)
            threading.Event().wait(rng.uniform(0, 0.05))
            server.kill()
            for worker in workers:
                worker.join()
    with served(tmp_path) as server:
        found = server.http.get("/v1/runs/run/series", params={"name": "rho_asym"}).json()["series"][0]
        values = dict(zip(found["steps"], found["values"], strict=True))
        assert [step for step in acknowledged if values.get(step) != 1.5] == []
        assert server.http.get("/readyz").json()["corrupt_rows"] == 0


def test_restart_alone_issues_no_parameters_and_raw_updates_are_kept_for_analyze(tmp_path: Path) -> None:
    with served(tmp_path, {**ADAPTIVE, "TRIAGE_STORE__RETAIN_RAW": "true"}) as first:
        for step in range(30):
            first.put("run", step, masses(3, 2))
        before = first.http.get("/v1/runs/run/params/history").json()
        assert first.end() == 0
    with served(tmp_path, ADAPTIVE) as second:
        assert second.http.get("/v1/runs/run/params/history").json() == before
        second.put("run", 30, masses(3, 2))
        assert second.http.get("/v1/runs/run/params/history").json() == before
    kept = list(iter_updates([tmp_path / "recordings" / "run"]))
    assert [(item.run, item.step, item.rows.responses) for item in kept] == [("run", step, 5) for step in range(30)]


def test_taken_port_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "triage_monitor", "serve", "--port", port, "--data-dir", str(tmp_path)]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_other_host_is_refused_unless_said(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "triage_monitor", "serve", "--host", "0.0.0.0", "--data-dir", str(tmp_path)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "allow_remote" in refused.stderr and "Traceback" not in refused.stderr


def test_end_lets_go_of_listeners_and_long_polls_and_finishes_requests(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        server.put("run", 1, masses(3, 2))
        ended: list[str] = []
        waiting, connected = threading.Event(), threading.Event()

        def listen() -> None:
            with httpx.stream("GET", f"{server.address}/v1/runs/run/events", timeout=60) as stream:
                for _ in stream.iter_lines():
                    waiting.set()
            ended.append("events")

        def poll() -> None:
            with httpx.Client(base_url=server.address, timeout=90) as http:
                http.get("/healthz")
                connected.set()
                answer = http.get("/v1/runs/run/params", params={"wait": 60, "after": 1})
            ended.append(f"params {answer.json()['version']}")

        threads = [threading.Thread(target=poll), threading.Thread(target=listen)]
        threads[0].start()
        assert connected.wait(20)
        threads[1].start()
        assert waiting.wait(20)
        assert server.end() == 0
        for thread in threads:
            thread.join(20)
        assert sorted(ended) == ["events", "params 1"]


def test_second_process_on_the_directory_is_refused_and_an_interrupt_ends_the_first(tmp_path: Path) -> None:
    with served(tmp_path) as first:
        assert first.line.startswith("triage-monitor answers at http://127.0.0.1:")
        command = [sys.executable, "-m", "triage_monitor", "serve", "--port", "0", "--data-dir", str(tmp_path)]
        second = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (second.returncode, second.stdout) == (2, "")
        assert f"in use by another process (pid {first.process.pid})" in second.stderr
        assert "Traceback" not in second.stderr
        assert first.http.get("/healthz").status_code == 200
        assert first.end(signal.SIGINT) == 0
        assert first.written == ("", "")


def test_damaged_rows_are_reported_and_the_rest_served(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        for step in range(1, 6):
            server.put("run", step, masses(3, 2))
        server.http.put("/v1/runs/run/params", json={"lease_updates": 7}, headers={"If-Match": "*"})
        server.http.put("/v1/runs/run/params", json={"lease_updates": 9}, headers={"If-Match": "*"})
    with sqlite3.connect(tmp_path / "triage.db") as db:
        db.execute("UPDATE updates SET report = replace(report, '1.5', '9.5') WHERE step = 3")
        db.execute("UPDATE summaries SET summary = zeroblob(100) WHERE step = 4")
        db.execute("UPDATE states SET judge = replace(judge, '1', '2')")
        db.execute("UPDATE runs SET created_at = 5")
        db.execute("UPDATE params SET params = replace(params, '9', '8') WHERE version = 3")
    db.close()
    with served(tmp_path) as server:
        found = server.http.get("/v1/runs/run/series", params={"name": "rho_asym"}).json()["series"][0]
        assert found["steps"] == [1, 2, 4, 5]
        assert set(found["values"]) == {1.5}
        assert server.http.get("/readyz").json()["corrupt_rows"] >= 5
        assert server.put("run", 6, masses(3, 2)).status_code == 201
        window = server.http.get("/v1/runs/run").json()["window"]
        assert (window["updates"], window["indicators"]["rho_asym"]) == (5, 1.5)
        params = server.http.get("/v1/runs/run/params").json()
        assert (params["version"], params["lease_updates"]) == (2, 7)
        after = server.http.put("/v1/runs/run/params", json={"lease_updates": 11}, headers={"If-Match": "*"})
        assert (after.json()["version"], after.json()["lease_updates"]) == (4, 11)


def test_full_disk_is_said_and_service_goes_on_when_there_is_room_again(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        assert server.put("run", 1, masses(3, 2)).status_code == 201
        size = max(path.stat().st_size for path in tmp_path.iterdir())
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        refused = server.put("run", 2, masses(3, 2))
        assert (refused.status_code, refused.json()["reason"]) == (507, "store_full")
        assert server.http.get("/readyz").status_code == 503
        assert server.http.get("/v1/runs/run").json()["last_update"]["step"] == 1
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        again = server.put("run", 2, masses(3, 2))
        # 200 where the shard itself had still found room and only what closes the update had not.
        assert again.status_code in (200, 201)
        assert again.json()["update"] == "complete"
        assert server.http.get("/readyz").status_code == 200
        assert server.http.get("/v1/runs/run").json()["window"]["updates"] == 2


def test_bodies_as_large_as_the_case_are_taken_while_health_answers(tmp_path: Path) -> None:
    tokens, responses = 10_485_760, 512
    logprobs = np.random.default_rng(0).normal(-1, 0.1, tokens).astype(np.float32)
    offsets = np.arange(0, tokens + 1, tokens // responses)
    body = encode_arrays(
        learner_logprobs=logprobs, sampler_logprobs=logprobs[::-1].copy(), advantages=np.ones(responses),
        offsets=offsets,
    )  # fmt: skip
    assert len(body) > 83_886_080
    with served(tmp_path) as server:
        answers: list[int] = []
        sender = threading.Thread(target=lambda: answers.append(server.put("large", 1, body).status_code))
        sender.start()
        slowest = 0.0
        with httpx.Client(base_url=server.address, timeout=30, trust_env=False) as other:
            while sender.is_alive():
                started = time.monotonic()
                assert other.get("/healthz").status_code == 200
                assert other.get("/metrics").status_code == 200
                slowest = max(slowest, time.monotonic() - started)
        assert answers == [201]
        assert server.http.get("/v1/runs/large").json()["last_update"]["counts"]["valid_tokens"] == tokens
    assert slowest < 2.0
