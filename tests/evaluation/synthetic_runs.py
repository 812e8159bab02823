"""SYNTHETIC runs for the benchmark's tests: made-up series, a reward that falls where told, no model behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from triage_monitor.evaluation.scoring import Floats
from triage_monitor.evaluation.series import RunSeries

HEALTHY, FALLEN = 0.7, 0.1
AFTER = 30

# what the rivals read, and a value of each that looks healthy
TYPICAL: dict[str, float] = {
    "abs_delta_mean": 0.04,
    "kl_k1": 0.01,
    "kl_k3": 0.006,
    "mult_prob_error": 1.05,
    "ess_fraction": 0.97,
    "chi2_token": 0.03,
    "near_zero_fraction": 0.75,
    "q0.05_all": -0.11,
    "q0.001_all": -2.0,
    "q0.001_neg": -2.2,
    "q0.001_pos": -1.4,
    "delta_std": 0.13,
    "mismatch_energy": 0.01,
    "deep_tail_neg": 0.002,
    "deep_tail_pos": 0.001,
    "rho_asym": 1.0,
    "rho_asym_tail": 1.5,
    "rho_pressure": 1.8,
    "pressure_odds_pos": 1.1,
    "pressure_odds_neg": 1.8,
    "rho_excess": 1.0,
    "amplification_balance": 0.1,
    "masked_response_fraction": 0.94,
    "heavy_segment_fraction": 0.05,
    "tail_concentration": 6.0,
    "persistence": 3.0,
}


def a_run(
    name: str,
    *,
    updates: int = 120,
    collapse: int | None = None,
    split: str = "held-out",
    series: Mapping[str, Sequence[float] | Floats] | None = None,
    **trainer: Floats,
) -> RunSeries:
    """`series` replaces indicators, in both scopes; those left out stay at their healthy values throughout."""
    length = updates if collapse is None else collapse + AFTER
    rewards = np.full(length, HEALTHY)
    if collapse is not None:
        rewards[collapse:] = FALLEN
    shown = {key: np.full(length, value) for key, value in TYPICAL.items()}
    shown |= {key: np.asarray(values, np.float64) for key, values in (series or {}).items()}
    held = np.minimum(np.arange(1.0, length + 1), 25.0)
    counts = {"tokens": np.full(length, 2048.0), "responses": np.full(length, 64.0), "updates": held}
    return RunSeries(
        name=name,
        group="synthetic",
        split=split,
        settings={"arm": "synthetic"},
        steps=np.arange(length, dtype=np.int64),
        rewards=trainer.get("rewards", rewards),
        finite=np.ones(length, bool),
        entropy=trainer.get("entropy", np.full(length, 0.7)),
        grad_norm=trainer.get("grad_norm", np.full(length, 0.2)),
        loss=trainer.get("loss", np.full(length, 1e-8)),
        update=shown,
        window=shown | counts,
    )


def step_up(length: int, at: int, low: float, high: float) -> Floats:
    return np.where(np.arange(length) < at, low, high).astype(np.float64)


def noisy(length: int, at: int, seed: int, *, times: float = 4.0) -> dict[str, Floats]:
    """Every indicator with its own noise of 5%, drifting from update `at` on towards `times` its healthy distance."""
    rng = np.random.default_rng(seed)
    growth = 1.0 + (times - 1.0) * np.clip((np.arange(length) - at) / 40.0, 0.0, 1.0)
    shares = {"ess_fraction", "near_zero_fraction", "masked_response_fraction"}
    series = {}
    for name, value in TYPICAL.items():
        wobble = growth * (1.0 + 0.05 * rng.standard_normal(length))
        if name in shares:
            series[name] = 1.0 - np.minimum((1.0 - value) * wobble, 0.999)
        elif name == "mult_prob_error":
            series[name] = 1.0 + (value - 1.0) * wobble
        elif name == "amplification_balance":
            series[name] = np.tanh(value * wobble)
        else:
            series[name] = value * wobble
    return series


def a_corpus() -> list[RunSeries]:
    """Twelve runs in two splits: half of each drift from 30 updates before their reward falls."""
    runs = []
    for split, base in (("development", 0), ("held-out", 100)):
        for number in range(3):
            collapse = 90 + 10 * number
            drifting = noisy(collapse + AFTER, collapse - 30, base + number)
            calm = noisy(160, 10_000, base + 50 + number)
            name = f"synthetic-{split}"
            runs.append(a_run(f"{name}-falls-{number}", collapse=collapse, split=split, series=drifting))
            runs.append(a_run(f"{name}-stays-{number}", updates=160, split=split, series=calm))
    return runs
