"""Prometheus exposition: a collector that reads the runs' snapshots at scrape time and holds nothing itself.

Names are those of the contract; help texts come from the indicator table. An indicator without a value has no sample
(never NaN) and `triage_indicator_defined` 0. A retired run has no series at all. Labels are bounded: run names by
`max_runs`, everything else by vocabularies in code. The registry is passed in; nothing is registered at import.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from triage_monitor.judge.causes_table import CAUSE_NAMES
from triage_monitor.judge.indicators import INDICATORS
from triage_monitor.judge.notices import KINDS as NOTICE_KINDS
from triage_monitor.judge.stages import ALARM, Stage
from triage_monitor.service.body import ByteBudget
from triage_monitor.service.joining import JOINED, UNMATCHED, unmatched_rows
from triage_monitor.service.live import Snapshot
from triage_monitor.service.sidecar import Sidecar
from triage_monitor.storage.records import UpdateRow
from triage_monitor.summary.objective import RATIOS

SCOPES = ("update", "window")
_QUANTILE_HELP = "Quantile q of the learner-sampler gap in nats, all tokens or by the sign of the advantage"

# Per-run counters of `LiveRun` -> (metric, help). Gauges: a late shard takes a partial update back.
_RUN_COUNTS = {
    "updates": ("triage_updates", "Closed updates of the run"),
    "partial_updates": ("triage_partial_updates", "Updates closed without all their shards, as they stand"),
    "missing_shards": ("triage_missing_shards", "Shards missing from closed updates, as they stand"),
    "empty_updates": ("triage_empty_updates", "Updates without a single valid token"),
    "late_shards": ("triage_late_shards", "Shards that came after their update was closed"),
    "duplicate_shards": ("triage_duplicate_shards", "Shards that were sent again with the same content"),
    "conflicting_shards": ("triage_conflicting_shards", "Shards refused because other content was sent before"),
    JOINED: ("triage_joined_rows", "Responses joined of a sampler's and a learner's half, as they stand"),
    "refused_params": ("triage_refused_params", "Parameter versions that a trainer refused"),
}


@dataclass(slots=True)
class _Families:
    """The families of one scrape, made on first use, in order of first use."""

    made: dict[str, GaugeMetricFamily | CounterMetricFamily] = field(default_factory=dict)

    def gauge(self, name: str, text: str, labels: dict[str, str], value: float | None) -> None:
        family = self.made.get(name)
        if family is None:
            family = self.made[name] = GaugeMetricFamily(name, text)
        if value is not None:
            family.add_sample(name, labels, value)

    def counter(self, name: str, text: str, labels: dict[str, str], value: float) -> None:
        family = self.made.get(name)
        if family is None:
            family = self.made[name] = CounterMetricFamily(name, text)
        family.add_sample(f"{name}_total", labels, value)


class SidecarCollector(Collector):
    """Threads may scrape; the state is read as it is at that moment."""

    def __init__(
        self, sidecar: Sidecar, budget: ByteBudget, more: Sequence[Callable[[], Iterable[Metric]]] = ()
    ) -> None:
        self._sidecar = sidecar
        self._budget = budget
        self._more = more

    def describe(self) -> Iterable[Metric]:
        """Nothing: describing would need a state, and registering must not."""
        return ()

    def collect(self) -> Iterator[Metric]:
        families = _Families()
        for snapshot, open_updates in self.runs():
            _of_run(families, snapshot, open_updates)
        yield from families.made.values()
        yield from self.of_process()

    def runs(self) -> list[tuple[Snapshot, int]]:
        """Every run that is not retired, by name, with how many of its updates are open."""
        lives = [live for live in list(self._sidecar.runs.values()) if not self._sidecar.is_retired(live)]
        return [(live.snapshot, len(live.open)) for live in sorted(lives, key=lambda item: item.name)]

    def of_process(self) -> Iterator[Metric]:
        """Families that belong to no run."""
        families = _Families()
        self._of_process(families)
        yield from families.made.values()
        yield self._durations()
        for part in self._more:
            yield from part()

    def _of_process(self, families: _Families) -> None:
        tally, store = self._sidecar.tally, self._sidecar.store
        families.counter("triage_ingest_updates", "Updates closed", {}, tally.updates)
        families.counter("triage_ingest_shards", "Shards taken in", {}, tally.shards)
        families.counter("triage_ingest_bytes", "Bytes of accepted bodies", {}, tally.body_bytes)
        # Present from the start: a counter that first shows as 1 has no increase that a rule could see.
        for reason, count in sorted(({"other": 0} | tally.rejected).items()):
            families.counter("triage_ingest_rejected", "Refused shards by reason", {"reason": reason}, count)
        at = "triage_ingest_last_{}_timestamp_seconds"
        families.gauge(at.format("accepted"), "When a shard was last accepted", {}, tally.last_accepted_at)
        families.gauge(at.format("rejected"), "When a shard was last refused", {}, tally.last_rejected_at)
        held = self._budget.used_bytes
        families.gauge("triage_ingest_inflight_bytes", "Bytes of bodies being taken in", {}, held)
        families.gauge("triage_event_listeners", "Open event streams", {}, self._sidecar.hub.listeners)
        text = "Stored rows that failed their checksum and were not served"
        families.counter("triage_store_corrupt_rows", text, {}, store.corrupt_rows)
        damage = store.damage
        text = "Times the store's files were found damaged since it was made"
        families.counter("triage_store_damaged", text, {}, damage.times)
        text = "Acknowledged writes that damage to the store's files took since it was made"
        families.counter("triage_store_lost_writes", text, {}, damage.lost_writes)
        text = "1 once every stored row was read and verified since the start"
        families.gauge("triage_store_verified", text, {}, float(store.scrubbed))
        writable = float(self._sidecar.last_write_failed is None)
        families.gauge("triage_store_writable", "1 when the last write to the store succeeded", {}, writable)

    def _durations(self) -> Metric:
        tally = self._sidecar.tally
        return HistogramMetricFamily(
            "triage_ingest_duration_seconds",
            "From the first byte of a shard's body to its durable acknowledgement",
            buckets=tally.cumulative_buckets(),
            sum_value=tally.seconds_sum,
        )


def run_families(run: Snapshot, open_updates: int) -> list[Metric]:
    """The families of one run alone."""
    families = _Families()
    _of_run(families, run, open_updates)
    return list(families.made.values())


def metric_name(indicator: str) -> str:
    """`triage_` and the indicator's name, with `_` for what a Prometheus name may not hold (frac_rho_lt_0.5)."""
    return "triage_" + re.sub(r"[^A-Za-z0-9_]", "_", indicator)


