"""How a run ended, from hand-made (synthetic) reward series: 20 updates, the date, the running best, the gradient."""

import pytest

from triage_monitor.testbed.outcome import CollapseRule, best_mean, collapse_step, trailing_mean

SMALL = CollapseRule(ratio=0.5, sustained=3, best_over=2)


def test_reward_below_half_of_its_best_for_20_updates_is_a_collapse_dated_to_the_first():
    assert collapse_step([0.8] * 30 + [0.3] * 20) == 30
    assert collapse_step([0.8] * 30 + [0.3] * 20 + [0.8] * 50) == 30  # what comes after changes nothing


def test_nineteen_updates_are_none():
    assert collapse_step([0.8] * 30 + [0.3] * 19) is None
    assert collapse_step([0.8] * 30 + [0.3] * 19 + [0.8] + [0.3] * 19) is None


def test_one_update_above_the_line_begins_the_count_anew():
    assert collapse_step([0.8] * 30 + [0.3] * 10 + [0.8] + [0.3] * 20) == 41


def test_exactly_half_is_not_below():
    assert collapse_step([0.8] * 30 + [0.4] * 40) is None
    assert collapse_step([0.8] * 30 + [0.3999] * 20) == 30


def test_best_is_a_mean_of_ten_and_a_single_lucky_update_sets_none():
    """One reward of 5 among 0.4 lifts the best mean to 0.86, half of it 0.43; one of 4 to 0.76, half of it 0.38."""
    lucky = [0.4] * 20 + [5.0] + [0.4] * 40
    assert best_mean(lucky) == pytest.approx(0.86)
    assert collapse_step(lucky) == 21
    assert collapse_step([0.4] * 20 + [4.0] + [0.4] * 40) is None


def test_best_runs_so_a_later_rise_judges_later_rewards_only():
    """0.3 is fine beside a best of 0.5 and a collapse beside one of 0.8."""
    assert collapse_step([0.5] * 20 + [0.3] * 30) is None
    assert collapse_step([0.5] * 20 + [0.3] * 30 + [0.8] * 10 + [0.3] * 20) == 60


def test_best_is_known_from_the_tenth_update_on():
    assert collapse_step([0.8] + [0.1] * 40) is None  # best 0.17, half of it 0.085
    # best 0.45, half of it 0.225; the falls of updates 5 to 8 had nothing to be compared with
    assert collapse_step([0.8] * 5 + [0.1] * 40) == 9


def test_reward_that_never_was_above_zero_does_not_collapse():
    assert collapse_step([0.0] * 100) is None
    assert collapse_step([]) is None


def test_first_update_without_a_finite_gradient_is_the_collapse():
    rewards = [0.8] * 50
    assert collapse_step(rewards, finite=[True] * 50) is None
    assert collapse_step(rewards, finite=[True] * 12 + [False] + [True] * 37) == 12
    assert collapse_step(rewards, finite=[False] * 50) == 0


def test_whichever_comes_first_dates_the_collapse():
    rewards = [0.8] * 30 + [0.3] * 40
    late = [True] * 60 + [False] * 10
    assert collapse_step(rewards, finite=late) == 30
    # A gradient that breaks within the 20 updates is certain at once, before the fall has lasted.
    early = [True] * 35 + [False] * 35
    assert collapse_step(rewards, finite=early) == 35


def test_other_rules_count_and_compare_as_they_say():
    assert collapse_step([1.0, 1.0, 0.4, 0.4, 0.4], SMALL) == 2
    assert collapse_step([1.0, 1.0, 0.4, 0.4], SMALL) is None
    assert collapse_step([1.0, 1.0, 0.6, 0.6, 0.6], SMALL) is None
    assert collapse_step([1.0, 1.0, 0.6, 0.6, 0.6], CollapseRule(0.7, 3, 2)) == 2


def test_trailing_and_best_means_by_hand():
    rewards = [1.0, 2.0, 6.0, 1.0]
    assert [trailing_mean(rewards, step, 3) for step in range(4)] == [1.0, 1.5, 3.0, 3.0]
    assert best_mean(rewards, 2) == 4.0
    assert best_mean(rewards, 5) == 0.0
