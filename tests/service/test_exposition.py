"""The scrape: names, labels, help, absence, two applications in one process (C40)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from service.live_server import FakeClock, LiveServer, masses, serving

from triage_monitor.config import Settings
from triage_monitor.judge.indicators import INDICATOR_NAMES
from triage_monitor.service.app import build
from triage_monitor.storage.memory import MemoryStore


@pytest.fixture(scope="module")
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="module")
def server(clock: FakeClock) -> Iterator[LiveServer]:
    with serving(clock=clock.clock) as live:
        live.put("run-a", 3, masses(3, 2))
        live.put("run-a", 4, b"")
        yield live


CONTRACT = {
    "triage_stage", "triage_gap_quantile", "triage_indicator_defined", "triage_update_step",
    "triage_last_update_timestamp_seconds", "triage_params_version", "triage_params_applied_version",
    "triage_actions", "triage_ingest_updates", "triage_ingest_rejected", "triage_ingest_bytes",
    "triage_ingest_duration_seconds", "triage_rho_asym", "triage_mismatch_energy",
}  # fmt: skip


def test_names_of_the_contract_are_there_with_help(server: LiveServer) -> None:
    server.http.post("/v1/runs/run-a/actions", json={"kind": "gate"}, headers={"Idempotency-Key": "k"})
    families = {family.name: family for family in text_string_to_metric_families(server.http.get("/metrics").text)}
    assert set(families) >= CONTRACT
    assert all(name.startswith("triage_") for name in families)
    assert [name for name, family in families.items() if not family.documentation] == []
    assert families["triage_ingest_duration_seconds"].type == "histogram"
    assert families["triage_actions"].type == "counter"


def test_every_indicator_is_a_gauge_with_run_and_scope(server: LiveServer) -> None:
    samples = server.metrics()
    for name in INDICATOR_NAMES:
        metric = "triage_" + re.sub(r"[^a-zA-Z0-9_]", "_", name)
        defined = samples[f'triage_indicator_defined{{indicator="{name}",run="run-a"}}']
        assert (f'{metric}{{run="run-a",scope="window"}}' in samples) == bool(defined), name
    assert samples['triage_rho_asym{run="run-a",scope="update"}'] == 1.5
    assert samples['triage_gap_quantile{advantage="neg",q="0.05",run="run-a",scope="update"}'] < 0


def test_progress_and_stage_are_exposed(server: LiveServer, clock: FakeClock) -> None:
    samples = server.metrics()
    assert samples['triage_update_step{run="run-a"}'] == 3
    assert samples['triage_last_update_timestamp_seconds{run="run-a"}'] == clock.seconds
    stages = {name: value for name, value in samples.items() if name.startswith("triage_stage{")}
    assert len(stages) == 6 and sum(stages.values()) == 1
    assert samples['triage_ingest_rejected_total{reason="empty_body"}'] == 1
    assert samples['triage_ingest_duration_seconds_bucket{le="+Inf"}'] == 1
    assert samples["triage_ingest_duration_seconds_count"] == 1


def test_labels_come_from_a_bounded_vocabulary(server: LiveServer) -> None:
    labels: set[str] = set()
    for family in text_string_to_metric_families(server.http.get("/metrics").text):
        for sample in family.samples:
            labels |= set(sample.labels)
    known = {"run", "scope", "q", "advantage", "indicator", "stage", "kind", "outcome", "reason", "le", "cause", "part"}
    known |= {"side"}
    assert labels <= known


def test_silent_run_keeps_its_timestamp_until_it_is_retired(server: LiveServer, clock: FakeClock) -> None:
    server.put("silent", 1, masses(1, 1))
    at = clock.seconds
    clock.advance(600)
    assert server.metrics()['triage_last_update_timestamp_seconds{run="silent"}'] == at
    clock.advance(90_000)
    assert not [name for name in server.metrics() if 'run="silent"' in name]
    assert server.run("silent")["last_update"]["step"] == 1


def test_plain_text_is_served_whatever_is_asked_for(server: LiveServer) -> None:
    answer = server.http.get("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_cached_page_is_byte_for_byte_what_the_client_library_writes(server: LiveServer) -> None:
    for _ in range(2):
        server.put("cached", server.sidecar.tally.updates, masses(2, 1))
        expected = generate_latest(server.application.registry)
        assert server.http.get("/metrics").content == expected
        assert server.http.get("/metrics").content == expected


def test_two_applications_fit_in_one_interpreter_even_on_one_registry() -> None:
    settings = Settings()
    first, second = build(settings, MemoryStore()), build(settings, MemoryStore())
    assert first.registry is not second.registry
    shared = CollectorRegistry()
    build(settings, MemoryStore(), registry=shared)
    build(settings, MemoryStore(), registry=shared)


def test_times_of_shards_are_absent_until_there_was_one() -> None:
    accepted, rejected = (f"triage_ingest_last_{what}_timestamp_seconds" for what in ("accepted", "rejected"))
    clock = FakeClock()
    with serving(clock=clock.clock) as live:
        assert not {accepted, rejected} & live.metrics().keys()
        live.put("first", 1, masses(1, 1))
        assert live.metrics()[accepted] == clock.seconds
        assert rejected not in live.metrics()
        live.put("first", 2, b"")
        assert live.metrics()[rejected] == clock.seconds
