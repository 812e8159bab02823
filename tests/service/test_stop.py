"""The end of a served process, seen in its log: nothing but what a person is to know."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

from service.live_server import masses
from service.served_process import ServedProcess, served

SHORT = {"TRIAGE_SERVER__DRAIN_SECONDS": "1"}


def _asked(server: ServedProcess, request: bytes) -> socket.socket:
    parts = urlsplit(server.address)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=20)
    connection.sendall(request.replace(b"\n", b"\r\n"))
    return connection


def _listening(server: ServedProcess) -> socket.socket:
    connection = _asked(server, b"GET /v1/runs/run/events HTTP/1.1\nHost: 127.0.0.1\n\n")
    assert b"200 OK" in connection.recv(1000)
    return connection


def test_end_with_open_event_streams_and_polls_writes_nothing(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        assert server.put("run", 1, masses(3, 2)).status_code == 201
        poll = _asked(server, b"GET /v1/runs/run/params?wait=60&after=1 HTTP/1.1\nHost: 127.0.0.1\n\n")
        listeners = [_listening(server) for _ in range(3)]
        assert server.end() == 0
        assert server.written == ("", "")
        assert b" 200 OK" in poll.recv(1000)
        for listener in listeners:
            rest = b"".join(iter(lambda listener=listener: listener.recv(1000), b""))
            assert rest.endswith(b"0\r\n\r\n")  # its last chunk: the stream was ended, not cut
            listener.close()
        poll.close()


def test_sender_that_stands_still_is_cut_off_after_the_drain_in_one_line(tmp_path: Path) -> None:
    head = b"PUT /v1/runs/run/updates/%d/shards/0 HTTP/1.1\nHost: 127.0.0.1\nContent-Length: 1000\n"
    head += b"Content-Type: application/vnd.apache.arrow.stream\n\nabc"
    with served(tmp_path, SHORT) as server:
        assert server.put("run", 1, masses(3, 2)).status_code == 201
        senders = [_asked(server, head % step) for step in (2, 3)]
        waiting = _listening(server)
        assert server.end() == 0
        assert server.written == ("", "2 requests were not finished after drain_seconds and are cut off\n")
        for connection in (*senders, waiting):
            connection.close()
    with served(tmp_path) as server:
        found = server.http.get("/v1/runs/run/series", params={"name": "rho_asym"}).json()["series"][0]
        assert (found["steps"], found["values"]) == ([1], [1.5])
