"""Literal indicator series for the judge's tests: a calm window, and what moves in it."""

from collections.abc import Iterable, Mapping

from triage_monitor.judge.observation import Observation

# One healthy window of a 4-bit run with 64 responses of 128 tokens an update.
CALM: dict[str, float | None] = {
    "q0.001_all": -2.0,
    "q0.05_all": -0.12,
    "mismatch_energy": 0.02,
    "rho_pressure": 1.8,
    "masked_response_fraction": 0.95,
    "abs_delta_mean": 0.045,
    "near_zero_fraction": 0.73,
    "rho_asym": 1.0,
    "log_rho_se": 0.01,
    "asym_share": 0.5,
    "reward_mean": 0.7,
}


def window(step: int, attempt: int = 0, **changes: float | None) -> Observation:
    """A calm, full window ending at `step`, with the named values replaced (`q0_001_all` means q0.001_all)."""
    renamed = {name.replace("q0_", "q0."): value for name, value in changes.items()}
    return Observation(step, attempt, updates=25, responses=1600, tokens=204_800, values={**CALM, **renamed})


def windows(values: Iterable[Mapping[str, float | None]], first: int = 0, attempt: int = 0) -> list[Observation]:
    return [window(first + index, attempt, **dict(item)) for index, item in enumerate(values)]
