"""The standard error of a served process that never blocks: a pipe that nobody reads must not stop the event loop.

    whatever writes to sys.stderr -> bounded queue -> a daemon thread -> the file descriptor

Each write is one message. What does not fit while the reader is away is dropped and counted; once there is room again
a line in its place says how many. Levels and formats are those of whoever writes. The thread writes past Python's own
buffer, so that the interpreter can end while it hangs in a full pipe.
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

MOST_BYTES = 1 << 20
LEAVE_SECONDS = 2.0  # at the end, for what is still waiting


class UnblockedStderr(io.TextIOBase):
    """Takes the place of `stream`, which has a descriptor. Any thread may write."""

    def __init__(self, stream: TextIO, most_bytes: int = MOST_BYTES) -> None:
        stream.flush()
        self._stream = stream
        self._most = most_bytes
        self._waiting: deque[bytes] = deque()
        self._held = 0
        self._ended = False
        self._told = 0
        self.dropped = 0
        self._changed = threading.Condition()  # of an RLock: a destructor may write while this thread does
        self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        message = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._ended or (self._held and self._held + len(message) > self._most):
                self.dropped += 1
            else:
                self._tell_dropped()
                self._put(message)
        return len(text)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def end(self) -> None:
        """Nothing is taken from now on; what is waiting gets `LEAVE_SECONDS`."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(LEAVE_SECONDS)

    def _tell_dropped(self) -> None:
        if self.dropped > self._told:
            lost, self._told = self.dropped - self._told, self.dropped
            self._put(f"triage-monitor: {lost} log messages were dropped here, as nobody read them\n".encode())

    def _put(self, message: bytes) -> None:
        self._waiting.append(message)
        self._held += len(message)
        self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._tell_dropped()
                while not self._waiting and not self._ended:
                    self._changed.wait()
                if not self._waiting:
                    return
                message = self._waiting.popleft()
            _write_all(self.fileno(), message)
            with self._changed:
                self._held -= len(message)


def _write_all(descriptor: int, message: bytes) -> None:
    """Waits as long as it takes; a reader that has gone gets nothing."""
    while message:
        try:
            message = message[os.write(descriptor, message) :]
        except BlockingIOError:  # whoever shares it has made it so
            select.select([], [descriptor], [])
        except OSError:
            return


@contextmanager
def unblocked_stderr() -> Iterator[UnblockedStderr | None]:
    """`sys.stderr` is one for as long as this lasts, if it is a file at all."""
    before = sys.stderr
    if not _is_file(before):
        yield None
        return
    stream = UnblockedStderr(before)
    sys.stderr = stream
    try:
        yield stream
    finally:
        sys.stderr = before
        stream.end()


def _is_file(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.fileno() >= 0
    except OSError:
        return False


def stderr_families(stream: UnblockedStderr | None) -> Iterator[Metric]:
    text = "Messages for standard error that were dropped, as nobody read it"
    yield CounterMetricFamily("triage_log_dropped", text, value=0 if stream is None else stream.dropped)
