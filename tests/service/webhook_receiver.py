"""A receiver of webhooks: it keeps what it gets and answers what it was told to."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.raw)
        return found


@dataclass
class Receiver:
    port: int = 0
    got: list[Received] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # for the next calls; then 204
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, count: int) -> list[Received]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.got) >= count, 120), [item.body for item in self.got]
            return list(self.got)


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver()

    class Keeper(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            with receiver.changed:
                receiver.got.append(Received(self.path, dict(self.headers.items()), raw))
                status, headers = receiver.answers.pop(0) if receiver.answers else (204, {})
                receiver.changed.notify_all()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Keeper)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(20)
