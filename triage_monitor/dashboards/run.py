"""Run: what an operator reads of one run, from the stage down to the parameters that the trainer applies."""

from __future__ import annotations

from itertools import pairwise

from grafana_foundation_sdk.builders import dashboard

from triage_monitor.dashboards.parts import ORANGE, VERMILION, Query, board, chart, number, stage_code, timeline
from triage_monitor.judge.indicators import QUANTILES

RUN = 'run="$run"'
WINDOW = f'{RUN}, scope="window"'


def one(metric: str, labels: str = WINDOW) -> str:
    """The metric of the run; one value even where two monitors are scraped."""
    return f"max(triage_{metric}{{{labels}}})"


def run() -> dashboard.Dashboard:
    made = board("triage-run", "Triage: run", "One run: stage, direction, tail, parameters, actions.", of_run=True)
    _verdict(made)
    _direction(made)
    _tail(made)
    _control(made)
    return made


def _verdict(made: dashboard.Dashboard) -> None:
    made.with_row(dashboard.Row("Verdict"))
    code = stage_code(f"{RUN}, ")
    made.with_panel(number("Stage", "The judged stage now.", "none", Query(code, "stage"), stages=True))
    made.with_panel(
        number(
            "Updates in this stage",
            "How many updates were judged since the stage was entered.",
            "short",
            Query(one("stage_updates", RUN), "updates"),
        )
    )
    made.with_panel(
        number("Step", "Step of the newest closed update.", "short", Query(one("update_step", RUN), "step"))
    )
    made.with_panel(
        number(
            "Age of the newest update",
            "In the run's own median intervals; above 5 the trainer counts as stalled.",
            "none",
            Query(
                f"max((time() - triage_last_update_timestamp_seconds{{{RUN}}})"
                f" / on (instance, run) (triage_update_interval_seconds{{{RUN}}} > 0))",
                "intervals",
            ),
            levels={5: VERMILION},
        )
    )
    made.with_panel(timeline("Stage over time", "The judged stage; marks are changes.", Query(code, "{{run}}")))
    made.with_panel(
        chart(
            "Early-warning score",
            "1 is the alarm; drift begins at 0.5. It is silent until the run has learned its own baseline.",
            "none",
            Query(one("warning_score", RUN), "score"),
            levels={0.5: ORANGE, 1.0: VERMILION},
        )
    )
    made.with_panel(
        chart(
            "What the score is made of",
            "Each indicator's share; the shares add up to the score.",
            "none",
            Query(f"max by (part) (triage_warning_score_share{{{RUN}}})", "{{part}}"),
        )
    )
    made.with_panel(
        chart(
            "Notices and named causes",
            "1 while a notice holds or a cause is named; `findings` in GET /v1/runs/{run} has evidence and remedy.",
            "none",
            Query(f"max by (kind) (triage_notice{{{RUN}}})", "notice: {{kind}}"),
            Query(f"max by (cause) (triage_finding{{{RUN}}}) > 0", "cause: {{cause}}"),
            span=24,
        )
    )


def _direction(made: dashboard.Dashboard) -> None:
    made.with_row(dashboard.Row("Direction"))
    made.with_panel(
        chart(
            "rho_asym with its 95% interval",
            "Above 1, updates with a negative advantage amplify the gap more than those with a positive one. Lines at"
            " the levels of the imbalance alert: 0.8 and 1.25. Absent where it is not defined.",
            "none",
            Query(one("rho_asym_high"), "upper end"),
            Query(one("rho_asym"), "rho_asym, window"),
            Query(one("rho_asym_low"), "lower end"),
            Query(one("rho_asym", f'{RUN}, scope="update"'), "rho_asym, update"),
            levels={0.8: ORANGE, 1.25: ORANGE},
            bands={"upper end": "lower end"},
            log=True,
        )
    )
    made.with_panel(
        chart(
            "The four masses",
            "Shares of the advantage mass: amplifying (advantage and gap of one sign) and contracting, by the sign of"
            " the advantage.",
            "percentunit",
            Query(one("mass_a_neg"), "amplifying, A < 0"),
            Query(one("mass_a_pos"), "amplifying, A > 0"),
            Query(one("mass_c_neg"), "contracting, A < 0"),
            Query(one("mass_c_pos"), "contracting, A > 0"),
        )
    )


