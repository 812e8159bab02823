"""How a run ended, told from its reward and loss alone: nothing that a monitor computes takes part.

A run has *collapsed* when the reward of `sustained` updates in a row lies below `ratio` times the best trailing mean of
`best_over` updates so far, or at its first update without a finite gradient. The collapse is dated to the first of
those updates, so that a lead counted to it is a lead before the fall, not before its confirmation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CollapseRule:
    """The defaults are the definition used for every headline figure; other ratios test how much hangs on it."""

    ratio: float = 0.5
    sustained: int = 20
    best_over: int = 10


HALF_OF_BEST = CollapseRule()


def trailing_mean(rewards: Sequence[float], step: int, over: int = HALF_OF_BEST.best_over) -> float:
    """Mean of the newest `over` rewards up to `step`; of fewer at the start."""
    recent = rewards[max(0, step + 1 - over) : step + 1]
    return sum(recent) / len(recent)


def best_mean(rewards: Sequence[float], over: int = HALF_OF_BEST.best_over) -> float:
    """The best trailing mean of `over` updates; 0 before there are as many."""
    return max((trailing_mean(rewards, step, over) for step in range(over - 1, len(rewards))), default=0.0)


def collapse_step(
    rewards: Sequence[float], rule: CollapseRule = HALF_OF_BEST, finite: Sequence[bool] | None = None
) -> int | None:
    """Index into `rewards` (one a update) at which the collapse begins, None for a run that survived.

    `finite` says of each update whether its gradient was finite.
    """
    best, low_since = 0.0, None
    for step, reward in enumerate(rewards):
        if finite is not None and not finite[step]:
            return step
        if step + 1 >= rule.best_over:
            best = max(best, trailing_mean(rewards, step, rule.best_over))
        if reward >= rule.ratio * best:
            low_since = None
        elif low_since is None:
            low_since = step
        if low_since is not None and step - low_since + 1 >= rule.sustained:
            return low_since
    return None