def _of_run(families: _Families, run: Snapshot, open_updates: int) -> None:
    here = {"run": run.run}
    newest = run.newest
    for scope in SCOPES:
        report = {} if newest is None else newest.report[scope]
        _report(families, {"run": run.run, "scope": scope}, report)
    window = {} if newest is None else newest.report["window"]
    for indicator in INDICATORS:
        defined = float(window.get("indicators", {}).get(indicator.name) is not None)
        labels = {"run": run.run, "indicator": indicator.name}
        text = "1 when the indicator has a value over the trailing window"
        families.gauge("triage_indicator_defined", text, labels, defined)
    for stage in Stage:
        value = float(run.stage == stage.value)
        families.gauge("triage_stage", "1 for the stage the run is in", {**here, "stage": stage.value}, value)
    families.gauge(
        "triage_stage_updates", "Updates judged in the present stage", here, run.counters.get("stage_updates", 0)
    )
    _notices(families, newest, here)
    score = window.get("score") or {}
    families.gauge("triage_warning_score", "Early-warning score; 1 is the alarm", here, score.get("value"))
    for part, share in score.get("shares", {}).items():
        text = "What the early-warning score is made of"
        families.gauge("triage_warning_score_share", text, {**here, "part": part}, share)
    for name, median in run.normal.items():
        text = "What the run learned as its normal: median of the indicator over its first healthy windows"
        families.gauge("triage_baseline", text, {**here, "indicator": name}, median)
    found = {item["cause"] for item in run.findings}
    for cause in CAUSE_NAMES:
        text = "1 while the cause is named in the trailing window"
        families.gauge("triage_finding", text, {**here, "cause": cause}, float(cause in found))
    told = {} if newest is None else newest.report.get("objective", {})
    for name, (_, _, text) in RATIOS.items():
        families.gauge(f"triage_objective_{name}", f"{text}; told by the trainer", here, told.get(name))
    _progress(families, run, here, open_updates)
    for name, (metric, text) in _RUN_COUNTS.items():
        families.gauge(metric, text, here, run.counters.get(name, 0))
    for side, reasons in unmatched_rows(run.counters).items():
        for reason, count in reasons.items():
            text = "Rows of a side that found no partner in closed updates, as they stand"
            labels = {**here, "side": side, "reason": reason}
            families.gauge("triage_unmatched_rows", text, labels, count)
    for reason, count in sorted(run.client_drops.items()):
        text = "Updates that the trainer's client reports as dropped"
        families.gauge("triage_client_dropped_updates", text, {**here, "reason": reason}, count)
    for key, count in sorted(run.actions.items()):
        kind, _, outcome = key.partition("/")
        labels = {**here, "kind": kind, "outcome": outcome}
        families.counter("triage_actions", "Actions and policy changes by outcome", labels, count)


