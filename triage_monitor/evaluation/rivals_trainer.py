"""Rules on what every trainer logs anyway: loss, gradient norm, entropy, reward. No mismatch statistic takes part.

A spike is a value against its RECENT predecessors, itself not among them: in robust deviations (median and MAD) of
the loss on either side, of the log gradient norm upwards. `reward falls` is one minus the mean of the newest
`reward_updates` rewards over the best such mean so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from triage_monitor.evaluation.rivals_level import (
    DEVIATION_GRID,
    MAD_TO_SIGMA,
    RELATIVE_GRID,
    Form,
    Level,
    Statistic,
    in_form,
    spaced,
)
from triage_monitor.evaluation.rivals_trend import slope_rules
from triage_monitor.evaluation.scoring import Floats
from triage_monitor.evaluation.series import RunSeries

RECENT = 25
SPIKES = spaced(2.0, 100_000.0, 60)


def loss(run: RunSeries) -> Floats:
    return run.loss


def log_grad_norm(run: RunSeries) -> Floats:
    known = np.isfinite(run.grad_norm) & (run.grad_norm > 0)
    return np.log(np.where(known, run.grad_norm, np.nan))


def grad_norm(run: RunSeries) -> Floats:
    return np.exp(log_grad_norm(run))


def entropy(run: RunSeries) -> Floats:
    return run.entropy


def lack_of_entropy(run: RunSeries) -> Floats:
    known = np.isfinite(run.entropy) & (run.entropy > 0)
    return 1.0 / np.where(known, run.entropy, np.nan)


@dataclass(frozen=True, slots=True)
class Spike:
    read: Statistic
    either_side: bool = False

    def __call__(self, run: RunSeries) -> Floats:
        values = self.read(run)
        result = np.full(values.shape, np.nan)
        if values.size > RECENT:
            before = sliding_window_view(values, RECENT)[:-1]
            middle = np.median(before, axis=1)
            spread = MAD_TO_SIGMA * np.median(np.abs(before - middle[:, None]), axis=1)
            distance = values[RECENT:] - middle
            with np.errstate(divide="ignore", invalid="ignore"):
                result[RECENT:] = (np.abs(distance) if self.either_side else distance) / spread
        return result


@dataclass(frozen=True, slots=True)
class AgainstBaseline:
    read: Statistic
    form: Form

    def __call__(self, run: RunSeries) -> Floats:
        return in_form(self.read(run), self.form)


@dataclass(frozen=True, slots=True)
class RewardFall:
    reward_updates: int

    def __call__(self, run: RunSeries) -> Floats:
        result = np.full(run.rewards.shape, np.nan)
        if run.rewards.size >= self.reward_updates:
            means = sliding_window_view(run.rewards, self.reward_updates).mean(axis=1)
            best = np.maximum.accumulate(means)
            with np.errstate(divide="ignore", invalid="ignore"):
                result[self.reward_updates - 1 :] = 1.0 - means / best
        return result


def loss_spike() -> tuple[Level, ...]:
    return (Level("loss spike", "loss", Spike(loss, either_side=True), SPIKES),)


def grad_norm_spike() -> tuple[Level, ...]:
    return (Level("grad-norm spike", "loss", Spike(log_grad_norm), SPIKES),)


def grad_norm_level() -> tuple[Level, ...]:
    return _against_baseline("grad norm", grad_norm)


def entropy_level() -> tuple[Level, ...]:
    return _against_baseline("entropy up", entropy) + _against_baseline("entropy down", lack_of_entropy)


def _against_baseline(title: str, read: Callable[[RunSeries], Floats]) -> tuple[Level, ...]:
    grids: dict[Form, tuple[float, ...]] = {"rel": RELATIVE_GRID, "dev": DEVIATION_GRID}
    return tuple(
        Level(f"{title} ({form})", "loss", AgainstBaseline(read, form), grid, sustained=3)
        for form, grid in grids.items()
    )


def reward_fall() -> tuple[Level, ...]:
    return tuple(
        Level(f"reward falls (mean of {updates})", "reward", RewardFall(updates), spaced(0.01, 2.0))
        for updates in (5, 10, 25)
    )


def _negative_reward(run: RunSeries) -> Floats:
    return -run.rewards


def reward_trend() -> tuple[Level, ...]:
    return tuple(rule for rule in slope_rules(_negative_reward, "reward", "reward trend") if "slope" in rule.name)
