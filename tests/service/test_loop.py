"""The whole loop: a trainer's `Monitor` against a real server, gaps in and parameters out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from service.live_server import LiveServer, serving

from triage_monitor import Monitor
from triage_monitor.config import Settings

# Alone: the shipped remedies would fall back to bf16 when this tail, which grows without end, gets to terminal.
GENTLE = {
    "name": "gentle",
    "stages": ["drift", "pre_terminal", "terminal"],
    "changes": {"gate.enabled": True, "repair.enabled": True},
}
ADAPTIVE = {
    "server": {"port": 0},
    "judge": {
        "window_updates": 5,
        "detector": {"baseline": {"first_updates": 5}, "minimum": {"updates": 3, "responses": 8, "tokens": 100}},
        "policy": {"mode": "adaptive", "min_dwell_updates": 1, "remedies": [GENTLE]},
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving(Settings.from_dict(ADAPTIVE)) as live:
        yield live


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def test_growing_tail_brings_a_stronger_set_to_the_trainer_and_its_acknowledgement_back(server: LiveServer) -> None:
    rng = np.random.default_rng(1)
    advantages = np.where(np.arange(16) % 2, 1.0, -1.0)
    offsets = np.arange(0, 16 * 128 + 1, 128)
    monitor = Monitor(server.address, run="loop", launch_id="one")
    try:
        for step in range(40):
            width = 0.02 if step < 15 else 0.02 * 1.35 ** (step - 14)
            gap = rng.normal(0, min(width, 3.0), 16 * 128).astype(np.float32)
            assert monitor.submit(step=step, gap=gap, advantages=advantages, offsets=offsets)
            wait_until(lambda: monitor.stats["queue_depth"] == 0)
        wait_until(lambda: monitor.params.version > 1)
        newest = server.run("loop")
        assert newest["params"]["gate"]["enabled"] and newest["params"]["repair"]["enabled"]
        wait_until(lambda: monitor.params.version == server.run("loop")["params_version"])
        used = monitor.apply(40)
        assert used.gate.enabled
        wait_until(lambda: (server.run("loop")["params_applied"] or {}).get("version") == used.version)
        assert server.run("loop")["params_applied"]["step"] == 40
    finally:
        assert monitor.close(10)
    assert monitor.stats["acknowledged"] == 40
    detail = server.run("loop")
    assert detail["attempt"] == 1
    assert detail["stage"] in ("drift", "pre_terminal", "terminal")
    history = server.http.get("/v1/runs/loop/params/history").json()["versions"]
    assert [item["params"]["version"] for item in history] == list(range(1, len(history) + 1))
    assert all(item["reason"] for item in history)
    assert history[1]["evidence"]["evidence"]
    changes = server.http.get("/v1/runs/loop/transitions").json()["transitions"]
    assert changes and all(item["rule"] for item in changes)
    kinds = [entry["kind"] for entry in server.http.get("/v1/runs/loop/actions").json()["actions"]]
    assert "strengthen" in kinds


def test_operators_set_is_left_alone_by_the_policy_until_release(server: LiveServer) -> None:
    rng = np.random.default_rng(2)
    advantages = np.where(np.arange(16) % 2, 1.0, -1.0)
    offsets = np.arange(0, 16 * 128 + 1, 128)
    with Monitor(server.address, run="held", launch_id="one") as monitor:

        def train(steps: range, width: Callable[[int], float]) -> None:
            for step in steps:
                gap = rng.normal(0, width(step), 16 * 128).astype(np.float32)
                monitor.submit(step=step, gap=gap, advantages=advantages, offsets=offsets)
                wait_until(lambda: monitor.stats["queue_depth"] == 0)

        train(range(15), lambda step: 0.02)
        server.http.put("/v1/runs/held/params", json={"lease_updates": 50}, headers={"If-Match": "*"})
        train(range(15, 30), lambda step: 0.02 * 1.35 ** (step - 14))
        assert server.run("held")["params_version"] == 2
        assert server.run("held")["policy_note"]
        server.http.post("/v1/runs/held/actions", json={"kind": "release"}, headers={"Idempotency-Key": "r"})
        train(range(30, 40), lambda step: 3.0)
    detail = server.run("held")
    assert detail["params_version"] > 2
    assert detail["params"]["gate"]["enabled"]
    assert detail["params"]["lease_updates"] == 50
