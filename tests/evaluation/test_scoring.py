"""Counting by hand: what makes an episode, a detection, a lead, a false alarm. All runs are synthetic."""

from __future__ import annotations

import numpy as np
import pytest
from evaluation.synthetic_runs import a_run

from triage_monitor.evaluation.scoring import NEVER, Answer, Runs, episodes, score, sweep
from triage_monitor.evaluation.tuning import ends
from triage_monitor.testbed.outcome import CollapseRule


def answer(first: list[int | None], count: list[int]) -> Answer:
    return Answer(np.array([NEVER if step is None else step for step in first]), np.array(count))


def runs(collapse: list[int | None], updates: list[int]) -> Runs:
    at = np.array([NEVER if step is None else step for step in collapse])
    return Runs(tuple(f"synthetic-{place}" for place in range(len(updates))), at, np.array(updates))


@pytest.mark.parametrize(
    ("on", "begun"),
    [
        ([], []),
        ([39], []),
        ([40], [40]),
        ([38, 39, 40, 41], [40]),  # still on when counting begins
        ([50, 75], [50]),  # 24 updates of silence between them
        ([50, 76], [50, 76]),  # 25
        ([50, 60, 70, 80, 90, 116], [50, 116]),  # silence counts from the last, not from the first
        ([20, 44], [44]),
    ],
)
def test_episode_begins_after_25_silent_updates(on: list[int], begun: list[int]) -> None:
    assert episodes(on) == begun
    row = np.zeros((1, 130), bool)
    row[0, on] = True
    first, count = sweep(row)
    assert first.tolist() == [begun[0] if begun else NEVER]
    assert count.tolist() == [len(begun)]


def test_lead_and_detection_by_hand() -> None:
    """Leads 50 and 1; at or after the collapse is a miss, and so is silence."""
    ended = runs([100, 100, 100, 100, None], [130, 130, 130, 130, 240])
    result = score(answer([50, 99, 100, None, None], [1, 1, 1, 0, 0]), ended)
    assert (result.collapses, result.too_early, result.detected) == (4, 0, 2)
    assert result.detection.value == 0.5
    assert result.lead.value == 25.5
    assert result.lead_quartiles == (13.25, 37.75)
    assert result.lead_with_misses.value == 0.5  # median of 50, 1, 0, 0
    assert result.beyond_horizon is None


def test_horizon_counts_detections_that_came_too_far_ahead() -> None:
    ended = runs([200, 200, 200], [230] * 3)
    assert score(answer([60, 150, 190], [1, 1, 1]), ended, horizon=100).beyond_horizon == 1


def test_collapse_too_early_is_its_own_number_and_a_miss_in_the_second() -> None:
    ended = runs([40, 12, 100], [70, 42, 130])
    result = score(answer([None, None, 60], [0, 0, 1]), ended)
    assert (result.collapses, result.too_early, result.detected) == (3, 2, 1)
    assert result.detection.value == 1.0
    assert result.detection_all.value == pytest.approx(1 / 3)


def test_false_alarms_are_episodes_of_survivors_over_their_counted_updates() -> None:
    """3 episodes over (140 - 40) + (240 - 40) + (30, too short to count) updates: 10 per 1,000."""
    ended = runs([None, None, None, 100], [140, 240, 30, 130])
    result = score(answer([50, 60, None, 45], [1, 2, 0, 4]), ended)
    assert (result.survivors, result.healthy_updates, result.false_alarms) == (2, 300, 3)
    assert result.false_alarm_rate.value == pytest.approx(10.0)
    assert result.survivors_alarmed.value == 1.0


def test_ahead_pairs_the_runs_and_counts_misses_as_zero() -> None:
    """Leads 50, 30, missed against 20, missed, 10: ahead by 30, 30, -10, median 30 (medians apart: 40 and 15)."""
    ended = runs([100, 100, 100], [130] * 3)
    ours, rival = answer([50, 70, None], [1, 1, 0]), answer([80, None, 90], [1, 0, 1])
    assert score(ours, ended, rival).ahead.value == 30.0
    assert score(rival, ended, rival).ahead.value == 0.0
    assert score(ours, ended).ahead.value is None


def test_by_chance_is_what_an_unrelated_alarm_of_that_rate_would_hit() -> None:
    """1 episode in 100 updates is 10 per 1,000; 100 exposed updates: 1 - exp(-1)."""
    ended = runs([140, None], [170, 140])
    assert score(answer([None, 50], [0, 1]), ended).by_chance == pytest.approx(0.63212, abs=1e-5)


def test_ends_follow_the_rule() -> None:
    falls, stays = a_run("synthetic-falls", collapse=80), a_run("synthetic-stays", updates=90)
    dips = a_run("synthetic-dips", updates=110, rewards=np.r_[np.full(60, 0.7), np.full(50, 0.5)])
    half, most = (ends([falls, stays, dips], CollapseRule(ratio=ratio)) for ratio in (0.5, 0.9))
    assert half.collapse.tolist() == [80, NEVER, NEVER]
    assert most.collapse.tolist() == [80, NEVER, 60]
    assert half.updates.tolist() == [110, 90, 110]
    assert half.survived.tolist() == [False, True, True]
