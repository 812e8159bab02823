"""Causes that only the course of a run shows, on synthetic runs: a missed sync, a drift, an amplified tail."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fault_worlds import rollout

from triage_monitor.judge.causes_run import CauseTracker
from triage_monitor.judge.run import JudgeSettings, RunMonitor
from triage_monitor.summary.rows_values import UpdateRows, rows_from_arrays
from triage_monitor.summary.symptoms_rows import symptoms_of

Gaps = Callable[[np.random.Generator, int], UpdateRows]


def normal(
    random: np.random.Generator, width: float, *, deep: float = 0.0, versions: list[int] | None = None
) -> UpdateRows:
    """32 responses of 60 tokens; `deep` is the share of tokens far below, all of them where A < 0."""
    advantages = np.where(np.arange(32) % 2, 1.0, -1.0)
    gap = random.normal(0, width, (32, 60))
    gap -= np.where(
        (random.random((32, 60)) < deep) & (advantages[:, None] < 0), random.exponential(1.0, (32, 60)), 0.0
    )
    return rows_from_arrays(gap=list(gap), advantages=advantages, policy_versions=versions)


def run(updates: int, make: Gaps, seed: int = 0) -> tuple[CauseTracker, dict[str, tuple[int, int]]]:
    """The tracker at the end, and of each cause found the first and last step."""
    monitor, tracker = RunMonitor(JudgeSettings()), CauseTracker(25)
    seen: dict[str, tuple[int, int]] = {}
    for step in range(updates):
        rows = make(np.random.default_rng([seed, step]), step)
        judged = monitor.accept(step, 0, rows.summarize())
        for item in tracker.accept(step, judged.update, judged.window, symptoms_of(rows)):
            seen[item.cause] = (seen.get(item.cause, (step, step))[0], step)
    return tracker, seen


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_steady_run_with_a_one_sided_tail_names_nothing(seed: int) -> None:
    assert run(80, lambda random, step: normal(random, 0.03, deep=0.004), seed)[1] == {}


@pytest.mark.parametrize("length", [1, 2, 3])
def test_excursion_that_is_back_is_a_missed_sync(length: int) -> None:
    tracker, seen = run(45, lambda random, step: normal(random, 0.3 if 30 <= step < 30 + length else 0.03))
    assert seen == {"stale_weights": (30 + length, 30 + length)}
    (entry,) = tracker.current()
    assert (entry["evidence"]["first_step"], entry["evidence"]["updates_off"]) == (30, length)


def test_jump_that_stays_is_not_called_a_missed_sync() -> None:
    assert "stale_weights" not in run(60, lambda random, step: normal(random, 0.3 if step >= 30 else 0.03))[1]


def test_excursion_with_older_versions_is_certain() -> None:
    def make(random: np.random.Generator, step: int) -> UpdateRows:
        stale = step == 30
        return normal(random, 0.3 if stale else 0.03, versions=[5] * (4 if stale else 31) + [6] * (28 if stale else 1))

    def reversed_lag(random: np.random.Generator, step: int) -> UpdateRows:
        stale = step == 30
        return normal(random, 0.3 if stale else 0.03, versions=[5] * (28 if stale else 1) + [6] * (4 if stale else 31))

    found = run(34, reversed_lag)[0].found[31]
    assert {item.cause: item.confidence for item in found}["stale_weights"] == "high"
    found = run(34, make)[0].found[31]
    assert {item.cause: item.confidence for item in found}["stale_weights"] == "medium"


@pytest.mark.parametrize("seed", [0, 1])
def test_slow_growth_on_both_sides_is_engine_drift(seed: int) -> None:
    seen = run(100, lambda random, step: normal(random, 0.03 * 1.02**step), seed)[1]
    assert set(seen) == {"engine_drift"}


@pytest.mark.parametrize("seed", [0, 1])
def test_negative_tail_that_grows_where_advantages_are_negative_is_amplification(seed: int) -> None:
    def make(random: np.random.Generator, step: int) -> UpdateRows:
        return normal(random, 0.03, deep=0.004 + 0.0008 * max(0, step - 40))

    seen = run(100, make, seed)[1]
    assert set(seen) == {"amplifying_quantisation"}
    assert seen["amplifying_quantisation"][0] > 40


def test_restored_tracker_goes_on_as_the_one_that_never_stopped() -> None:
    def make(random: np.random.Generator, step: int) -> UpdateRows:
        if step == 50:
            return normal(random, 0.3)
        world = rollout(random, responses=6, tokens=(20, 40), sampler_temperature=0.7 if step > 90 else 1.0)
        return world.rows(gap_only=step <= 90)

    monitor, tracker = RunMonitor(JudgeSettings()), CauseTracker(25)
    reports: dict[int, dict[str, object]] = {}
    symptoms = {}
    for step in range(100):
        rows = make(np.random.default_rng([7, step]), step)
        judged = monitor.accept(step, 0, rows.summarize())
        symptoms[step] = symptoms_of(rows)
        found = tracker.accept(step, judged.update, judged.window, symptoms[step])
        reports[step] = {
            "update": judged.update,
            "window": judged.window,
            "findings": [item.to_dict() for item in found],
            "flawed": tracker.flawed(step),
        }
        if step in (20, 52, 75, 95):
            kept = [known for known in reports if known < 30 or known > step - tracker.kept_updates]
            again = CauseTracker.restore(25, [(known, reports[known]) for known in kept], symptoms)
            assert again.found == tracker.found
            assert again.traces == tracker.traces
            assert again.symptoms.keys() == tracker.symptoms.keys()
            assert again.current() == tracker.current()
            tracker = again
    assert {item["cause"] for item in tracker.current()} == {"temperature_mismatch"}
