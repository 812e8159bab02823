"""Healthy series that stay healthy, with the spread and memory of real runs: SYNTHETIC, for counting false alarms.

`stationary_observations` draws the indicators of each update and pools them over the trailing window, as the merge of
summaries does (on the real runs the pooled values follow the merged ones to 0.94-1.00 in correlation and to a tenth in
spread, quantiles of one side excepted). `stationary_updates` draws tokens, for a test of the whole path:

    log x_k = level + sd (sqrt(1 - s) white_k + sqrt(s) slow_k),   slow_k = phi slow_{k-1} + sqrt(1 - phi**2) white'_k

with the constants of `stationary_constants`. Leaves out trends (a learning run has them), single excursions, the not
observable and the unusable, and indicators not named in NOISES.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triage_monitor.errors import ConfigError
from triage_monitor.evaluation.simulated import Arrays, update_arrays
from triage_monitor.evaluation.simulated_regimes import regimes_of
from triage_monitor.evaluation.simulated_tokens import GROUP, Course
from triage_monitor.evaluation.stationary_constants import AUTOCORRELATION, NOISES, Kind, Noise, correlation
from triage_monitor.judge.observation import Observation
from triage_monitor.summary.window import DEFAULT_WINDOW_UPDATES

RHO_SE = 0.35  # log_rho_se times the square root of the window's responses, on the same runs
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Wander:
    """`noise` and `slow` multiply the spread of either part; `autocorrelation` is the slow part's, lag one."""

    autocorrelation: float = AUTOCORRELATION
    noise: float = 1.0
    slow: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.autocorrelation < 1:
            raise ConfigError(f"autocorrelation is {self.autocorrelation}; it must be in [0, 1)")
        if self.noise < 0 or self.slow < 0:
            raise ConfigError("noise and slow must not be negative")


REAL = Wander()


def latent(rng: np.random.Generator, updates: int, wander: Wander, share_N: Floats, root_NN: Floats) -> Floats:
    """[updates, N], each of unit variance when `noise` and `slow` are 1; more updates only go on."""
    first, *parts = rng.spawn(3)
    white_KN, driven_KN = (part.standard_normal((updates, share_N.size)) @ root_NN.T for part in parts)
    phi, slow_KN = wander.autocorrelation, np.empty_like(driven_KN)
    state = first.standard_normal(share_N.size) @ root_NN.T
    for step, push in enumerate(math.sqrt(1 - phi**2) * driven_KN):
        slow_KN[step] = state = phi * state + push
    mixed: Floats = wander.noise * np.sqrt(1 - share_N) * white_KN + wander.slow * np.sqrt(share_N) * slow_KN
    return mixed


def stationary_windows(
    seed: int, updates: int, wander: Wander = REAL, levels: Mapping[str, float] | None = None
) -> dict[str, Floats]:
    """Indicator -> [updates], its value over the trailing window. `levels` replaces levels of NOISES by name."""
    unknown = set(levels or {}) - set(NOISES)
    if unknown:
        raise ConfigError(f"no noise is known of '{sorted(unknown)[0]}'")
    shares = np.array([item.slow_share for item in NOISES.values()])
    drawn_KN = latent(np.random.default_rng(seed), updates, wander, shares, _root(correlation()))
    windows = {}
    for place, (name, noise) in enumerate(NOISES.items()):
        level = noise.level if levels is None else levels.get(name, noise.level)
        windows[name] = _pooled(noise, level, drawn_KN[:, place])
    return windows | {"asym_share": windows["rho_asym"] / (1 + windows["rho_asym"])}


def stationary_observations(
    seed: int,
    updates: int,
    wander: Wander = REAL,
    *,
    levels: Mapping[str, float] | None = None,
    responses: int = 64,
    tokens_per_response: int = 128,
) -> Iterator[Observation]:
    """The windows as the detector is given them, step 0 first; the spread is that of 64 responses, whatever is said."""
    windows = stationary_windows(seed, updates, wander, levels)
    for step in range(updates):
        held = min(step + 1, DEFAULT_WINDOW_UPDATES)
        values: dict[str, float | None] = {name: float(series[step]) for name, series in windows.items()}
        values["log_rho_se"] = RHO_SE / math.sqrt(held * responses)
        yield Observation(step, 0, held, held * responses, held * responses * tokens_per_response, values=values)


def stationary_updates(
    seed: int,
    updates: int,
    wander: Wander = REAL,
    *,
    model: str = "4B",
    responses: int = 64,
    tokens_per_response: int = 512,
    rewards: bool = False,
) -> Iterator[Arrays]:
    """Inputs of `summarize`, step 0 first: the simulated healthy regime with a varying direction and tail.

    They vary as rho_asym, mismatch_energy (half of it, in logs) and tail_token_fraction do in the real runs; what
    sampling adds comes on top.
    """
    if responses < GROUP or responses % GROUP:
        raise ConfigError(f"responses is {responses}; it must be a multiple of {GROUP}, the size of a group")
    course = Course(np.random.default_rng([seed, 1]))
    healthy = regimes_of(model)[0]
    noises = [NOISES[name] for name in ("rho_asym", "mismatch_energy", "tail_token_fraction")]
    shares = np.array([item.slow_share for item in noises])
    drawn_KN = latent(np.random.default_rng([seed, 0]), updates, wander, shares, np.eye(len(noises)))
    spreads = np.array([noise.spread for noise in noises]) * (1.0, 0.5, 1.0)
    for rho, depth, amount in np.exp(drawn_KN * spreads):
        regime = healthy.jittered(rho, depth, amount)
        yield update_arrays(course, regime, responses, tokens_per_response, rewards=rewards)


def _root(matrix: Floats) -> Floats:
    """Square root of the nearest correlation matrix: rounded averages of estimates need not be one."""
    values, vectors = np.linalg.eigh(matrix)
    root: Floats = vectors * np.sqrt(np.maximum(values, 0.0))
    unit: Floats = root / np.sqrt(np.square(root).sum(axis=1, keepdims=True))
    return unit


def _pooled(noise: Noise, level: float, drawn_K: Floats) -> Floats:
    """The trailing mean of the kind's quantity, as the indicator's value."""
    if noise.kind is Kind.ADDED:
        return level + noise.spread * _trailing(drawn_K)
    if noise.kind in (Kind.LOG, Kind.LOG_NEGATIVE):
        return level * np.exp(noise.spread * _trailing(drawn_K))
    spread = math.sqrt(math.log1p(noise.spread**2))
    factor = _trailing(np.exp(spread * drawn_K - spread**2 / 2))
    return 1.0 - (1.0 - level) * factor if noise.kind is Kind.MEAN_COMPLEMENT else level * factor


def _trailing(series: Floats) -> Floats:
    total = np.concatenate([[0.0], np.cumsum(series)])
    ends = np.arange(1, series.size + 1)
    starts = np.maximum(ends - DEFAULT_WINDOW_UPDATES, 0)
    mean: Floats = (total[ends] - total[starts]) / (ends - starts)
    return mean
