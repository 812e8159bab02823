"""The synthetic runs show the paper's published windows, as our own summary and indicators measure them.

Expected numbers are typed from the table in the estimands (section 8), which is the paper's; a range is its two ends.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from triage_monitor.errors import ConfigError
from triage_monitor.evaluation.simulated import SimulatedRun, simulated_updates
from triage_monitor.judge.indicators import indicators, quantiles
from triage_monitor.summary.build import summarize
from triage_monitor.summary.step import StepSummary, merge_all

# model, window, indicator, lowest and highest published value
PUBLISHED = [
    ("4B", "healthy", "rho_asym", 1.02, 1.02),
    ("4B", "drift", "rho_asym", 1.02, 1.02),
    ("4B", "pre_terminal", "rho_asym", 2.32, 2.32),
    ("4B", "terminal", "q0.05", -42.75, -42.75),
    ("4B", "healthy", "heavy_segment_fraction", 0.048, 0.049),
    ("4B", "pre_terminal", "heavy_segment_fraction", 0.028, 0.036),
    ("4B", "healthy", "tail_token_fraction", 0.048, 0.049),
    ("4B", "pre_terminal", "tail_token_fraction", 0.028, 0.036),
    ("4B", "pre_terminal", "top5_tail_share", 0.250, 0.250),
    ("4B", "healthy", "persistence", 2.6, 2.6),
    ("4B", "pre_terminal", "persistence", 3.8, 4.0),
    ("4B", "pre_terminal", "masked_response_fraction", 0.9722, 0.9722),
    ("4B", "terminal", "masked_response_fraction", 0.0261, 0.0261),
    ("4B", "terminal", "heavy_segment_fraction", 0.5, 0.5),
    ("30B", "healthy", "rho_asym", 1.34, 1.34),
    ("30B", "drift", "rho_asym", 1.34, 1.34),
    ("30B", "pre_terminal", "rho_asym", 1.85, 1.85),
    ("30B", "terminal", "q0.05", -10.94, -10.94),
    ("30B", "healthy", "heavy_segment_fraction", 0.048, 0.049),
    ("30B", "pre_terminal", "heavy_segment_fraction", 0.028, 0.036),
    ("30B", "healthy", "tail_token_fraction", 0.048, 0.049),
    ("30B", "pre_terminal", "tail_token_fraction", 0.028, 0.036),
    ("30B", "pre_terminal", "top5_tail_share", 0.257, 0.257),
    ("30B", "healthy", "persistence", 2.6, 2.6),
    ("30B", "pre_terminal", "persistence", 3.8, 4.0),
    ("30B", "pre_terminal", "masked_response_fraction", 0.7994, 0.7994),
    ("30B", "terminal", "masked_response_fraction", 0.0036, 0.0036),
    ("30B", "terminal", "heavy_segment_fraction", 0.5, 0.5),
]
NEAR_ZERO_BOUND = {"4B": 0.83, "30B": 0.919}


@cache
def windows(model: str, seed: int = 0) -> dict[str, StepSummary]:
    """The shortest run: its four windows follow one another without a transition."""
    run = SimulatedRun(model, seed=seed, updates=100)
    summaries = [summarize(**arrays) for arrays in simulated_updates(run)]
    return {stage: merge_all(summaries[step] for step in steps) for stage, steps in run.windows().items()}


def measured(model: str, stage: str, name: str, seed: int = 0) -> float:
    summary = windows(model, seed)[stage]
    value = quantiles(summary)["all"]["0.05"] if name == "q0.05" else indicators(summary)[name]
    assert value is not None
    return value


def off_by(value: float, low: float, high: float) -> float:
    """Relative distance from [low, high], 0 inside."""
    nearest = min(max(value, low), high)
    return abs(value - nearest) / abs(nearest)


@pytest.mark.parametrize(("model", "stage", "name", "low", "high"), PUBLISHED)
def test_published_value_is_hit_within_five_percent(model: str, stage: str, name: str, low: float, high: float) -> None:
    assert off_by(measured(model, stage, name), low, high) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize("model", ["4B", "30B"])
def test_published_values_are_hit_by_every_seed(model: str, seed: int) -> None:
    misses = {
        (stage, name): measured(model, stage, name, seed)
        for own, stage, name, low, high in PUBLISHED
        if own == model and off_by(measured(model, stage, name, seed), low, high) > 0.05
    }
    assert not misses


@pytest.mark.parametrize("model", ["4B", "30B"])
def test_near_zero_share_keeps_its_published_bound_until_terminal_and_comes_near_it(model: str) -> None:
    bound = NEAR_ZERO_BOUND[model]
    shares = [measured(model, stage, "near_zero_fraction") for stage in ("healthy", "drift", "pre_terminal")]
    assert bound <= min(shares) <= 1.05 * bound
    assert measured(model, "terminal", "near_zero_fraction") < bound


@pytest.mark.parametrize("model", ["4B", "30B"])
def test_tail_spreads_out_at_terminal(model: str) -> None:
    assert measured(model, "terminal", "top5_tail_share") < measured(model, "pre_terminal", "top5_tail_share") / 2


def test_name_says_synthetic() -> None:
    assert SimulatedRun("4B", seed=7).name == "synthetic-paper-4B-s7"


def test_same_seed_gives_the_same_updates_and_another_seed_others() -> None:
    first, again, other = (next(iter(simulated_updates(SimulatedRun("30B", seed=seed)))) for seed in (5, 5, 6))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert not np.array_equal(first["gap"], other["gap"])


def test_windows_end_at_the_quarters_of_the_horizon() -> None:
    steps = SimulatedRun("4B", updates=300).windows()
    assert [(name, span.start, span.stop) for name, span in steps.items()] == [
        ("healthy", 50, 75),
        ("drift", 125, 150),
        ("pre_terminal", 200, 225),
        ("terminal", 275, 300),
    ]


def test_regime_is_constant_in_a_window_and_moves_one_way_between_two() -> None:
    run = SimulatedRun("4B", updates=300)
    rho = [run.regime(step).rho_asym for step in range(300)]
    assert rho[:150] == pytest.approx([1.02] * 150)
    assert rho[200:225] == pytest.approx([2.32] * 25)
    assert all(a < b for a, b in pairwise(rho[150:200]))
    assert 1.02 < rho[150] < 1.06
    assert 2.25 < rho[199] < 2.32


def test_deep_tail_grows_before_terminal_only_as_told() -> None:
    still, grown, more = (SimulatedRun("30B", tail_growth=power) for power in (0.0, 1.0, 2.0))
    depth = np.array([(item.far_share, item.far_nats, item.visible_nats) for item in map(still.regime, range(225))])
    assert np.ptp(depth, axis=0) == pytest.approx([0, 0, 0])
    start, one, two = grown.regime(0).far_nats, grown.regime(210).far_nats, more.regime(210).far_nats
    assert one > 1.5 * start
    assert two / one == pytest.approx(one / start)
    assert still.regime(210).rho_asym == grown.regime(210).rho_asym
    assert still.regime(299) == grown.regime(299)


def test_rewards_are_the_advantages_signs_and_fall_in_the_terminal_part_only() -> None:
    run = SimulatedRun("4B", updates=100, responses=64, tokens_per_response=128, rewards=True)
    drawn = list(simulated_updates(run))
    for arrays in drawn:
        np.testing.assert_array_equal(arrays["rewards"] == 1.0, arrays["advantages"] > 0)
    healthy, drift, before, terminal = (
        np.mean([drawn[step]["rewards"].mean() for step in span]) for span in run.windows().values()
    )
    assert healthy < drift < before
    assert terminal < before / 2
    assert "rewards" not in next(iter(simulated_updates(SimulatedRun("4B"))))


def test_responses_are_ragged_and_groups_have_balanced_advantages() -> None:
    arrays = next(iter(simulated_updates(SimulatedRun("4B", seed=3))))
    lengths = np.diff(arrays["offsets"])
    assert lengths.mean() == pytest.approx(512, rel=0.01)
    assert lengths.min() >= 80
    assert lengths.max() > 3 * np.median(lengths)
    assert arrays["gap"].dtype == np.float32
    assert np.abs(np.bincount(arrays["groups"], arrays["advantages"])).max() < 1e-9
    assert np.abs(arrays["advantages"]).min() > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "7B"}, "published windows exist of 4B and 30B"),
        ({"updates": 99}, "at least 100"),
        ({"responses": 100}, "multiple of 8"),
        ({"tokens_per_response": 64}, "at least 128"),
        ({"jitter": -0.1}, "jitter"),
        ({"tail_growth": 6.0}, "tail_growth"),
    ],
)
def test_wrong_settings_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SimulatedRun(**{"model": "4B", **changes})
