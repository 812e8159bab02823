"""A real `triage-monitor serve` process on a free loopback port and a data directory, to be killed and started anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp

import httpx
from service.live_server import STREAM


class ServedProcess:
    """`http` speaks to it; `kill` is SIGKILL, `end` asks it to end."""

    def __init__(self, data_dir: Path, env: Mapping[str, str] | None = None, *more: str) -> None:
        command = [sys.executable, "-m", "triage_monitor", "serve", "--port", "0", "--data-dir", str(data_dir), *more]
        # A file, as nobody reads meanwhile: a full pipe would hold the server up.
        descriptor, self._log = mkstemp(suffix=".log")
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=descriptor,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TRIAGE_JUDGE__POLICY__MODE": "adaptive", **(env or {})},
        )
        os.close(descriptor)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        if "http" not in self.line:
            self._gone()
            raise AssertionError(f"serve did not start: {self.written[1]}")
        self.address = self.line.split()[-1]
        self.http = httpx.Client(base_url=self.address, timeout=120, trust_env=False)

    def put(self, run: str, step: int, body: bytes, **query: int) -> httpx.Response:
        path = f"/v1/runs/{run}/updates/{step}/shards/{query.pop('shard', 0)}"
        return self.http.put(path, params=query, content=body, headers=STREAM)

    def kill(self) -> None:
        self.http.close()
        self.process.send_signal(signal.SIGKILL)
        self._gone()

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code; `written` is what it wrote after its first line."""
        self.http.close()
        self.process.send_signal(how)
        return self._gone()

    def _gone(self) -> int:
        printed, _ = self.process.communicate(timeout=20)
        self.written = (printed, Path(self._log).read_text())
        Path(self._log).unlink()
        return self.process.returncode


@contextmanager
def served(data_dir: Path, env: Mapping[str, str] | None = None, *more: str) -> Iterator[ServedProcess]:
    server = ServedProcess(data_dir, env, *more)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
