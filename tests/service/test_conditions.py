"""Conditions of the direct push, on snapshots made by hand: entered, kept, counted in updates, ended."""

from __future__ import annotations

from typing import Any

from triage_monitor.judge.causes_table import CAUSES
from triage_monitor.parameters import TriageParams
from triage_monitor.service.alerts import BY_NAME
from triage_monitor.service.conditions import OF_A_RUN, OF_THE_MONITOR, Held, Seen, advanced, ended
from triage_monitor.service.live import Snapshot
from triage_monitor.storage.records import UpdateRow

NEED_A_WINDOW_OR_SOMEBODY_ELSE = {
    "TriageUpdatesPartial", "TriageTrainerDropsUpdates", "TriageIngestRejected", "TriageMonitorAbsent",
}  # fmt: skip
IMBALANCE, SEVERE = "TriageDirectionalImbalance", "TriageDirectionalImbalanceSevere"


def snapshot(step: int, *, at: float = 0.0, **more: Any) -> Snapshot:
    window = {"indicators": {"rho_asym": 1.0, **more.pop("window", {})}, "quantiles": more.pop("quantiles", {})}
    update = {"indicators": more.pop("update", {}), "quantiles": {}}
    notices = [{"kind": kind, "severity": severity} for kind, severity in more.pop("notices", {}).items()]
    report = {"update": update, "window": window, "notices": notices}
    newest = UpdateRow("run", 0, step, 0, "complete", 1, 0, at, "healthy", report)
    known: dict[str, Any] = {
        "run": "run", "attempt": 0, "newest": newest, "stage": "healthy", "params": TriageParams(), "params_at": 0.0,
        "applied": None, "held_by": None, "retired": False, "policy_note": "", "last_seen": at, "counters": {},
        "actions": {}, "client_drops": {}, "interval_seconds": 60.0,
    }  # fmt: skip
    return Snapshot(**{**known, **more})


def story(*moments: Snapshot, now: float = 0.0) -> list[set[str]]:
    """What fires after each."""
    held: dict[str, Held] = {}
    fired = []
    for moment in moments:
        held = advanced(OF_A_RUN, Seen(moment, now, held))
        fired.append({key for key, item in held.items() if item.firing_at is not None and item.ended_at is None})
    return fired


def test_every_alert_is_pushed_but_those_that_need_a_window_or_somebody_else() -> None:
    pushed = {condition.alert for condition in (*OF_A_RUN, *OF_THE_MONITOR)}
    assert set(BY_NAME) - pushed == NEED_A_WINDOW_OR_SOMEBODY_ELSE
    assert pushed <= set(BY_NAME)
    keys = [condition.key for condition in OF_A_RUN]
    assert len(set(keys)) == len(keys)
    causes = {condition.cause for condition in OF_A_RUN if condition.cause}
    faults = {cause.name for cause in CAUSES if cause.kind == "fault" or cause.blinds}
    assert causes == faults - {"not_observable"}


def test_imbalance_is_entered_as_an_alarm_and_kept_as_a_notice() -> None:
    mild, alarm = ({"notices": {"directional_imbalance": severity}} for severity in ("notice", "alarm"))
    fired = story(snapshot(1, **mild), snapshot(2, **alarm), snapshot(3, **mild), snapshot(4))
    assert fired == [set(), {IMBALANCE}, {IMBALANCE}, set()]


def test_severe_imbalance_needs_25_updates_of_it_and_ends_by_its_own_bound() -> None:
    said = {"notices": {"directional_imbalance": "alarm"}}

    def at(step: int, low: float) -> Snapshot:
        return snapshot(step, window={"rho_asym_low": low, "rho_asym_high": 3.0}, **said)

    fired = story(at(10, 1.3), at(34, 1.3), at(35, 1.3), at(36, 1.2), at(37, 1.1), at(38, 1.2))
    assert [SEVERE in names for names in fired] == [False, False, True, True, False, False]


