"""The kernel's promised ratio, both sides measured in this run: ten times the vectorised numpy form."""

from __future__ import annotations

import pytest

from triage_monitor.cli.bench import kernel_rows, synthetic_update
from triage_monitor.cli.bench_numpy import statistics
from triage_monitor.judge.indicators import indicators, quantiles
from triage_monitor.summary.build import summarize


@pytest.mark.perf
def test_kernel_is_at_least_ten_times_the_numpy_form_at_ten_million_tokens() -> None:
    rows = {row.what: row for row in kernel_rows(tokens=10_000_000, responses=2_048, turns=2)}
    assert rows["kernel, healthy gaps"].times_numpy >= 10


def test_numpy_baseline_computes_the_same_statistics() -> None:
    gap, advantages, offsets = synthetic_update(200_000, 300, tail=0.05, seed=3)
    baseline = statistics(gap, advantages, offsets)
    summary = summarize(gap=gap, advantages=advantages, offsets=offsets)
    values, sketch = indicators(summary), quantiles(summary)
    shared = set(baseline) & set(values)
    assert len(shared) >= 15
    for name in shared:
        assert values[name] == pytest.approx(baseline[name], rel=2e-4), name
    for side in ("all", "neg", "pos"):
        for q in (0.001, 0.05, 0.5, 0.99):
            exact = baseline[f"q{q}_{side}"]
            assert abs(sketch[side][str(q)] - exact) <= max(0.005 * abs(exact), 1e-4)
    for family, suffix in (("all", ""), ("a_neg", "_a_neg"), ("a_pos", "_a_pos")):
        assert values[f"top5_tail_share{suffix}"] == pytest.approx(baseline[f"top5_{family}"], rel=1e-9)
