"""How the constants of `simulated_regimes` that have no closed form were found; run as a module, it prints them.

For each regime, 50 updates of 128 responses are drawn, summarised and merged, and each field that governs one published
indicator nearly alone is multiplied by target / measured. Eight rounds from the committed values, each with new draws,
damped; the last four are averaged. The committed values are these, rounded. Takes about a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from triage_monitor.evaluation.simulated import update_arrays
from triage_monitor.evaluation.simulated_regimes import MODELS, STAGES, Regime, regimes_of
from triage_monitor.evaluation.simulated_tokens import Course
from triage_monitor.judge.indicators import indicators, quantiles
from triage_monitor.summary.build import summarize
from triage_monitor.summary.step import StepSummary, merge_all

UPDATES, RESPONSES, TOKENS = 50, 128, 512
ROUNDS, AVERAGED, DAMPING = 8, 4, 0.7


@dataclass(frozen=True, slots=True)
class Aim:
    field: str
    target: float
    measure: Callable[[StepSummary], float]


def _named(name: str) -> Callable[[StepSummary], float]:
    return lambda summary: indicators(summary)[name] or 0.0


def _q05(summary: StepSummary) -> float:
    return -(quantiles(summary)["all"]["0.05"] or 0.0)


def _top5(summary: StepSummary) -> float:
    """The share beyond what calm segments alone would hold in the top 5%, 0.15."""
    return _named("top5_tail_share")(summary) - 0.15


def aims(model: str) -> dict[str, list[Aim]]:
    """The tail share is put on the heavy frequency's numbers; see `simulated_regimes`."""
    top, depth = {"4B": (0.250, 42.75), "30B": (0.257, 10.94)}[model]
    tail = _named("tail_token_fraction")
    return {
        "healthy": [Aim("calm_rate", 0.0485, tail)],
        "drift": [Aim("calm_rate", 0.0400, tail)],
        "pre_terminal": [Aim("calm_rate", 0.0320, tail), Aim("heavy_excess", top - 0.15, _top5)],
        "terminal": [Aim("visible_nats", depth, _q05)],
    }


def window_of(regime: Regime, seed: int) -> StepSummary:
    course = Course(np.random.default_rng(seed))
    return merge_all(summarize(**update_arrays(course, regime, RESPONSES, TOKENS)) for _ in range(UPDATES))


def fit(regime: Regime, wanted: list[Aim]) -> dict[str, float]:
    found: list[list[float]] = []
    for round_ in range(ROUNDS):
        summary = window_of(regime, round_)
        steps = {aim.field: (aim.target / aim.measure(summary)) ** (DAMPING) for aim in wanted}
        regime = replace(regime, **{name: getattr(regime, name) * step for name, step in steps.items()})
        found.append([getattr(regime, aim.field) for aim in wanted])
    means = np.mean(found[-AVERAGED:], axis=0)
    return {aim.field: float(value) for aim, value in zip(wanted, means, strict=True)}


def main() -> None:
    for model in MODELS:
        for stage, regime in zip(STAGES, regimes_of(model), strict=True):
            values = fit(regime, aims(model)[stage])
            print(model, stage, *(f"{name}={value:.4g}" for name, value in values.items()))


if __name__ == "__main__":
    main()
