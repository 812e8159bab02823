"""Does the 95% interval of rho_asym cover its true value as often as it says? By simulation, through the public API.

Each unit draws the sign of its advantage, a length and a share of amplifying tokens, so that tokens of one response
(and responses of one group) are alike: an interval that took tokens for independent would be far too narrow. The
expectations are chosen, so the true ratio is known without any estimate:

    rho = P(A < 0) E[n | A < 0] E[share | A < 0] / (the same for A > 0)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from triage_monitor import indicators, summarize
from triage_monitor.summary.step import StepSummary, merge_all

NORMAL_95 = 1.96
SIMULATIONS = 600
COVERED_AT_LEAST, COVERED_AT_MOST = 0.93, 0.97


@dataclass(frozen=True)
class Shape:
    """`spread` is the Beta concentration of a unit's share: small means very unlike responses."""

    name: str
    groups: int
    responses_per_group: int
    negative: float
    lengths: tuple[tuple[int, ...], tuple[int, ...]]  # of responses with A < 0, of those with A > 0
    share: tuple[float, float]  # expected share of amplifying tokens, A < 0 and A > 0
    spread: float
    random_advantage: bool = False

    @property
    def log_rho(self) -> float:
        minus, plus = (float(np.mean(n)) * s for n, s in zip(self.lengths, self.share, strict=True))
        return math.log(self.negative * minus / ((1 - self.negative) * plus))


RAGGED = (1, 2, 3, 5, 8, 12, 20, 35, 60, 110)
SHAPES = (
    Shape("equal lengths", 200, 1, 0.5, ((20,), (20,)), (0.5, 0.5), spread=4.0),
    Shape("ragged lengths", 400, 1, 0.5, (RAGGED, RAGGED), (0.5, 0.4), spread=3.0),
    Shape("long negatives, rare positives", 400, 1, 0.7, ((40, 80, 160), (10, 20, 40)), (0.6, 0.3), spread=5.0),
    Shape("weighted ragged", 800, 1, 0.4, (RAGGED, RAGGED), (0.4, 0.5), spread=5.0, random_advantage=True),
    Shape("groups of four", 250, 4, 0.5, ((5, 15, 30), (5, 15, 30)), (0.45, 0.5), spread=2.0),
)


def interval_covers(shape: Shape, rng: np.random.Generator) -> bool:
    found = indicators(simulated(shape, rng))
    rho, se = found["rho_asym"], found["log_rho_se"]
    assert rho is not None and se is not None
    return abs(math.log(rho) - shape.log_rho) <= NORMAL_95 * se


def simulated(shape: Shape, rng: np.random.Generator, grouped: bool = True) -> StepSummary:
    """One update. In a group all responses share the sign and the quantile of their share of amplifying tokens."""
    groups = np.repeat(np.arange(shape.groups), shape.responses_per_group)
    negative = (rng.random(shape.groups) < shape.negative)[groups]
    means = np.where(negative, shape.share[0], shape.share[1])
    shares = np.asarray(rng.beta(means * shape.spread, (1 - means) * shape.spread))
    if shape.responses_per_group > 1:
        first = np.arange(shape.groups) * shape.responses_per_group
        shares = shares[first][groups]
    lengths = np.where(negative, rng.choice(shape.lengths[0], len(groups)), rng.choice(shape.lengths[1], len(groups)))
    size = rng.exponential(1.0, len(groups)) + 0.2 if shape.random_advantage else np.ones(len(groups))
    amplifying = rng.random(int(lengths.sum())) < np.repeat(shares, lengths)
    toward = np.where(np.repeat(negative, lengths), -0.01, 0.01)
    return summarize(
        gap=np.where(amplifying, toward, -toward).astype("float32"),
        advantages=np.where(negative, -size, size),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype("int64"),
        groups=groups if grouped and shape.responses_per_group > 1 else None,
    )


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_interval_covers_the_truth_as_often_as_it_says(shape: Shape) -> None:
    rng = np.random.default_rng(20)
    covered = sum(interval_covers(shape, rng) for _ in range(SIMULATIONS)) / SIMULATIONS
    assert COVERED_AT_LEAST <= covered <= COVERED_AT_MOST


def test_interval_of_a_merge_covers_as_well() -> None:
    """Four shards of 100 responses each: the merged sums carry the standard error."""
    whole = SHAPES[1]
    quarter = Shape("quarter", 100, 1, whole.negative, whole.lengths, whole.share, whole.spread)
    rng = np.random.default_rng(21)
    covered = 0
    for _ in range(200):
        found = indicators(merge_all([simulated(quarter, rng) for _ in range(4)]))
        assert found["rho_asym"] is not None and found["log_rho_se"] is not None
        covered += abs(math.log(found["rho_asym"]) - whole.log_rho) <= NORMAL_95 * found["log_rho_se"]
    assert 0.92 <= covered / 200 <= 0.98


def test_ignoring_the_groups_makes_the_interval_too_narrow() -> None:
    """Why groups are the unit when given: responses of one prompt go up and down together."""
    shape = SHAPES[-1]
    narrow = indicators(simulated(shape, np.random.default_rng(22), grouped=False))["log_rho_se"]
    honest = indicators(simulated(shape, np.random.default_rng(22)))["log_rho_se"]
    assert narrow is not None and honest is not None
    assert honest > 1.5 * narrow
