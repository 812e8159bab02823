"""Fleet: every run by its stage, which of them needs somebody, and whether the monitor itself is well."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from triage_monitor.dashboards.parts import ORANGE, VERMILION, Query, board, chart, number, rows, stage_code, timeline


def fleet() -> dashboard.Dashboard:
    made = board("triage-fleet", "Triage: fleet", "All runs by stage, and the health of the monitor.", of_run=False)
    made.with_row(dashboard.Row("Runs"))
    made.with_panel(
        number(
            "Runs by stage",
            "How many runs are in each stage now. Anything but healthy and warming_up is worth opening.",
            "short",
            Query("sum by (stage) (triage_stage)", "{{stage}}"),
            span=24,
        )
    )
    made.with_panel(
        timeline("Stage of every run", "The judged stage over time, one bar a run.", Query(stage_code(""), "{{run}}"))
    )
    made.with_panel(
        rows(
            "Runs",
            "Stage, early-warning score (1 is the alarm), rho_asym of the window, newest step and its age in seconds.",
            Query("max by (run, stage) (triage_stage == 1)", "", instant=True),
            Query("max by (run) (triage_warning_score)", "", instant=True),
            Query('max by (run) (triage_rho_asym{scope="window"})', "", instant=True),
            Query("max by (run) (triage_update_step)", "", instant=True),
            Query("max by (run) (time() - triage_last_update_timestamp_seconds)", "", instant=True),
            names={
                "run": "run",
                "stage": "stage",
                "Value #A": "here",
                "Value #B": "score",
                "Value #C": "rho_asym",
                "Value #D": "step",
                "Value #E": "age (s)",
            },
        )
    )
    made.with_panel(
        chart(
            "Early-warning score",
            "How far the leading indicators stand above each run's own normal; drift begins at 0.5, the alarm is 1.",
            "none",
            Query("max by (run) (triage_warning_score)", "{{run}}"),
            levels={0.5: ORANGE, 1.0: VERMILION},
        )
    )
    made.with_panel(
        chart(
            "Firing alerts",
            "Alerts of the shipped rules by name. Empty is good.",
            "short",
            Query('count by (alertname) (ALERTS{alertname=~"Triage.*", alertstate="firing"})', "{{alertname}}"),
        )
    )
    _monitor(made)
    return made


def _monitor(made: dashboard.Dashboard) -> None:
    made.with_row(dashboard.Row("The monitor"))
    made.with_panel(
        chart(
            "Shards taken and refused",
            "Shards a second that were acknowledged, and those refused by reason. A refusal is counted, never silent.",
            "cps",
            Query("sum(rate(triage_ingest_shards_total[$__rate_interval]))", "taken"),
            Query("sum by (reason) (rate(triage_ingest_rejected_total[$__rate_interval]))", "refused: {{reason}}"),
        )
    )
    made.with_panel(
        chart(
            "Time to acknowledge a shard",
            "From the first byte of a body to its durable acknowledgement; trainers wait for this in the background.",
            "s",
            *(
                Query(
                    f"histogram_quantile({q}, sum by (le)"
                    " (rate(triage_ingest_duration_seconds_bucket[$__rate_interval])))",
                    name,
                )
                for q, name in ((0.5, "median"), (0.95, "95%"))
            ),
        )
    )
    made.with_panel(
        chart(
            "Bytes in",
            "Bytes a second of accepted bodies, and bytes that are being taken in at this moment.",
            "bytes",
            Query("sum(rate(triage_ingest_bytes_total[$__rate_interval]))", "accepted a second"),
            Query("sum(triage_ingest_inflight_bytes)", "in flight"),
        )
    )
    made.with_panel(
        number(
            "Store takes writes",
            "1 when the last write was durable. 0 means that nothing is acknowledged: see /readyz.",
            "none",
            Query("min by (instance) (triage_store_writable)", "{{instance}}"),
        )
    )
    made.with_panel(
        number(
            "Damaged rows",
            "Stored rows that failed their checksum and were left out; anything above 0 is a matter of the disk.",
            "short",
            Query("sum by (instance) (triage_store_corrupt_rows_total)", "{{instance}}"),
            levels={1: VERMILION},
        )
    )