def test_magnitude_and_crowding_are_counted_in_updates() -> None:
    normal = {"abs_delta_mean": 0.01, "top5_tail_share": 0.2, "persistence": 1.0, "q0.001_neg": -0.5}

    def at(step: int, gap: float, share: float, deep: float) -> Snapshot:
        window = {"abs_delta_mean": gap, "top5_tail_share": share, "persistence": 1.0}
        return snapshot(step, window=window, quantiles={"neg": {"0.001": deep}}, normal=normal)

    fired = story(at(1, 0.07, 0.4, -1.0), at(4, 0.07, 0.4, -1.0), at(5, 0.05, 0.4, -1.0), at(6, 0.04, 0.4, -0.5))
    assert fired == [set(), set(), {"TriageTerminalMagnitude", "TriageSegmentCrowding"}, set()]
    assert story(at(1, 0.01, 0.4, -0.5), at(9, 0.01, 0.4, -0.5)) == [set(), set()]


def test_cause_lasts_a_quarter_of_an_hour_beyond_its_last_finding() -> None:
    found, gone = snapshot(1, findings=({"cause": "engine_drift"},)), snapshot(2)
    held = advanced(OF_A_RUN, Seen(found, 1000.0))
    key = "TriageCauseNamed/engine_drift"
    assert held[key].firing_at == 1000.0
    held = advanced(OF_A_RUN, Seen(gone, 1899.0, held))
    assert held[key].ended_at is None
    held = advanced(OF_A_RUN, Seen(gone, 1900.0, held))
    assert (held[key].firing_at, held[key].ended_at) == (1000.0, 1900.0)
    assert advanced(OF_A_RUN, Seen(gone, 2000.0, held))[key] == held[key]
    again = advanced(OF_A_RUN, Seen(found, 2100.0, held))[key]
    assert (again.firing_at, again.ended_at) == (2100.0, None)


def test_trainer_is_stalled_by_its_own_pace() -> None:
    paced, young = snapshot(1, interval_seconds=60.0), snapshot(1, interval_seconds=None)
    for moment, calm, late in ((paced, 299.0, 301.0), (young, 1799.0, 1801.0)):
        assert story(moment, now=calm) == [set()]
        assert story(moment, now=late) == [{"TriageTrainerStalled"}]


def test_unusable_tokens_undefined_direction_and_stage_are_told() -> None:
    assert story(snapshot(1, update={"nonfinite_fraction": 0.001})) == [{"TriageUnusableTokens"}]
    assert story(snapshot(1, update={"missing_fraction": 0.01})) == [set()]
    assert story(*(snapshot(step, window={"rho_asym": None}) for step in (1, 25, 26))) == [
        set(), set(), {"TriageDirectionUndefined"},
    ]  # fmt: skip
    assert story(snapshot(1, stage="terminal")) == [{"TriageRunTerminal"}]
    assert story(*(snapshot(step, unclosable=count) for step, count in ((1, 0), (2, 1), (3, 0)))) == [
        set(), {"TriageUpdateUnclosable"}, set(),
    ]  # fmt: skip


def test_retired_run_ends_what_fired_and_drops_what_was_only_begun() -> None:
    held = {"fired": Held(1, 5.0), "begun": Held(1), "over": Held(1, 5.0, 7.0)}
    assert ended(held, 9.0) == {"fired": Held(1, 5.0, 9.0), "over": Held(1, 5.0, 7.0)}


def test_failing_store_is_an_alert_of_the_monitor() -> None:
    held = advanced(OF_THE_MONITOR, Seen(None, 10.0, store_failed=True))
    assert held["TriageStoreFailing"].firing_at == 10.0
    assert advanced(OF_THE_MONITOR, Seen(None, 311.0, held))["TriageStoreFailing"].ended_at == 311.0


def test_damaged_files_are_an_alert_of_the_monitor_for_six_hours_and_lost_writes_another() -> None:
    for lost, told in ((0, {"TriageStoreDamaged"}), (3, {"TriageStoreDamaged", "TriageStoreLostWrites"})):
        held = advanced(OF_THE_MONITOR, Seen(None, 10.0, lost_writes=lost))
        assert {key for key, item in held.items() if item.firing_at == 10.0} == told
        later = advanced(OF_THE_MONITOR, Seen(None, 10.0 + 6 * 3600 - 1, held))
        assert all(later[key].ended_at is None for key in told)
        over = advanced(OF_THE_MONITOR, Seen(None, 10.0 + 6 * 3600 + 1, later))
        assert all(over[key].ended_at == 10.0 + 6 * 3600 + 1 for key in told)
