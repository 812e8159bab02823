"""What happens after the clock went back is told all the same."""

from __future__ import annotations

from pathlib import Path

from service.live_server import FakeClock, masses, serving
from service.test_webhook import act, settings, url_of
from service.webhook_receiver import Receiver, receiving

from triage_monitor.config import Settings
from triage_monitor.storage.memory import MemoryStore

ADAPTIVE = {"server": {"port": 0}, "judge": {"policy": {"mode": "adaptive"}}}


def numbers(receiver: Receiver, count: int) -> list[int]:
    return [item.body["change"]["number"] for item in receiver.wait_for(count)]


def test_run_that_began_before_its_target_by_a_clock_that_went_back_is_told_of(tmp_path: Path) -> None:
    clock = FakeClock()
    with receiving() as receiver, serving(settings(tmp_path, url_of(receiver)), clock=clock.clock) as server:
        clock.advance(-7200)
        server.put("run", 1, masses(3, 2))
        act(server, "a", kind="gate", w_min=0.3)
        assert numbers(receiver, 2) == [1, 2]


def test_only_what_an_older_run_did_before_the_target_came_is_left_out_when_the_clock_goes_back(tmp_path: Path) -> None:
    clock, store = FakeClock(), MemoryStore()
    with serving(Settings.from_dict(ADAPTIVE), store, clock.clock) as server:
        server.put("run", 1, masses(3, 2))
    clock.advance(60)
    with receiving() as receiver:
        configured = settings(tmp_path, url_of(receiver))
        with serving(configured, store, clock.clock) as server:
            server.put("other", 1, masses(3, 2))
            act(server, "a", run="other", kind="freeze")  # told once the older runs have been looked at
            assert numbers(receiver, 1) == [1]
        clock.advance(-7200)
        with serving(configured, store, clock.clock) as server:
            act(server, "b", kind="gate", w_min=0.3)
            assert numbers(receiver, 2) == [1, 2]
