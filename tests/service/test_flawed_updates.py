"""A run with a misaligned update now and then: its verdicts, and that a restart changes none (synthetic rollouts)."""

from __future__ import annotations

from typing import Any

import numpy as np
from fault_worlds import World, rollout
from service.live_server import LiveServer, serving

from triage_monitor.config import Settings
from triage_monitor.storage.memory import MemoryStore
from triage_monitor.storage.records import StateRow
from triage_monitor.summary.rows import encode_stream

SMALL = {
    "server": {"port": 0},
    "judge": {
        "window_updates": 4,
        "detector": {
            "baseline": {"first_updates": 4, "min_windows": 3, "windows": 6, "span_windows": 12},
            "minimum": {"updates": 3, "responses": 8, "tokens": 100},
        },
    },
}
UPDATES = 24


def world(step: int) -> World:
    random = np.random.default_rng([8, step])
    made = rollout(random, responses=8, tokens=(40, 60), noise=0.05)
    if step % 3 == 2:
        made.learner = [np.roll(values, -1) for values in made.learner]
    return made


def stages(live: LiveServer, steps: range) -> list[str]:
    found = []
    for step in steps:
        assert live.put("run", step, encode_stream(world(step).rows())).status_code == 201
        found.append(live.run("run")["stage"])
    return found


def state(store: MemoryStore) -> Any:
    row = store.get(StateRow, "run")
    assert row is not None
    return row.judge


def test_every_third_update_flawed_leaves_the_others_their_verdict() -> None:
    with serving(Settings.from_dict(SMALL)) as live:
        seen = stages(live, range(UPDATES))
        assert live.run("run")["findings"][0]["cause"] == "token_misalignment"
    assert seen[-6:] == ["healthy", "healthy", "not_observable"] * 2


def test_restart_after_every_fifth_update_changes_no_verdict() -> None:
    whole = MemoryStore()
    with serving(Settings.from_dict(SMALL), whole) as live:
        expected = stages(live, range(UPDATES))
    parts, seen = MemoryStore(), []
    for first in range(0, UPDATES, 5):
        with serving(Settings.from_dict(SMALL), parts) as live:
            seen += stages(live, range(first, min(first + 5, UPDATES)))
    assert seen == expected
    assert state(parts) == state(whole)
