"""Everyone the detector is measured against, a row of the table each.

    field line      levels that frameworks print in their manuals, on single updates: as printed, and tuned
    magnitude       every indicator of gap size, in every form (`rivals_level`): the best is the one to beat
    tail            the deep tail by itself, also by the sign of A: what a combination has to add to
    direction       ratios between the sides one at a time, upwards and downwards: does direction lead?
    segment         its local statistics one at a time
    trend, change point, loss, reward

Sources of the lines: verl, docs/algo/rollout_corr.md (absolute KL 0.1, ESS 0.3, token chi-square 1); NeMo-RL,
docs/guides/grpo.md (token_mult_prob_error 1.05); KL 0.01 and 0.03 and a mean abs gap of 0.1 are levels in use.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from triage_monitor.evaluation import rivals_change as change
from triage_monitor.evaluation import rivals_trainer as trainer
from triage_monitor.evaluation import rivals_trend as trend
from triage_monitor.evaluation.rivals_level import Indicator, InForm, Level, forms, spaced
from triage_monitor.evaluation.scoring import Floats
from triage_monitor.evaluation.tuning import Entry

Turn = Callable[[Floats], Floats]


def _same(values: Floats) -> Floats:
    return values


def _negative(values: Floats) -> Floats:
    return -values


def _complement(values: Floats) -> Floats:
    return 1.0 - values


def _excess(values: Floats) -> Floats:
    return values - 1.0


def _inverse(values: Floats) -> Floats:
    """A ratio seen from its other side; undefined at 0."""
    return 1.0 / np.where(values > 0, values, np.nan)


def _amplifying(values: Floats) -> Floats:
    return (1.0 + values) / 2.0


def _contracting(values: Floats) -> Floats:
    return (1.0 - values) / 2.0


# title, indicator, turn, lowest and highest absolute level tried
_MAGNITUDE: tuple[tuple[str, str, Turn, float, float], ...] = (
    ("abs_delta_mean", "abs_delta_mean", _same, 0.01, 1.0),
    ("kl_k1", "kl_k1", _same, 0.001, 1.0),
    ("kl_k3", "kl_k3", _same, 0.001, 30.0),
    ("mult_prob_error - 1", "mult_prob_error", _excess, 0.01, 100.0),
    ("1 - ess_fraction", "ess_fraction", _complement, 0.005, 0.999),
    ("chi2_token", "chi2_token", _same, 0.01, 1e9),
    ("1 - near_zero_fraction", "near_zero_fraction", _complement, 0.05, 0.9),
    ("-q0.05", "q0.05_all", _negative, 0.02, 3.0),
    ("delta_std", "delta_std", _same, 0.03, 3.0),
)
_TAIL: tuple[tuple[str, str, Turn, float, float], ...] = (
    ("-q0.001", "q0.001_all", _negative, 0.2, 20.0),
    ("-q0.001, A < 0", "q0.001_neg", _negative, 0.2, 20.0),
    ("-q0.001, A > 0", "q0.001_pos", _negative, 0.2, 20.0),
    ("deep_tail_neg", "deep_tail_neg", _same, 1e-5, 0.5),
    ("deep_tail_pos", "deep_tail_pos", _same, 1e-5, 0.5),
    ("mismatch_energy", "mismatch_energy", _same, 0.001, 3.0),
)
# the same, with the other side's turn and range where falling might be the sign
_DIRECTION: tuple[tuple[str, str, tuple[tuple[str, Turn, float, float], ...]], ...] = (
    ("rho_asym", "rho_asym", (("up", _same, 0.7, 5.0), ("down", _inverse, 0.7, 5.0))),
    ("rho_asym_tail", "rho_asym_tail", (("up", _same, 0.5, 30.0), ("down", _inverse, 0.05, 5.0))),
    ("rho_pressure", "rho_pressure", (("up", _same, 0.5, 30.0), ("down", _inverse, 0.05, 5.0))),
    ("pressure_odds_pos", "pressure_odds_pos", (("up", _same, 0.2, 100.0), ("down", _inverse, 0.01, 5.0))),
    ("pressure_odds_neg", "pressure_odds_neg", (("up", _same, 0.2, 100.0), ("down", _inverse, 0.01, 5.0))),
    ("rho_excess", "rho_excess", (("up", _same, 0.9, 3.0), ("down", _inverse, 0.9, 3.0))),
    (
        "amplification_balance",
        "amplification_balance",
        (("up", _amplifying, 0.3, 0.99), ("down", _contracting, 0.3, 0.99)),
    ),
)
_SEGMENT: tuple[tuple[str, str, tuple[tuple[str, Turn, float, float], ...]], ...] = (
    ("1 - masked_response_fraction", "masked_response_fraction", (("up", _complement, 0.01, 0.99),)),
    ("heavy_segment_fraction", "heavy_segment_fraction", (("up", _same, 0.005, 0.99),)),
    ("tail_concentration", "tail_concentration", (("up", _same, 1.0, 20.0), ("down", _inverse, 0.05, 1.0))),
    ("persistence", "persistence", (("up", _same, 0.5, 60.0), ("down", _inverse, 0.02, 2.0))),
)
# title, indicator, turn, levels printed, lowest and highest level tried when tuned
_LINES: tuple[tuple[str, str, Turn, tuple[float, ...], float, float], ...] = (
    ("mean abs gap above", "abs_delta_mean", _same, (0.1,), 0.01, 1.0),
    ("KL k3 above", "kl_k3", _same, (0.01, 0.03, 0.1), 0.001, 30.0),
    ("mult_prob_error above", "mult_prob_error", _same, (1.05,), 1.01, 100.0),
    ("1 - ESS above", "ess_fraction", _complement, (0.7,), 0.005, 0.9999),
    ("chi-square above", "chi2_token", _same, (1.0,), 0.01, 1e9),
)


def rivals() -> list[Entry]:
    """All rows but our own."""
    return [
        *_magnitude(),
        *_field_lines(),
        *_several("direction", _DIRECTION),
        *_several("segment", _SEGMENT),
        *_rest(),
    ]


def _magnitude() -> list[Entry]:
    return [
        Entry(title, family, forms(title, family, Indicator(name, turn), low, high))
        for family, rows in (("magnitude", _MAGNITUDE), ("tail", _TAIL))
        for title, name, turn, low, high in rows
    ]


def _several(family: str, rows: tuple[tuple[str, str, tuple[tuple[str, Turn, float, float], ...]], ...]) -> list[Entry]:
    entries = []
    for title, name, sides in rows:
        candidates = [
            level
            for side, turn, low, high in sides
            for level in forms(f"{title} {side}" if len(sides) > 1 else title, family, Indicator(name, turn), low, high)
        ]
        entries.append(Entry(title, family, tuple(candidates)))
    return entries


def _field_lines() -> list[Entry]:
    entries = []
    for title, name, turn, levels, low, high in _LINES:
        statistic = InForm(Indicator(name, turn), "update", "abs")
        for level in levels:
            line = Level(f"{title} {level:g}", "field line", statistic, (), fixed=level)
            entries.append(Entry(line.name, "field line", (line,), tuned=False))
        tuned = Level(f"{title} a tuned level", "field line", statistic, spaced(low, high))
        entries.append(Entry(tuned.name, "field line", (tuned,)))
    return entries


def _rest() -> list[Entry]:
    gap = trend.mean_abs_gap
    return [
        Entry("slope of abs_delta_mean", "trend", trend.slope_rules(gap, "trend", "slope of abs_delta_mean")),
        Entry("Mann-Kendall", "trend", trend.rank_rules(gap, "trend", "Mann-Kendall")),
        Entry("CUSUM", "change point", change.cusum()),
        Entry("ADWIN", "change point", change.adwin()),
        Entry("Page-Hinkley", "change point", change.page_hinkley()),
        Entry("loss spike", "loss", trainer.loss_spike()),
        Entry("grad-norm spike", "loss", trainer.grad_norm_spike()),
        Entry("grad norm", "loss", trainer.grad_norm_level()),
        Entry("entropy", "loss", trainer.entropy_level()),
        Entry("reward falls", "reward", trainer.reward_fall()),
        Entry("reward trend", "reward", trainer.reward_trend()),
    ]
