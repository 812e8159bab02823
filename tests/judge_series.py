"""Literal indicator series for the judge's tests: a calm window, and what moves in it."""

import math
from collections.abc import Iterable, Mapping

from triage_monitor.judge.alarm_rate import score_threshold
from triage_monitor.judge.observation import Observation

# One healthy window of a 4-bit run with 64 responses of 128 tokens an update.
CALM: dict[str, float | None] = {
    "q0.001_all": -2.0,
    "q0.001_neg": -2.2,
    "q0.001_pos": -1.4,
    "q0.05_all": -0.12,
    "mismatch_energy": 0.02,
    "rho_pressure": 1.8,
    "masked_response_fraction": 0.95,
    "abs_delta_mean": 0.045,
    "near_zero_fraction": 0.73,
    "rho_asym": 1.0,
    "log_rho_se": 0.01,
    "asym_share": 0.5,
    "top5_tail_share": 0.3,
    "persistence": 3.0,
    "reward_mean": 0.7,
}

# Fitted elsewhere, taken as they are. What a rise of the gaps alone meets: where rewards are sent, the lower of the
# threshold that knows them and of the gaps' own at half the rate.
THRESHOLD_REWARD = score_threshold(1.0, reward=True, grad_norm=False)
THRESHOLD_MISMATCH = score_threshold(1.0, reward=False, grad_norm=False)
THRESHOLD = min(THRESHOLD_REWARD, score_threshold(0.5, reward=False, grad_norm=False))


def raised(score: float, threshold: float = THRESHOLD) -> dict[str, float | None]:
    """Tails, energy and pressure up together, so that the score stands at `score` for the 25 updates after the rise.

    They hold 2.0 of the terms' 3.5 of weight, and what rose within 25 updates counts twice, as level and as trend:
    2 * (2.0 / 3.5) * ln(times) = score * threshold. The mean gap, which is part of `terminal`, stays where it is.
    """
    times = math.exp(score * threshold * 3.5 / 4.0)
    tails = {name: (CALM[name] or 0.0) * times for name in ("q0.001_all", "q0.001_neg", "q0.001_pos")}
    return {**tails, "mismatch_energy": 0.02 * times, "rho_pressure": 1.8 * times}


def window(step: int, attempt: int = 0, **changes: float | None) -> Observation:
    """A calm window ending at `step`, with the named values replaced (`q0_001_all` means q0.001_all)."""
    renamed = {name.replace("q0_", "q0."): value for name, value in changes.items()}
    return Observation(
        step, attempt, updates=min(step + 1, 25), responses=1600, tokens=204_800, values={**CALM, **renamed}
    )


def windows(values: Iterable[Mapping[str, float | None]], first: int = 0, attempt: int = 0) -> list[Observation]:
    return [window(first + index, attempt, **dict(item)) for index, item in enumerate(values)]