def _tail(made: dashboard.Dashboard) -> None:
    made.with_row(dashboard.Row("Gap and tail"))
    by_q = 'max by (q) (triage_gap_quantile{%s, advantage="%s"})'
    made.with_panel(
        chart(
            "Quantile fan of the gap",
            "Quantiles of learner minus sampler log-prob over all tokens; the lowest lines are the deep tail.",
            "none",
            Query(by_q % (WINDOW, "all"), "q {{q}}"),
            bands={f"q {low}": f"q {high}" for low, high in pairwise(QUANTILES)},
        )
    )
    deep = f'triage_gap_quantile{{{WINDOW}, q="0.05", advantage="all"}}'
    made.with_panel(
        chart(
            "Depth of the tail (log axis)",
            "-q05 and -q0.001 of the gap in nats: straight lines here are exponential growth.",
            "none",
            Query(f"max(-{deep} > 0)", "-q05"),
            Query(f"max(-{deep.replace('0.05', '0.001')} > 0)", "-q0.001"),
            log=True,
        )
    )
    made.with_panel(
        chart(
            "Near-zero share and heavy segments",
            "Share of tokens with abs(gap) below 0.05, and of segments that are tail-heavy.",
            "percentunit",
            Query(one("near_zero_fraction"), "near zero"),
            Query(one("heavy_segment_fraction"), "heavy segments"),
            Query(one("masked_response_fraction"), "masked responses"),
        )
    )
    made.with_panel(
        chart(
            "Concentration and persistence",
            "Tail tokens held by the worst 5% of segments over 5%, and how much likelier a segment is heavy after a"
            " heavy one; about 1 is uniform. Normal: what this run learned. Worrying only beside a growing tail.",
            "none",
            Query(one("tail_concentration"), "concentration"),
            Query(one("persistence"), "persistence"),
            Query(f'max(triage_baseline{{{RUN}, indicator="top5_tail_share"}}) / 0.05', "concentration, normal"),
            Query(f'max(triage_baseline{{{RUN}, indicator="persistence"}})', "persistence, normal"),
        )
    )
    made.with_panel(
        chart(
            "Reward and gradient norm",
            "What the trainer sends of itself; absent when it sends none.",
            "none",
            Query(one("reward_mean"), "reward"),
            Query(one("grad_norm"), "gradient norm"),
        )
    )
    made.with_panel(
        chart(
            "Integrity",
            "Share of tokens without a finite gap or without a value, and updates closed without all their shards.",
            "none",
            Query(one("nonfinite_fraction", f'{RUN}, scope="update"'), "non-finite"),
            Query(one("missing_fraction", f'{RUN}, scope="update"'), "missing"),
            Query(one("partial_updates", RUN), "partial updates"),
        )
    )


def _control(made: dashboard.Dashboard) -> None:
    made.with_row(dashboard.Row("Control"))
    made.with_panel(
        chart(
            "Parameters pushed and applied",
            "Newest issued version and the one that the trainer says is in force; they should meet within an update.",
            "none",
            Query(one("params_version", RUN), "pushed"),
            Query(one("params_applied_version", RUN), "applied"),
        )
    )
    made.with_panel(
        chart(
            "Updates without an acknowledgement",
            "Updates closed since the newest version was issued while the trainer does not run on it; 5 alert.",
            "short",
            Query(one("params_unacknowledged_updates", RUN), "updates"),
            Query(one("params_refused", RUN), "refused (1)"),
            levels={5: VERMILION},
        )
    )
    made.with_panel(
        chart(
            "Actions",
            "Actions by people, alerts and the policy so far, by kind and outcome; marks are parameter changes.",
            "short",
            Query(f"max by (kind, outcome) (triage_actions_total{{{RUN}}})", "{{kind}}: {{outcome}}"),
        )
    )
    made.with_panel(
        number(
            "Parameters held",
            "1 while a person or an alert holds the parameters: the policy changes none until `release`.",
            "none",
            Query(one("params_held", RUN), "held"),
            levels={1: ORANGE},
        )
    )
