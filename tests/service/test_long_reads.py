"""Readers of long histories wait for one another, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import socket
import threading

from service.live_server import masses, serving
from trainer.client_help import eventually

from triage_monitor.service.long_reads import MAX_READS, THREADS


def test_reads_that_take_long_hold_nobody_up_and_too_many_are_told_to_come_again() -> None:
    with serving() as server:
        assert server.put("run", 0, masses(3, 2)).status_code == 201
        gate, reads = threading.Event(), server.sidecar.long_reads

        def slow() -> bytes:
            assert gate.wait(60)
            return b"read"

        begun = [asyncio.run_coroutine_threadsafe(reads.run(slow), server._loop) for _ in range(MAX_READS)]
        assert server.put("run", 1, masses(1, 2)).status_code == 201
        for path in ("/metrics", "/readyz", "/healthz", "/v1/runs/run", "/v1/runs/run/worst", "/v1/runs/run/params"):
            assert server.http.get(path).status_code == 200, path
        assert not any(read.done() for read in begun) and reads.under_way == MAX_READS > THREADS
        for path in ("/v1/runs/run/series?name=rho_asym", "/v1/runs/run/updates"):
            refused = server.http.get(path)
            assert (refused.status_code, refused.json()["reason"], refused.headers["retry-after"]) == (503, "busy", "1")
        gate.set()
        assert {read.result(30) for read in begun} == {b"read"}
        assert reads.under_way == 0
        (found,) = server.http.get("/v1/runs/run/series?name=rho_asym").json()["series"]
        assert (found["steps"], found["values"]) == ([0, 1], [1.5, 0.5])
        updates = server.http.get("/v1/runs/run/updates").json()["updates"]
        assert [item["indicators"]["rho_asym"] for item in updates] == [1.5, 0.5]


def test_read_whose_reader_leaves_before_its_turn_is_not_made() -> None:
    with serving() as server:
        assert server.put("run", 0, masses(3, 2)).status_code == 201
        gate, reads = threading.Event(), server.sidecar.long_reads
        begun = [
            asyncio.run_coroutine_threadsafe(reads.run(lambda: b"%d" % gate.wait(60)), server._loop)
            for _ in range(THREADS)
        ]
        host, port = server.address.removeprefix("http://").split(":")
        readers = [socket.create_connection((host, int(port))) for _ in range(20)]
        for reader in readers:
            reader.sendall(b"GET /v1/runs/run/series?name=rho_asym HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert eventually(lambda: reads.under_way == THREADS + len(readers))
        for reader in readers:
            reader.close()
        assert eventually(lambda: reads.under_way == THREADS, 20.0)
        gate.set()
        assert [read.result(30) for read in begun] == [b"1"] * THREADS
