"""A body's memory is promised to others once its request is over, so nothing may hold it any longer."""

from __future__ import annotations

import gc
import threading
import tracemalloc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from service.live_server import STREAM, LiveServer, serving

from triage_monitor.service.digest import PIECE_BYTES, RunningDigest
from triage_monitor.summary.rows import STREAM_MIME, encode_arrays

TOKENS = 600_000
REPEATS = 4


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving() as live:
        assert live.put("run", 1, signed(1.0)).status_code == 201
        yield live


def gaps() -> Any:
    return np.random.default_rng(2).normal(0, 0.05, TOKENS).astype(np.float32)


def signed(advantage: float) -> bytes:
    return encode_arrays(gap=gaps(), advantages=np.array([advantage]), offsets=np.array([0, TOKENS]))


def damaged() -> bytes:
    body = bytearray(signed(1.0))
    body[-100] ^= 1
    return bytes(body)


def of_another_step() -> bytes:
    columns = {"step": pa.array([7]), "gap": pa.array([gaps()]), "advantage": pa.array([1.0])}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.table(columns).schema) as writer:
        writer.write_table(pa.table(columns))
    return bytes(sink.getvalue())


@contextmanager
def no_search_for_cycles() -> Iterator[None]:
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize(
    ("body", "query", "step", "refusal"),
    [
        (signed(2.0), {}, 1, (409, "conflict")),
        (damaged(), {}, 2, (400, "checksum")),
        (of_another_step(), {}, 2, (422, "other_place")),
        (signed(1.0), {"attempt": 5000}, 2, (409, "attempt")),
    ],
    ids=lambda given: given[1] if isinstance(given, tuple) else "",
)
def test_refused_body_is_let_go_without_a_search_for_cycles(
    server: LiveServer, body: bytes, query: dict[str, int], step: int, refusal: tuple[int, str]
) -> None:
    path = f"/v1/runs/run/updates/{step}/shards/0"
    with no_search_for_cycles():
        for _ in range(REPEATS):
            answer = server.http.put(path, params=query, content=body, headers=STREAM)
            assert (answer.status_code, answer.json()["reason"]) == refusal
        held = [trace for trace in tracemalloc.take_snapshot().traces if trace.size >= len(body)]
    assert len(held) <= 1  # the last one's request may just be ending


def test_body_that_was_given_up_is_not_held_by_what_waits_for_a_worker() -> None:
    """The workers are busy; two jobs of each body wait in their queue."""
    release, held = threading.Event(), []
    with ThreadPoolExecutor(1) as workers:
        workers.submit(release.wait)
        try:
            for _ in range(REPEATS):
                memory = np.zeros(3 * PIECE_BYTES, np.uint8)
                held.append(weakref.ref(memory))
                with RunningDigest(workers, STREAM_MIME) as digest:
                    digest.seen(memory.data)
                    digest.text(memory.data)
                del memory
            left = [one() for one in held]
        finally:
            release.set()
    assert left == [None] * REPEATS
