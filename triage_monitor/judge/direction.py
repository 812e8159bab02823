"""Direction (estimands sections 2 and 6): which way the update pushes the gap, and how sure that is.

M(region) is the sum of abs(A) over a region's tokens; A- and A+ amplify the gap, C- and C+ contract it.

    rho_asym = M(A-) / M(A+)          asym_share = M(A-) / (M(A-) + M(A+))
    rho_excess = rho_asym / (advantage_mass_ratio * sign_odds_blind)
    var(log rho) = U / (U - 1) * sum_u (X_u / sum X - Y_u / sum Y)**2, X, Y a unit's M(A-), M(A+)

The last needs only sums of X, Y, X**2, Y**2, XY, so it merges. Units are groups when every response had one and no
group was split over shards, else responses.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from triage_monitor.judge.table import Indicator, tokens, undefined
from triage_monitor.summary.step import LAGS, REGIONS, StepSummary

Z_95 = 1.96


def _signal(summary: StepSummary) -> float:
    tokens(summary)
    total = summary.total("mass_total")
    if math.isinf(total):
        undefined("out_of_range")
    return total or undefined("no_advantage_signal")


def _sides(summary: StepSummary, negative: str, positive: str) -> tuple[float, float]:
    _signal(summary)
    x, y = summary.total(negative), summary.total(positive)
    if x == 0 and y == 0:
        undefined("no_amplifying_mass")
    return x, y


def _asymmetry(negative: str, positive: str) -> Callable[[StepSummary], float]:
    def compute(summary: StepSummary) -> float:
        x, y = _sides(summary, negative, positive)
        return x / y if y else undefined("no_positive_mass")

    return compute


rho_asym = _asymmetry("mass_a_neg", "mass_a_pos")


def asym_share(summary: StepSummary) -> float:
    x, y = _sides(summary, "mass_a_neg", "mass_a_pos")
    return x / (x + y)


def by_group(summary: StepSummary) -> bool:
    """Whether the interval clusters on groups."""
    whole = summary.count("grouped_responses") == summary.count("responses_with_tokens") > 0
    return whole and not summary.count("group_split")


def log_rho_se(summary: StepSummary) -> float:
    x, y = _sides(summary, "mass_a_neg", "mass_a_pos")
    if y == 0:
        undefined("no_positive_mass")
    if x == 0:
        undefined("no_negative_mass")
    unit, units = ("group", summary.count("groups")) if by_group(summary) else ("unit", summary.count("units"))
    if units < 2:
        undefined("too_few_units")
    xx, yy, xy = (summary.total(f"{unit}_{moment}") for moment in ("xx", "yy", "xy"))
    spread = xx / x**2 - 2 * xy / (x * y) + yy / y**2
    return math.sqrt(max(spread, 0.0) * units / (units - 1))


def _bound(sign: float) -> Callable[[StepSummary], float]:
    return lambda summary: rho_asym(summary) * math.exp(sign * Z_95 * log_rho_se(summary))


def advantage_mass_ratio(summary: StepSummary) -> float:
    _signal(summary)
    positive = summary.total("mass_advantage_positive") or undefined("no_positive_mass")
    return summary.total("mass_advantage_negative") / positive


def sign_odds_blind(summary: StepSummary) -> float:
    tokens(summary)
    positive = summary.count("gap_positive") or undefined("no_positive_gap")
    return summary.count("gap_negative") / positive


def rho_excess(summary: StepSummary) -> float:
    rho = rho_asym(summary)
    explained = advantage_mass_ratio(summary) * sign_odds_blind(summary)
    return rho / explained if explained else undefined("no_negative_mass")


def amplification_balance(summary: StepSummary) -> float:
    _signal(summary)
    grows = summary.total("pressure_a_neg") + summary.total("pressure_a_pos")
    shrinks = summary.total("pressure_c_neg") + summary.total("pressure_c_pos")
    return (grows - shrinks) / (grows + shrinks) if grows + shrinks else undefined("no_amplifying_mass")


def _pressure_odds(below: str, above: str) -> Callable[[StepSummary], float]:
    def compute(summary: StepSummary) -> float:
        _signal(summary)
        risen = summary.total(f"pressure_{above}") or undefined("no_positive_gap")
        return summary.total(f"pressure_{below}") / risen

    return compute


def _mass(region: str) -> Callable[[StepSummary], float]:
    return lambda summary: summary.total(f"mass_{region}") / _signal(summary)


def _deep(side: str, advantage: str) -> Callable[[StepSummary], float]:
    def compute(summary: StepSummary) -> float:
        tokens(summary)
        within = summary.count(f"advantage_{advantage}") or undefined(f"no_{advantage}_advantage")
        return summary.count(f"deep_{side}") / within

    return compute


def _lagged(lag: str) -> Callable[[StepSummary], float]:
    def compute(summary: StepSummary) -> float:
        _versions(summary)
        x, y = _sides(summary, f"lag_mass_a_neg_{lag}", f"lag_mass_a_pos_{lag}")
        return x / y if y else undefined("no_positive_mass")

    return compute


def _versions(summary: StepSummary) -> int:
    return sum(summary.count(f"lag_tokens_{lag}") for lag in LAGS) or undefined("no_versions")


def staleness_mean(summary: StepSummary) -> float:
    return summary.total("lag_tokens_weighted") / _versions(summary)


def _row(name: str, unit: str, help: str, compute: Callable[[StepSummary], float]) -> Indicator:
    return Indicator(name, unit, help, "direction", compute)


_REGION_TEXT = {
    "a_neg": "A < 0 and gap < 0 (amplifying)",
    "a_pos": "A > 0 and gap > 0 (amplifying)",
    "c_neg": "A < 0 and gap > 0 (contracting)",
    "c_pos": "A > 0 and gap < 0 (contracting)",
}

ROWS: tuple[Indicator, ...] = (
    _row("rho_asym", "ratio", "Advantage mass of A < 0, gap < 0 tokens over that of A > 0, gap > 0 tokens", rho_asym),
    _row("rho_asym_low", "ratio", "Lower end of the 95% interval of rho_asym", _bound(-1.0)),
    _row("rho_asym_high", "ratio", "Upper end of the 95% interval of rho_asym", _bound(1.0)),
    _row("log_rho_se", "log", "Standard error of log(rho_asym), over groups or responses", log_rho_se),
    _row("asym_share", "share", "Share of the amplifying mass on the A < 0 side; 0.5 is balanced", asym_share),
    _row(
        "rho_asym_tail",
        "ratio",
        "rho_asym over tokens with abs(gap) of at least tau_ana",
        _asymmetry("tail_mass_a_neg", "tail_mass_a_pos"),
    ),
    _row("advantage_mass_ratio", "ratio", "The part of rho_asym that lengths and filtering make", advantage_mass_ratio),
    _row("sign_odds_blind", "ratio", "Tokens with a negative gap over tokens with a positive one", sign_odds_blind),
    _row("rho_excess", "ratio", "rho_asym with both factors divided out; about 1 is no direction proper", rho_excess),
    _row(
        "rho_pressure",
        "ratio",
        "rho_asym weighted by abs(gap): the update's pressure, not its token count",
        _asymmetry("pressure_a_neg", "pressure_a_pos"),
    ),
    _row(
        "pressure_odds_pos",
        "ratio",
        "Over A > 0 tokens: sum of abs(A gap) where the gap is negative over where it is positive",
        _pressure_odds("c_pos", "a_pos"),
    ),
    _row(
        "pressure_odds_neg",
        "ratio",
        "The same over A < 0 tokens",
        _pressure_odds("a_neg", "c_neg"),
    ),
    _row(
        "amplification_balance",
        "ratio",
        "Amplifying minus contracting pressure over their sum, in [-1, 1]",
        amplification_balance,
    ),
    _row(
        "deep_tail_neg", "share", "Share of A < 0 tokens with a gap below the deep tail (-1)", _deep("neg", "negative")
    ),
    _row(
        "deep_tail_pos", "share", "Share of A > 0 tokens with a gap below the deep tail (-1)", _deep("pos", "positive")
    ),
    *(
        _row(f"mass_{region}", "share", f"Share of the advantage mass with {_REGION_TEXT[region]}", _mass(region))
        for region in REGIONS
    ),
    *(
        _row(
            f"rho_asym_lag_{lag}",
            "ratio",
            f"rho_asym over tokens sampled {lag.replace('_', ' ')} versions ago",
            _lagged(lag),
        )
        for lag in LAGS
    ),
    _row("staleness_mean", "count", "Mean policy-version lag of the tokens", staleness_mean),
)
