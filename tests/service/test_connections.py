"""Peers that open a connection and do not go on: they are let go after a while, those beside them are served on."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

from service.live_server import LiveServer, masses, serving
from service.served_process import ServedProcess, served

from triage_monitor.config import Settings

SHORT = {"server": {"port": 0}, "ingest": {"stall_seconds": 0.4}}


def opened(live: LiveServer | ServedProcess, said: bytes, receive_bytes: int | None = None) -> socket.socket:
    parts = urlsplit(live.address)
    peer = socket.socket()
    if receive_bytes is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    peer.settimeout(60)
    peer.connect((parts.hostname, parts.port))
    peer.sendall(said)
    return peer


def test_half_a_head_and_silence_are_let_go_and_others_are_served() -> None:
    with serving(Settings.from_dict(SHORT)) as live:
        assert live.put("run", 1, masses(2, 1)).status_code == 201
        peers = [opened(live, said) for said in (b"", b"GET /healthz HTTP/1.1\r\nHost: ", b"PUT ")]
        for peer in peers:
            with contextlib.suppress(ConnectionResetError):
                assert peer.recv(100) == b""
            peer.close()
        assert live.put("run", 2, masses(2, 1)).status_code == 201
        assert live.server.stalled.closed == 3


def test_reader_that_does_not_read_is_let_go() -> None:
    with serving(Settings.from_dict(SHORT)) as live:
        for number in range(20):
            live.put(f"run-{number}", 1, masses(2, 1))
        ask = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
        peer = opened(live, ask * 40, receive_bytes=4096)
        until = time.monotonic() + 60
        while not live.server.stalled.closed and time.monotonic() < until:
            assert live.http.get("/healthz").status_code == 200
        assert live.server.stalled.closed == 1
        peer.close()
        assert live.put("run-0", 2, masses(2, 1)).status_code == 201


def test_readers_cut_off_in_the_middle_of_many_answers_leave_nothing_in_the_log(tmp_path: Path) -> None:
    asks = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 600
    with served(tmp_path, {"TRIAGE_INGEST__STALL_SECONDS": "0.4"}) as server:
        assert server.http.get("/healthz").status_code == 200
        files = Path(f"/proc/{server.process.pid}/fd")
        before = len(list(files.iterdir()))
        readers = [opened(server, asks, receive_bytes=4096) for _ in range(8)]
        assert all(reader.recv(4) == b"HTTP" for reader in readers)
        until = time.monotonic() + 60
        while len(list(files.iterdir())) > before and time.monotonic() < until:
            assert server.http.get("/healthz").status_code == 200
        assert len(list(files.iterdir())) <= before
        assert server.end() == 0
        assert server.written == ("", "")
        for reader in readers:
            reader.close()
