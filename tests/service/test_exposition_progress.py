"""What alerts count by: updates in a stage, updates without an acknowledgement, the run's own interval, its normal."""

from __future__ import annotations

from pathlib import Path

from service.live_server import FakeClock, LiveServer, masses, serving

from triage_monitor.config import Settings
from triage_monitor.storage.sqlite import SqliteStore

SOON = Settings.from_dict(
    {
        "server": {"port": 0},
        "judge": {
            "window_updates": 3,
            "detector": {
                "baseline": {"first_updates": 3, "min_windows": 2},
                "minimum": {"updates": 3, "tokens": 1, "responses": 1},
            },
            "policy": {"mode": "paper"},
        },
    }
)


def of(live: LiveServer, name: str, **labels: str) -> float | None:
    inside = ",".join(f'{key}="{value}"' for key, value in sorted({"run": "r", **labels}.items()))
    return live.metrics().get(f"triage_{name}{{{inside}}}")


def test_interval_is_the_median_and_absent_until_there_are_five_of_them() -> None:
    clock = FakeClock()
    with serving(SOON, clock=clock.clock) as live:
        for step, pause in enumerate((0, 240, 240, 900, 240)):
            clock.advance(pause)
            live.put("r", step, masses(3, 2))
        assert of(live, "update_interval_seconds") is None
        clock.advance(300)
        live.put("r", 5, masses(3, 2))
        assert of(live, "update_interval_seconds") == 240


def test_interval_and_counts_outlast_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    names = ("update_interval_seconds", "stage_updates", "params_unacknowledged_updates")
    store = SqliteStore(tmp_path)
    with serving(SOON, store, clock.clock) as live:
        for step in range(7):
            clock.advance(120)
            live.put("r", step, masses(3, 2))
        before = [of(live, name) for name in names]
        normal = of(live, "baseline", indicator="rho_asym")
    store.close()
    assert before[0] == 120 and before[2] == 7 and normal == 1.5
    store = SqliteStore(tmp_path)
    with serving(SOON, store, clock.clock) as live:
        assert [of(live, name) for name in names] == before
        assert of(live, "baseline", indicator="rho_asym") == normal
    store.close()


def test_acknowledgement_ends_the_count_and_a_new_set_begins_it_anew() -> None:
    with serving(SOON) as live:
        live.put("r", 0, masses(3, 2))
        live.put("r", 1, masses(3, 2))
        assert of(live, "params_unacknowledged_updates") == 2
        live.http.post("/v1/runs/r/params/ack", json={"version": 1, "step": 2})
        assert of(live, "params_unacknowledged_updates") == 0
        live.http.put("/v1/runs/r/params", json={"gate": {"w_min": 0.4}}, headers={"If-Match": "*"})
        assert of(live, "params_unacknowledged_updates") == 0
        live.put("r", 2, masses(3, 2))
        assert of(live, "params_unacknowledged_updates") == 1
        assert of(live, "params_refused") == 0
        live.http.post("/v1/runs/r/params/ack", json={"version": 2, "step": 3, "refused": "outside our limits"})
        assert of(live, "params_refused") == 1
        live.http.put("/v1/runs/r/params", json={"gate": {"w_min": 0.6}}, headers={"If-Match": "*"})
        assert of(live, "params_refused") == 0
        live.http.post("/v1/runs/r/params/ack", json={"version": 3, "step": 3})
        assert of(live, "params_unacknowledged_updates") == 0


def test_run_without_parameters_has_none_to_acknowledge() -> None:
    observe = Settings.from_dict({"server": {"port": 0}})
    with serving(observe) as live:
        live.put("r", 0, masses(3, 2))
        assert of(live, "params_unacknowledged_updates") is None
        assert of(live, "params_refused") == 0


def test_stage_counts_from_the_update_that_entered_it() -> None:
    with serving(SOON) as live:
        counts = []
        for step in range(8):
            live.put("r", step, masses(3, 2))
            counts.append((live.run("r")["stage"], of(live, "stage_updates")))
        entered = next(place for place, (stage, _) in enumerate(counts) if stage == "healthy")
        assert [count for _, count in counts[:entered]] == list(range(1, entered + 1))
        assert [count for _, count in counts[entered:]] == list(range(1, 9 - entered))


def test_notice_counts_the_updates_for_which_it_has_held() -> None:
    with serving(SOON) as live:
        for step in range(4):
            live.put("r", step, masses(30, 20))
        assert of(live, "notice_updates", kind="one_sided") == 0
        for step in range(4, 20):
            live.put("r", step, masses(30, 0))
            held = of(live, "notice", kind="one_sided")
            if held:
                break
        live.put("r", step + 1, masses(30, 0))
        assert of(live, "notice_updates", kind="one_sided") == 2
