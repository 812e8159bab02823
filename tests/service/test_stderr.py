"""A standard error that nobody reads holds nothing up: not the event loop, not the end; what was dropped is counted."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from service.live_server import STREAM, masses

from triage_monitor.service.stderr import UnblockedStderr, unblocked_stderr
from triage_monitor.storage.records import RunRow, ShardRow
from triage_monitor.storage.sqlite import SqliteStore
from triage_monitor.summary.build import summarize
from triage_monitor.summary.codec import encode

PIPE_BYTES = 65536  # of Linux
UPDATES = 80


@contextmanager
def _piped() -> Iterator[tuple[UnblockedStderr, int]]:
    """One that writes into a pipe, with the pipe's other end."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as file:
        stream = UnblockedStderr(file, most_bytes=100_000)
        try:
            yield stream, reader
        finally:
            os.close(reader)  # lets go of a thread that hangs in a full pipe
            stream.end()


def _read_until(reader: int, last: bytes) -> bytes:
    found = b""
    while last not in found:
        found += os.read(reader, 1024)
    return found


def test_messages_come_out_whole_and_in_order_and_what_was_dropped_is_told_in_its_place() -> None:
    with _piped() as (stream, reader):
        for number in range(3000):
            stream.write(f"message {number} {'x' * 100}\n")
        assert stream.dropped > 0
        found = _read_until(reader, b"message 500 ")
        stream.write("the last\n")
        found += _read_until(reader, b"the last\n")
        dropped = stream.dropped
    expected, told = 0, 0
    lines = found.decode().splitlines()
    assert lines.pop() == "the last"
    for line in lines:
        if (lost := re.search(r"(\d+) log messages were dropped here", line)) is not None:
            told += int(lost[1])
            expected += int(lost[1])
        else:
            assert line == f"message {expected} {'x' * 100}"
            expected += 1
    assert (expected, told) == (3000, dropped)


def test_message_larger_than_the_bound_is_taken_when_nothing_waits() -> None:
    with _piped() as (stream, reader):
        stream.write("y" * 200_000 + "\n")
        assert _read_until(reader, b"\n") == b"y" * 200_000 + b"\n"
        assert stream.dropped == 0


def test_reader_that_has_gone_ends_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as file:
        stream = UnblockedStderr(file)
        stream.write("to nobody\n")
        stream.end()
    assert stream.dropped == 0


def test_end_writes_what_waits_and_gives_up_on_a_full_pipe() -> None:
    with _piped() as (stream, reader):
        stream.write("first\n")
        stream.end()
        assert os.read(reader, 100) == b"first\n"
    with _piped() as (stream, reader):
        stream.write("z" * 2 * PIPE_BYTES)
        ending = threading.Thread(target=stream.end)
        ending.start()
        ending.join(60)
        assert not ending.is_alive()


def test_logging_warnings_and_uncaught_errors_go_through_it(capfd: pytest.CaptureFixture[str]) -> None:
    with capfd.disabled():
        reader, writer = os.pipe()
        before = sys.stderr
        sys.stderr = os.fdopen(writer, "w")
        try:
            with unblocked_stderr() as stream:
                assert sys.stderr is stream
                print("printed", file=sys.stderr)
                logging.lastResort.handle(logging.makeLogRecord({"msg": "logged", "levelno": logging.WARNING}))
        finally:
            sys.stderr.close()
            sys.stderr = before
        assert os.read(reader, 1000) == b"printed\nlogged\n"
        os.close(reader)


def _damaged_updates(directory: Path) -> None:
    """Updates whose closings will all fail, each with a traceback in the log: group ids that are no whole numbers."""
    summary = encode(summarize(gap=[np.array([-0.1])], advantages=np.array([-1.0])))
    store = SqliteStore(directory)
    for number in range(UPDATES):
        run = f"faulty-{number}"
        shards = [ShardRow(run, 0, 1, shard, 3, "digest", 1.0, 100, summary, b"no number") for shard in range(2)]
        store.write(RunRow(run, 1.0), *shards).result()
    store.close()


def test_served_process_whose_stderr_nobody_reads_goes_on_and_ends_cleanly(tmp_path: Path) -> None:
    _damaged_updates(tmp_path)
    command = [sys.executable, "-m", "triage_monitor", "serve", "--port", "0", "--data-dir", str(tmp_path)]
    env = {**os.environ, "TRIAGE_INGEST__GRACE_SECONDS": "0.2"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None and process.stderr is not None
    try:
        with httpx.Client(base_url=process.stdout.readline().split()[-1], timeout=60, trust_env=False) as http:
            until = time.monotonic() + 120
            while _failed(http) < UPDATES and time.monotonic() < until:
                assert http.get("/healthz").status_code == 200
            assert _failed(http) >= UPDATES
            for step in range(3):
                put = f"/v1/runs/sound/updates/{step}/shards/0"
                assert http.put(put, content=masses(3, 2), headers=STREAM).json()["update"] == "complete"
            assert "triage_log_dropped_total 0.0" in http.get("/metrics").text
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        written = process.stderr.read()
        assert 0 < written.count("could not be closed") < UPDATES  # the pipe was full before the last
    finally:
        process.kill()
        process.communicate()


def _failed(http: httpx.Client) -> float:
    found = re.search(r'rejected_total\{reason="close_failed"\} (\S+)', http.get("/metrics").text)
    return 0.0 if found is None else float(found[1])
