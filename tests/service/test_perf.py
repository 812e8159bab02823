"""Ratios against baselines of the same run: ingest against a bare uvicorn sink, the scrape of 50 runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import httpx
import numpy as np
import pytest
from service.bare_sink import bare_sink
from service.live_server import arrow, serving
from service.served_process import served

from triage_monitor.service.exposition import SidecarCollector
from triage_monitor.service.exposition_text import TextPage
from triage_monitor.summary.rows import encode_arrays


@pytest.fixture
def sink() -> Iterator[httpx.Client]:
    with bare_sink() as address, httpx.Client(base_url=address, trust_env=False) as http:
        yield http


def seconds(work: Callable[[], httpx.Response]) -> float:
    started = time.perf_counter()
    assert work().status_code in (200, 201)
    return time.perf_counter() - started


@pytest.mark.perf
def test_ten_million_tokens_are_durable_and_judged_in_a_few_times_their_bare_upload(
    sink: httpx.Client, tmp_path: Path
) -> None:
    tokens, responses, turns = 10_485_760, 512, 5
    rng = np.random.default_rng(0)
    offsets = np.arange(0, tokens + 1, tokens // responses)
    gap = rng.normal(0, 0.05, tokens).astype(np.float32)
    bare, ours = [], []
    with served(tmp_path) as server:
        for step in range(turns):
            body = encode_arrays(gap=gap, advantages=rng.normal(size=responses), offsets=offsets)
            bare.append(seconds(lambda body=body: sink.put("/", content=body, timeout=60)))
            ours.append(seconds(lambda body=body, step=step: server.put("run", step, body)))
        assert server.http.get("/v1/runs/run").json()["window"]["updates"] == turns
    print(f"bare {median(bare) * 1e3:.0f} ms, ours {median(ours) * 1e3:.0f} ms, ratio {min(ours) / min(bare):.2f}")
    assert min(ours) < 5 * min(bare)


@pytest.mark.perf
def test_scrape_of_fifty_unchanged_runs_costs_little_of_what_the_client_library_needs() -> None:
    with serving() as live:
        for number in range(50):
            live.put(f"run-{number}", 1, arrow([[-0.1, 0.2] * 40, [0.3]], [-1.0, 1.0]))
        (collector,) = live.application.registry._collector_to_names
        assert isinstance(collector, SidecarCollector)
        page = TextPage(collector)
        page.render()
        started = time.process_time()
        text = page.render()
        cached = time.process_time() - started
    assert text.count(b"\n") > 10_000
    assert cached < 0.1
