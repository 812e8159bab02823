"""Research: every indicator of one run by family, per side and by staleness; made from the indicator table."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard, timeseries

from triage_monitor.dashboards.parts import Query, board, chart
from triage_monitor.dashboards.run import RUN, WINDOW, one
from triage_monitor.judge.indicators import INDICATORS
from triage_monitor.judge.table import Indicator
from triage_monitor.service.exposition import metric_name

UNITS = {"share": "percentunit", "count": "short"}
# Shown on the run's dashboard, or the ends of an interval that belongs to another chart.
ELSEWHERE = ("rho_asym", "mass_", "reward_mean", "grad_norm", "not_observable", "nonfinite", "missing_fraction")


def research() -> dashboard.Dashboard:
    made = board(
        "triage-research",
        "Triage: research",
        "Every indicator of one run: magnitude family, per-side tails, staleness.",
        of_run=True,
    )
    _sides(made)
    _staleness(made)
    for family in ("magnitude", "response", "probability", "marginal", "direction"):
        _family(made, family)
    return made


def _sides(made: dashboard.Dashboard) -> None:
    made.with_row(dashboard.Row("Tails by the sign of the advantage"))
    for side, name in (("neg", "A < 0"), ("pos", "A > 0")):
        made.with_panel(
            chart(
                f"Quantiles of the gap, {name}",
                f"Quantiles of learner minus sampler log-prob over tokens with {name}, in nats.",
                "none",
                Query(f'max by (q) (triage_gap_quantile{{{WINDOW}, advantage="{side}"}})', "q {{q}}"),
            )
        )
    for base, text in (
        ("tail_token_fraction", "Share of tokens in the amplifying tail"),
        ("heavy_segment_fraction", "Share of eligible segments that are tail-heavy"),
        ("top5_tail_share", "Share of the tail tokens held by the top 5% of segments"),
        ("persistence", "How much likelier a segment is heavy after a heavy one"),
    ):
        made.with_panel(
            chart(
                f"{base} by side",
                f"{text}: all amplifying tokens, and either side alone.",
                "none" if base == "persistence" else "percentunit",
                Query(one(base), "both"),
                Query(one(f"{base}_a_neg"), "A < 0"),
                Query(one(f"{base}_a_pos"), "A > 0"),
            )
        )


def _staleness(made: dashboard.Dashboard) -> None:
    made.with_row(dashboard.Row("Staleness"))
    lags = [(f"rho_asym_lag_{lag}", f"{lag.replace('_plus', ' or more')} behind") for lag in ("0", "1", "2_plus")]
    made.with_panel(
        chart(
            "rho_asym by policy lag",
            "Direction over tokens of the newest policy and of older ones; needs policy versions from the trainer.",
            "none",
            *(Query(one(metric), name) for metric, name in lags),
        )
    )
    made.with_panel(
        chart(
            "Mean policy lag",
            "How many versions of the policy lie between sampling and learning, over tokens.",
            "none",
            Query(one("staleness_mean"), "versions"),
        )
    )


def _family(made: dashboard.Dashboard, family: str) -> None:
    made.with_row(dashboard.Row(f"{family.capitalize()} family"))
    for indicator in INDICATORS:
        if indicator.family == family and not indicator.name.startswith(ELSEWHERE):
            made.with_panel(_indicator(indicator))


def _indicator(indicator: Indicator) -> timeseries.Panel:
    name = metric_name(indicator.name).removeprefix("triage_")
    text = f"{indicator.help}. Unit: {indicator.unit}. Over the trailing window, and of each update by itself."
    return chart(
        indicator.name,
        text,
        UNITS.get(indicator.unit, "none"),
        Query(one(name), "window"),
        Query(one(name, f'{RUN}, scope="update"'), "update"),
        span=8,
    )
