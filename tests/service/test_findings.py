"""Named causes live: in a run's answer, on /metrics, in events, after a restart, and as `analyze` has them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import fault_kinds
import numpy as np
from service.live_server import LiveServer, serving

from triage_monitor import Monitor
from triage_monitor.cli.analysis import analyse
from triage_monitor.storage.memory import MemoryStore
from triage_monitor.storage.recordings import RecordedUpdate
from triage_monitor.storage.records import SymptomRow
from triage_monitor.summary.codec import encode
from triage_monitor.summary.rows import SUMMARY_MIME, encode_stream
from triage_monitor.summary.rows_values import UpdateRows
from triage_monitor.summary.spec import DEFAULT_SPEC


def update(step: int) -> UpdateRows:
    """Healthy until step 3, then bfloat16 columns, from step 5 on also fillers (synthetic)."""
    random = np.random.default_rng([11, step])
    kind = "healthy" if step < 3 else "coarse" if step < 5 else "placeholders"
    return getattr(fault_kinds, kind)(random).rows()  # type: ignore[no-any-return]


def send(live: LiveServer, steps: range) -> None:
    for step in steps:
        assert live.put("run-a", step, encode_stream(update(step))).status_code == 201


def shown(live: LiveServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = live.run("run-a")["findings"]
    return found


def test_findings_are_those_of_analyze_and_survive_a_restart(tmp_path: Any) -> None:
    store = MemoryStore()
    with serving(store=store) as live:
        send(live, range(6))
        before = shown(live)
        samples = live.metrics()
        assert samples['triage_finding{cause="dummy_tokens",run="run-a"}'] == 1.0
        assert samples['triage_finding{cause="one_engine",run="run-a"}'] == 0.0
    recorded = [RecordedUpdate("run-a", step, 0, update(step), tmp_path, 0, True) for step in range(6)]
    assert before == analyse(recorded, spec=DEFAULT_SPEC, window=25).document["findings"]
    assert [(item["cause"], item["step"]) for item in before] == [("low_precision_logprobs", 3), ("dummy_tokens", 5)]
    with serving(store=store) as live:
        assert shown(live) == before
        send(live, range(6, 8))
        after = shown(live)
    assert [(item["cause"], item["step"], item["evidence"]["updates"]) for item in after] == [
        ("low_precision_logprobs", 3, 2),
        ("dummy_tokens", 5, 3),
    ]


def test_split_update_and_a_late_shard_are_diagnosed_whole() -> None:
    random = np.random.default_rng(3)
    world = fault_kinds.plain(random, responses=20)
    world.learner[2] = world.learner[2] - 6.0
    world.learner[15] = world.learner[15] - 6.0
    halves = []
    for start, stop in ((0, 10), (10, 20)):
        part = fault_kinds.World(random, world.learner[start:stop], world.sampler[start:stop], [1.0] * 10)
        halves.append(encode_stream(part.rows()))
    with serving() as live:
        for shard, body in enumerate(halves):
            live.put("run-a", 0, body, shard=shard, shards=2)
        (found,) = shown(live)
    assert (found["cause"], found["evidence"]["responses"]) == ("broken_responses", 2)


def test_new_attempt_takes_back_what_it_replaces() -> None:
    with serving() as live:
        for step in range(4):
            rows = fault_kinds.healthy(np.random.default_rng(step)).rows() if step < 2 else update(5)
            live.put("run-a", step, encode_stream(rows), attempt=1)
        assert [item["cause"] for item in shown(live)] == ["dummy_tokens"]
        live.put("run-a", 2, encode_stream(update(0)), attempt=2)
        assert shown(live) == []


def test_update_sent_as_a_summary_has_no_symptoms_and_no_named_cause() -> None:
    store = MemoryStore()
    with serving(store=store) as live:
        body = encode(update(5).summarize())
        answer = live.put("run-a", 0, body, headers={"Content-Type": SUMMARY_MIME})
        assert answer.status_code == 201
        assert shown(live) == []
    assert store.rows(SymptomRow, "run-a") == []


def test_events_carry_the_causes_of_their_update() -> None:
    with serving() as live:
        send(live, range(1))

        async def subscribe() -> Any:
            return live.sidecar.hub.subscribe("run-a")

        listener = live.call(subscribe())
        send(live, range(5, 6))

        async def heard() -> str:
            text: str = await asyncio.wait_for(listener.waiting.get(), 10)
            return text

        text = live.call(heard())
    data = json.loads(text.split("data: ", 1)[1].strip())
    assert (data["step"], data["findings"]) == (5, ["dummy_tokens"])


def test_trainer_that_reduces_at_the_edge_has_its_causes_named_too() -> None:
    random = np.random.default_rng(5)
    world = fault_kinds.shifted(random)
    offsets = np.cumsum([0, *(len(values) for values in world.learner)])
    with serving() as live, Monitor(live.address, run="edge", launch_id="a", mode="summary") as monitor:
        monitor.submit(
            step=0,
            learner_logprobs=np.concatenate(world.learner),
            sampler_logprobs=np.concatenate(world.sampler),
            advantages=np.array(world.advantage),
            offsets=offsets,
        )
        assert monitor.close(30)
        found = live.run("edge")["findings"]
    assert [item["cause"] for item in found] == ["token_misalignment"]
