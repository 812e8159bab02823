from __future__ import annotations

import pytest
import torch
from trainer.objective_batches import ACTIVE, lay_out, make_responses
from trainer.reference_objective import evaluate, gap_of, repair_segments, segments_of, statistics_of

from triage_monitor.parameters import TriageParams
from triage_monitor.trainer.loss import TriageLoss
from triage_monitor.trainer.stats import read_stats


@pytest.mark.parametrize("layout", ["right", "left", "packed"])
def test_stats_count_what_the_reference_counts(layout: str) -> None:
    responses = make_responses(31, count=12, nonfinite=0.02)
    batch = lay_out(responses, layout)
    _, raw = TriageLoss(ACTIVE)(*batch.arguments(), step=0, cu_seqlens=batch.cu_seqlens)
    stats = read_stats(raw)
    expected = evaluate(responses, ACTIVE.to_dict(), 0)
    tokens = [
        (token, gated, alpha)
        for response, gates, alphas in zip(responses, expected.gated, expected.alpha, strict=True)
        for token, gated, alpha in zip(response, gates, alphas, strict=True)
        if token.mask
    ]
    width = ACTIVE.gate.segment
    segments = [(r, s) for r in range(len(responses)) for s in segments_of(responses[r], width)]
    filled = [(r, s) for r, s in segments if statistics_of(responses[r], s, 0)[0]]
    gated_segments = [s for r, s in segments if any(expected.gated[r][index] for index in s)]
    fired = [
        valid
        for response in responses
        for valid in repair_segments(response, width)
        if statistics_of(response, valid, 0)[1] < ACTIVE.repair.tau_rep
    ]
    total = sum(abs(token.advantage) for token, _, _ in tokens)
    moved = sum(abs(token.advantage) * max(0, 1 - alpha) for token, _, alpha in tokens)
    a_neg = [(t, a) for t, _, a in tokens if t.advantage < 0 and (gap := gap_of(t)) is not None and gap < 0]
    a_pos = [(t, a) for t, _, a in tokens if t.advantage > 0 and (gap := gap_of(t)) is not None and gap > 0]
    wanted = {
        "tokens": len(tokens),
        "responses": 12,
        "nonfinite_tokens": sum(gap_of(token) is None for token, _, _ in tokens),
        "gated_tokens": sum(gated for _, gated, _ in tokens),
        "gated_token_fraction": sum(gated for _, gated, _ in tokens) / len(tokens),
        "segments": len(filled),
        "gated_segments": len(gated_segments),
        "repair_segments": expected.n_rep,
        "repair_fire_fraction": len(fired) / expected.n_rep,
        "repair_loss": expected.repair,
        "policy_loss": expected.loss - expected.repair,
        "gate_mass_removed": moved / total,
        "mass_a_neg": sum(abs(t.advantage) for t, _ in a_neg),
        "mass_a_pos": sum(abs(t.advantage) for t, _ in a_pos),
        "effective_mass_a_neg": sum(abs(t.advantage) * alpha for t, alpha in a_neg),
        "effective_mass_a_pos": sum(abs(t.advantage) * alpha for t, alpha in a_pos),
        "params_version": 0,
    }
    assert min(wanted["gated_tokens"], wanted["nonfinite_tokens"], len(fired)) > 0
    for name, value in wanted.items():
        assert stats[name] == pytest.approx(value, rel=1e-12), name


def test_merged_stats_of_micro_batches_equal_the_whole() -> None:
    responses = make_responses(32, count=12)
    loss = TriageLoss(ACTIVE.with_changes({"version": 9}))
    _, whole = loss(*lay_out(responses).arguments(), step=0)
    counts = {"normalizer": whole["responses"], "repair_segments": whole["repair_segments"]}
    parts = [loss(*lay_out(piece).arguments(), step=0, **counts)[1] for piece in (responses[:2], responses[2:])]
    merged, expected = read_stats(parts), read_stats(whole)
    assert merged.keys() == expected.keys()
    for name in expected:
        assert merged[name] == pytest.approx(expected[name], rel=1e-12), name
    assert merged["params_version"] == 9


def test_an_undefined_ratio_is_absent() -> None:
    learner = torch.zeros(1, 4)
    _, raw = TriageLoss(TriageParams())(learner, learner, learner, -torch.ones(1), torch.ones(1, 4), step=0)
    stats = read_stats(raw)
    assert stats["repair_fire_fraction"] is None and torch.isnan(raw["repair_fire_fraction"])
    assert stats["gate_mass_removed"] == 0


def test_stats_are_detached_scalars() -> None:
    batch = lay_out(make_responses(31))
    _, stats = TriageLoss(ACTIVE)(*batch.arguments(), step=0)
    assert all(value.shape == () and not value.requires_grad for value in stats.values())
