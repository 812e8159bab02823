"""Metrics of access: what was refused by reason, the state of the token file, whether the audit trail is witnessed.

No name of a token, no hash.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from triage_monitor.service.access import Access
from triage_monitor.storage.audit_witness import Witness


def access_families(access: Access) -> Iterator[Metric]:
    refused = CounterMetricFamily("triage_access_refused", "Requests refused before any route, by reason")
    for reason, count in sorted(access.refused.copy().items()):
        refused.add_sample("triage_access_refused_total", {"reason": reason}, count)
    yield refused
    tokens = access.rules.tokens
    if tokens is None:
        return
    yield GaugeMetricFamily("triage_access_tokens", "Tokens that are good now", value=tokens.usable())
    text = "1 while the token file as it is now is in force, 0 while an older good set is"
    yield GaugeMetricFamily("triage_access_token_file_ok", text, value=float(tokens.failure is None))
    text = "Times that the token file became unreadable or wrong"
    yield CounterMetricFamily("triage_access_token_file_failures", text, value=tokens.failures)
    text = "Times that changed tokens were taken over"
    yield CounterMetricFamily("triage_access_token_file_reloads", text, value=tokens.reloads)


def witness_families(witness: Witness | None) -> Iterator[Metric]:
    if witness is None:
        return
    text = "Times that the audit witness could not be written"
    yield CounterMetricFamily("triage_audit_witness_failures", text, value=witness.failures)
    text = "Audit entries that were witnessed and that the store did not have at the start"
    yield GaugeMetricFamily("triage_audit_missing_entries", text, value=witness.missing)
