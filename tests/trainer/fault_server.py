"""A monitor on a real socket that can be told to misbehave, for the client's tests.

Behaving ("ok") it keeps what a trainer relies on: idempotent shards, attempts by launch id, a parameter set with a long
poll, acknowledgements. Otherwise: "hang" (takes the request, never answers), "deaf" (accepts, never reads), "slow" (one
byte of the answer a second), "close" (closes instead of answering), "forget" (stores, then closes), "garbage" (bytes
that are no HTTP), "page" (200 with HTML), "proxy" (200 with somebody else's JSON), "empty" (200 with `{}`), "flood" (an
endless answer), or a status number. `stop` and `start` keep the port.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from contextlib import suppress
from time import monotonic
from typing import Any
from urllib.parse import parse_qs, urlsplit


class FaultServer:
    def __init__(self, behaviour: str = "ok") -> None:
        self.behaviour = behaviour
        self.retry_after: str | None = None
        self.calls: Counter[str] = Counter()
        self.bodies: dict[tuple[str, int, int, int], bytes] = {}  # (run, attempt, step, shard)
        self.steps: list[int] = []  # in order of first arrival
        self.launches: dict[str, int] = {}
        self.acknowledged: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.refuse: dict[int, int] = {}  # step -> status
        self.refuse_acks = False
        self.restart_every = 0  # calls; at each such call it goes down and comes back, that call unanswered
        self.restarts = 0
        self.params: dict[str, Any] | None = None
        self.changed = threading.Condition()
        self._connections: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(64)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def stop(self) -> None:
        listener, self._listener = self._listener, None
        with self.changed:
            self.changed.notify_all()
        for sock in [s for s in (listener, *list(self._connections)) if s is not None]:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def __enter__(self) -> FaultServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def behave(self, behaviour: str) -> None:
        """From now on; those kept waiting by the old behaviour are let go."""
        with self.changed:
            self.behaviour = behaviour
            self.changed.notify_all()

    def publish(self, params: dict[str, Any]) -> None:
        with self.changed:
            self.params = params
            self.changed.notify_all()

    def wait(self, condition: Any, seconds: float = 30.0) -> bool:
        """True once `condition()` holds; it is looked at whenever something arrived."""
        with self.changed:
            return bool(self.changed.wait_for(condition, seconds))

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, ValueError), connection, connection.makefile("rb") as reader:
            while True:
                if self.behaviour == "deaf":
                    self._hold("deaf")
                    return
                head = reader.readline().decode().split()
                if not head:
                    return
                headers = dict(self._header_lines(reader))
                length = int(headers.get("content-length", "0"))
                body = reader.read(length)
                if len(body) < length:
                    return  # cut off by `stop` or by the client: nothing was received
                if not self._answer(connection, head[0], head[1], headers, body):
                    return
        self._connections.discard(connection)

    def _header_lines(self, reader: Any) -> Any:
        while line := reader.readline().decode().strip():
            name, _, value = line.partition(":")
            yield name.lower(), value.strip()

    def _hold(self, behaviour: str) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self._listener is None or self.behaviour != behaviour)

    def _answer(
        self, connection: socket.socket, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> bool:
        url = urlsplit(target)
        kind = f"{method} {url.path.rsplit('/', 1)[-1]}" if method != "PUT" else "PUT"
        with self.changed:
            self.calls[kind] += 1
            self.headers.append(headers)
            self.changed.notify_all()
            is_last = self.restart_every > 0 and self.calls.total() % self.restart_every == 0
        if is_last:
            self.stop()
            self.start()
            self.restarts += 1
            return False
        behaviour = self.behaviour
        if behaviour == "hang":
            self._hold(behaviour)
            return False
        if behaviour == "close":
            return False
        if behaviour == "garbage":
            connection.sendall(b"\x00\x01 this is not HTTP \xff\r\n\r\n")
            return False
        if behaviour == "page":
            return self._send(connection, 200, b"<html>captive</html>")
        if behaviour == "proxy":
            return self._send(connection, 200, b'{"status": "ok", "attempt": -1}')
        if behaviour == "empty":
            return self._send(connection, 200, b"{}")
        if behaviour == "flood":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n")
            while self.behaviour == "flood" and self._listener is not None:
                connection.sendall(b"x" * 65536)
            return False
        if behaviour == "slow":
            return self._dribble(connection)
        if behaviour.isdigit():
            return self._send(connection, int(behaviour), b'{"title": "told to"}')
        status, answer = self._behave_well(method, url.path, parse_qs(url.query), body)
        if behaviour == "forget":
            return False
        return self._send(connection, status, b"" if answer is None else json.dumps(answer).encode())

    def _dribble(self, connection: socket.socket) -> bool:
        for byte in b"HTTP/1.1 201 Created\r\nX-Padding: " + b"z" * 1000:
            connection.sendall(bytes([byte]))
            with self.changed:
                if self.changed.wait_for(lambda: self._listener is None or self.behaviour != "slow", 1.0):
                    return False
        return False

    def _send(self, connection: socket.socket, status: int, body: bytes) -> bool:
        extra = f"Retry-After: {self.retry_after}\r\n" if self.retry_after and status >= 400 else ""
        head = f"HTTP/1.1 {status} told\r\nContent-Type: application/json\r\n{extra}Content-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        return True

    def _behave_well(
        self, method: str, path: str, query: dict[str, list[str]], body: bytes
    ) -> tuple[int, dict[str, Any] | None]:
        parts = path.strip("/").split("/")
        run = parts[2]
        if method == "PUT":
            return self._store(run, int(parts[4]), int(parts[6]), int(query["attempt"][0]), body)
        if parts[-1] == "attempts":
            launch = json.loads(body)["launch_id"]
            return 200, {"attempt": self.launches.setdefault(launch, len(self.launches) + 1)}
        if parts[-1] == "ack" and self.refuse_acks:
            return 500, {"title": "told to"}
        if parts[-1] == "ack":
            with self.changed:
                self.acknowledged.append(json.loads(body))
                self.changed.notify_all()
            return 200, {}
        return self._wait_for_params(query)

    def _store(self, run: str, step: int, shard: int, attempt: int, body: bytes) -> tuple[int, dict[str, Any]]:
        if step in self.refuse:
            slug = "bad_gap" if self.refuse[step] == 422 else "internal"
            return self.refuse[step], {"type": f"https://example.invalid/problems/{slug}", "detail": "told to"}
        key = (run, attempt, step, shard)
        with self.changed:
            before = self.bodies.setdefault(key, body)
            if before is body:
                self.steps.append(step)
            self.changed.notify_all()
        answer = {"step": step, "shard": shard, "params_version": (self.params or {}).get("version", 0)}
        if before is body:
            return 201, answer
        return (200, answer) if before == body else (409, {"reason": "conflict"})

    def _wait_for_params(self, query: dict[str, list[str]]) -> tuple[int, dict[str, Any] | None]:
        after = int(query.get("after", ["-1"])[0])
        deadline = monotonic() + float(query.get("wait", ["0"])[0])

        def is_news() -> bool:
            version = (self.params or {}).get("version", -1)
            return not isinstance(version, int) or version > after

        def has_news() -> bool:
            return self._listener is None or self.behaviour != "ok" or is_news()

        with self.changed:
            if self.params is None:
                return 404, {"reason": "no_such_run"}
            self.changed.wait_for(has_news, max(0.0, deadline - monotonic()))
            return (200, self.params) if is_news() else (304, None)
