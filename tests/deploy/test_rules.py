"""The rules on series as a run makes them: updates minutes apart, counted as updates, ended by their own hysteresis."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml
from deploy.rule_series import EVERY, INSTANCE, RULES, Story
from programs import program

from triage_monitor.judge.causes_table import CAUSES
from triage_monitor.service.alerts import ALERTS, BY_NAME

README = Path(__file__).parents[2] / "README.md"
IMBALANCE, SEVERE = "TriageDirectionalImbalance", "TriageDirectionalImbalanceSevere"


def rules() -> dict[str, dict[str, object]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def test_promtool_accepts_the_rules() -> None:
    done = subprocess.run([program("promtool"), "check", "rules", str(RULES)], capture_output=True, text=True)
    assert done.returncode == 0 and "SUCCESS" in done.stdout, done.stdout + done.stderr


def test_every_alert_says_what_the_table_says_and_links_to_its_paragraph() -> None:
    known = rules()
    assert list(BY_NAME) and set(known) == set(BY_NAME)
    text = README.read_text(encoding="utf-8")
    for alert in ALERTS:
        rule = known[alert.name]
        annotations = rule["annotations"]
        assert isinstance(annotations, dict)
        assert rule["labels"] == {"severity": alert.severity}
        assert alert.summary in annotations["summary"]
        assert annotations["description"] == f"{alert.means} {alert.remedy}"
        assert annotations["runbook_url"] == alert.runbook == f"README.md#{alert.name.lower()}"
        assert f"\n### {alert.name}\n" in text


def test_causes_that_are_notes_and_causes_that_blind_are_kept_apart() -> None:
    named, blind = str(rules()["TriageCauseNamed"]["expr"]), str(rules()["TriageGapsUnusable"]["expr"])
    for cause in CAUSES:
        is_blind = cause.blinds and cause.name != "not_observable"
        assert (cause.name in blind) == is_blind, cause.name
        assert (cause.name in named) == (cause.kind == "note" or cause.blinds), cause.name


def test_imbalance_is_counted_in_updates_and_ends_by_its_own_hysteresis(tmp_path: Path) -> None:
    story = Story(60).run()
    # The judge says it from update 10 to 47; whether it is an alarm flickers, as rho_excess goes over its band.
    story.add("triage_notice", [0] * 10 + [1] * 38 + [0], run="qwen", kind="directional_imbalance")
    story.add("triage_notice_alarm", [0] * 10 + [1, 0] * 19 + [0], run="qwen", kind="directional_imbalance")
    story.add("triage_rho_asym", [1.0] * 10 + [1.6], run="qwen", scope="window")
    low = [0.9] * 10 + [1.3] * 28 + [1.2] * 4 + [1.1] * 6 + [0.95]
    story.add("triage_rho_asym_low", low, run="qwen", scope="window")
    story.add("triage_rho_asym_high", [1.1] * 10 + [1.9], run="qwen", scope="window")
    story.at_update(9).at_update(10, IMBALANCE).at_update(11, IMBALANCE).at_update(34, IMBALANCE)
    story.at_update(35, IMBALANCE, SEVERE).at_update(41, IMBALANCE, SEVERE).at_update(42, IMBALANCE)
    story.at_update(47, IMBALANCE).at_update(48)
    alert = BY_NAME[IMBALANCE]
    annotations = {"summary": f"qwen: {alert.summary}", "description": f"{alert.means} {alert.remedy}"}
    labels = {**INSTANCE, "run": "qwen", "scope": "window", "severity": "warning"}
    firing = [{"exp_labels": labels, "exp_annotations": {**annotations, "runbook_url": alert.runbook}}]
    full = [{"eval_time": f"{20 * EVERY}m", "alertname": IMBALANCE, "exp_alerts": firing}]
    story.check(tmp_path, full)


def test_imbalance_towards_positive_advantages_counts_alike(tmp_path: Path) -> None:
    story = Story(40).run()
    for metric in ("triage_notice", "triage_notice_alarm"):
        story.add(metric, [1], run="qwen", kind="directional_imbalance")
    story.add("triage_rho_asym", [0.6], run="qwen", scope="window")
    story.add("triage_rho_asym_low", [0.5], run="qwen", scope="window")
    story.add("triage_rho_asym_high", [0.7], run="qwen", scope="window")
    story.at_update(24, IMBALANCE).at_update(25, IMBALANCE, SEVERE).check(tmp_path)


def crowding(story: Story, run: str, growth: list[float], tail: list[float]) -> None:
    story.run(run)
    story.add("triage_top5_tail_share", [0.2 * value for value in growth], run=run, scope="window")
    story.add("triage_persistence", [3.0], run=run, scope="window")
    for side in ("neg", "pos"):
        labels = {"run": run, "scope": "window", "q": "0.001", "advantage": side}
        story.add("triage_gap_quantile", [-value for value in tail], **labels)
        story.add("triage_baseline", [-1.0], run=run, indicator=f"q0.001_{side}")
    story.add("triage_baseline", [0.2], run=run, indicator="top5_tail_share")
    story.add("triage_baseline", [3.0], run=run, indicator="persistence")


def test_crowding_beside_a_growing_tail_fires_at_its_fifth_update(tmp_path: Path) -> None:
    story = Story(40)
    growth = [1.0] * 10 + [1.8] * 6 + [1.3] * 6 + [1.2] * 4 + [1.4]
    crowding(story, "qwen", growth, [1.0] * 10 + [1.5] * 4 + [1.15])
    story.at_update(13).at_update(14, "TriageSegmentCrowding").at_update(21, "TriageSegmentCrowding")
    story.at_update(22).at_update(39).check(tmp_path)


def test_crowding_with_a_tail_at_rest_is_silent(tmp_path: Path) -> None:
    story = Story(30)
    crowding(story, "healing", [1.0] * 5 + [4.0], [1.0])
    story.at_update(12).at_update(29).check(tmp_path)


def test_terminal_magnitude_is_the_bulk_and_needs_five_updates(tmp_path: Path) -> None:
    story = Story(30).run()
    story.add("triage_baseline", [0.03], run="qwen", indicator="abs_delta_mean")
    bulk = [0.03] * 5 + [0.1] * 3 + [0.06] + [0.1] * 7 + [0.075] * 4 + [0.07]
    story.add("triage_abs_delta_mean", bulk, run="qwen", scope="window")
    story.at_update(8).at_update(12).at_update(13, "TriageTerminalMagnitude")
    story.at_update(19, "TriageTerminalMagnitude").at_update(20).check(tmp_path)


def test_stages_are_alerts_of_their_own(tmp_path: Path) -> None:
    story = Story(12).run()
    names = ("drift", "pre_terminal", "terminal", "not_observable")
    for number, stage in enumerate(names):
        story.add("triage_stage", [float(update // 3 == number) for update in range(12)], run="qwen", stage=stage)
    story.at_update(1, "TriageRunDrifting").at_update(4, "TriageRunPreTerminal").at_update(7, "TriageRunTerminal")
    story.at_update(10, "TriageNotObservable").check(tmp_path)


def test_unusable_tokens_and_named_causes_outlast_one_good_update(tmp_path: Path) -> None:
    story = Story(20).run()
    story.add("triage_nonfinite_fraction", [0, 0, 0.001, 0, 0.002, 0], run="qwen", scope="update")
    story.add("triage_missing_fraction", [0.005], run="qwen", scope="update")
    story.add("triage_finding", [0] * 12 + [1], run="qwen", cause="token_misalignment")
    story.add("triage_finding", [0] * 12 + [1], run="qwen", cause="stale_weights")
    story.add("triage_finding", [1], run="qwen", cause="short_responses")
    bad = "TriageUnusableTokens"
    story.at_update(1).at_update(2, bad).at_update(3, bad).at_update(5, bad).at_update(11)
    story.at_update(13, "TriageCauseNamed", "TriageGapsUnusable").check(tmp_path)


def test_notices_and_missing_direction_are_told(tmp_path: Path) -> None:
    story = Story(40).run()
    story.add("triage_notice", [0, 1, 0], run="qwen", kind="reward_falling")
    story.add("triage_notice", [0, 0, 1, 0], run="qwen", kind="one_sided")
    story.add("triage_indicator_defined", [1] * 5 + [0], run="qwen", indicator="rho_asym")
    story.at_update(1, "TriageRewardFalling").at_update(2, "TriageOneSided").at_update(29)
    story.at_update(30, "TriageDirectionUndefined").check(tmp_path)


def test_parameters_refused_or_left_lying_are_counted_in_updates(tmp_path: Path) -> None:
    story = Story(20).run()
    story.add("triage_params_refused", [0, 0, 1, 0], run="qwen")
    story.add("triage_params_unacknowledged_updates", [0, 1, 2, 3, 4, 5, 6, 0], run="qwen")
    late = "TriageParametersUnacknowledged"
    story.at_update(2, "TriageParametersRefused").at_update(4).at_update(5, late).at_update(7).check(tmp_path)


def test_trainer_that_obeys_another_monitor_is_told(tmp_path: Path) -> None:
    story = Story(20).run()
    story.add("triage_params_fenced", [0, 0, 1, 1, 0], run="qwen")
    story.at_update(1).at_update(2, "TriageTrainerFenced").at_update(4).check(tmp_path)


def test_trainer_is_stalled_by_its_own_pace(tmp_path: Path) -> None:
    story = Story(40)
    # `quick` steps every 4 minutes until minute 20, `slow` every 20, `young` closed one update at minute 0.
    stamps = " ".join(str(min(minute // 4 * 4, 20) * 60) for minute in range(160))
    story.each_minute("triage_last_update_timestamp_seconds", stamps, run="quick")
    story.each_minute("triage_update_interval_seconds", "240x160", run="quick")
    slow = " ".join(str(minute // 20 * 20 * 60) for minute in range(160))
    story.each_minute("triage_last_update_timestamp_seconds", slow, run="slow")
    story.each_minute("triage_update_interval_seconds", "1200x160", run="slow")
    story.at_minute(39).at_minute(42, "TriageTrainerStalled").check(tmp_path)
    young = Story(40).each_minute("triage_last_update_timestamp_seconds", "0x160", run="young")
    young.at_minute(30).at_minute(31, "TriageTrainerStalled").check(tmp_path)


def test_refusals_alert_from_the_first_one_of_a_new_reason(tmp_path: Path) -> None:
    story = Story(40)
    story.each_minute("triage_ingest_rejected_total", "0x160", reason="other")
    story.each_minute("triage_ingest_rejected_total", "_x60 1+1x100", reason="ragged_rows")
    story.each_minute("triage_ingest_shards_total", "0+2x160")
    story.at_minute(59).at_minute(63, "TriageIngestRejected").check(tmp_path)


def test_few_refusals_among_many_shards_are_none(tmp_path: Path) -> None:
    story = Story(40).each_minute("triage_ingest_rejected_total", "0x60 1x100", reason="other")
    story.each_minute("triage_ingest_shards_total", "0+64x160")
    story.at_minute(65).check(tmp_path)


def test_losses_on_the_way_in_alert(tmp_path: Path) -> None:
    story = Story(30).run()
    story.add("triage_partial_updates", [0] * 5 + [1], run="qwen")
    story.add("triage_client_dropped_updates", [3] * 15 + [4], run="qwen", reason="queue_full")
    story.at_update(4).at_update(6, "TriageUpdatesPartial").at_update(14)
    story.at_update(16, "TriageTrainerDropsUpdates").check(tmp_path)


def test_update_that_is_set_aside_alerts_until_it_is_closed(tmp_path: Path) -> None:
    story = Story(30).run()
    story.add("triage_unclosable_updates", [0] * 10 + [1] * 5 + [0], run="qwen")
    story.at_update(9).at_update(12, "TriageUpdateUnclosable").at_update(18).check(tmp_path)


def test_failing_store_alerts_at_once_and_an_absent_monitor_after_two_minutes(tmp_path: Path) -> None:
    story = Story(20)
    story.each_minute("triage_store_writable", "1x10 0x2 1x60")
    story.each_minute("triage_store_corrupt_rows_total", "0x80")
    story.each_minute("up", "1x39 0x9 _x40")
    story.at_minute(10).at_minute(11, "TriageStoreFailing").at_minute(17, "TriageStoreFailing").at_minute(25)
    story.at_minute(41).at_minute(42, "TriageMonitorAbsent").at_minute(60, "TriageMonitorAbsent").check(tmp_path)


def test_damage_to_the_store_is_told_when_it_is_found_and_loss_apart_from_it(tmp_path: Path) -> None:
    story = Story(120)
    story.each_minute("triage_store_damaged_total", "0x20 1x49 2x400")
    story.each_minute("triage_store_lost_writes_total", "0x70 3x400")
    story.at_minute(20).at_minute(22, "TriageStoreDamaged")
    story.at_minute(73, "TriageStoreDamaged", "TriageStoreLostWrites").at_minute(470).check(tmp_path)