def _notices(families: _Families, newest: UpdateRow | None, here: dict[str, str]) -> None:
    said = {item["kind"]: item for item in (newest.report["notices"] if newest is not None else ())}
    step = 0 if newest is None else newest.step
    for kind in (*NOTICE_KINDS, UNMATCHED):
        labels, item = {**here, "kind": kind}, said.get(kind)
        families.gauge("triage_notice", "1 while the notice holds", labels, float(item is not None))
        is_alarm = item is not None and item.get("severity") == ALARM
        families.gauge("triage_notice_alarm", "1 while the notice is an alarm", labels, float(is_alarm))
        text = "Updates, by step number, for which the notice has held; 0 while it does not"
        lasted = 0 if item is None else max(0, step - item["since_step"]) + 1
        families.gauge("triage_notice_updates", text, labels, lasted)


def _progress(families: _Families, run: Snapshot, here: dict[str, str], open_updates: int) -> None:
    newest, applied = run.newest, run.applied
    step = None if newest is None else newest.step
    families.gauge("triage_update_step", "Step of the newest closed update", here, step)
    closed_at = None if newest is None else newest.closed_at
    text = "When the run last closed an update, Unix seconds"
    families.gauge("triage_last_update_timestamp_seconds", text, here, closed_at)
    in_window = None if newest is None else newest.report["window"].get("updates")
    families.gauge("triage_window_updates", "Updates in the trailing window", here, in_window)
    families.gauge("triage_open_updates", "Updates still waiting for shards", here, open_updates)
    text = "Updates set aside until the next start, as closing them failed again and again"
    families.gauge("triage_unclosable_updates", text, here, run.unclosable)
    families.gauge("triage_attempt", "The run's current attempt", here, run.attempt)
    families.gauge("triage_params_version", "Newest issued parameter version", here, run.params.version)
    text = "Parameter version that the trainer said is in force"
    families.gauge("triage_params_applied_version", text, here, applied["version"] if applied else None)
    text = "Updates closed since the newest parameter version was issued; 0 once the trainer runs on it"
    families.gauge("triage_params_unacknowledged_updates", text, here, run.unacknowledged_updates)
    text = "1 while the trainer refuses the newest parameter version"
    families.gauge("triage_params_refused", text, here, float(run.is_refused))
    text = "1 while the trainer obeys another monitor: one of a higher epoch, or another copy of this one"
    families.gauge("triage_params_fenced", text, here, float(run.fenced_by is not None))
    text = "Median seconds between the newest updates"
    families.gauge("triage_update_interval_seconds", text, here, run.interval_seconds)
    text = "1 while the policy only records what it would change (judge.policy.dry_run)"
    families.gauge("triage_policy_dry_run", text, here, float(run.proposed is not None))
    text = "1 while somebody holds the parameters and the policy changes none"
    families.gauge("triage_params_held", text, here, float(run.held_by is not None))


def _report(families: _Families, labels: dict[str, str], report: Mapping[str, Any]) -> None:
    values = report.get("indicators", {})
    for indicator in INDICATORS:
        families.gauge(metric_name(indicator.name), indicator.help, labels, values.get(indicator.name))
    for side, points in report.get("quantiles", {}).items():
        for probability, value in points.items():
            point = {**labels, "q": probability, "advantage": side}
            families.gauge("triage_gap_quantile", _QUANTILE_HELP, point, value)
