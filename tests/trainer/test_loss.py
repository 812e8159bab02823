"""The facts of estimands section 9, in float64, against the independent reference."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from trainer.objective_batches import ACTIVE, lay_out, make_responses
from trainer.reference_objective import evaluate, gap_of

from triage_monitor.parameters import TriageParams
from triage_monitor.trainer.loss import TriageLoss

AGGREGATIONS = [("sequence_mean", None), ("token_mean", None), ("constant", 512.0)]
CASES = list(itertools.product(AGGREGATIONS, [False, True], ["right", "left", "packed"]))


@pytest.mark.parametrize(("aggregation", "per_token", "layout"), CASES)
@pytest.mark.parametrize("seed", [1, 2])
def test_loss_and_gradient_equal_the_reference(aggregation, per_token: bool, layout: str, seed: int) -> None:
    name, divisor = aggregation
    responses = make_responses(seed, per_token=per_token, nonfinite=0.02)
    batch = lay_out(responses, layout, per_token=per_token)
    loss, stats = TriageLoss(ACTIVE, name, divisor)(*batch.arguments(), step=0, cu_seqlens=batch.cu_seqlens)
    loss.backward()
    expected = evaluate(responses, ACTIVE.to_dict(), 0, name, divisor or 1.0)
    assert any(any(row) for row in expected.gated) and expected.repair > 0  # both parts act in this case
    assert loss.item() == pytest.approx(expected.loss, rel=1e-12)
    assert float(stats["repair_loss"]) == pytest.approx(expected.repair, rel=1e-12)
    for got, want in zip(batch.rows(batch.learner.grad), expected.gradient, strict=True):
        assert got == pytest.approx(want, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("per_token", [False, True])
def test_update_mass_of_a_response_is_unchanged(per_token: bool) -> None:
    responses = make_responses(3, per_token=per_token, nonfinite=0.02)
    batch = lay_out(responses, per_token=per_token)
    alpha = TriageLoss(ACTIVE).token_weights(batch.learner, batch.sampler, batch.advantages, batch.mask)
    tokens = batch.mask.sum(-1)
    torch.testing.assert_close((alpha * batch.mask).sum(-1), tokens.double(), rtol=1e-13, atol=0)
    assert (alpha[batch.mask] < 1).sum() > 20


def test_contracting_tokens_of_a_gated_segment_keep_weight_one() -> None:
    responses = make_responses(4)
    batch = lay_out(responses)
    alpha = TriageLoss(ACTIVE).token_weights(batch.learner, batch.sampler, batch.advantages, batch.mask)
    seen = 0
    for response, row, gated in zip(
        responses, batch.rows(alpha), evaluate(responses, ACTIVE.to_dict(), 0).gated, strict=True
    ):
        untouched = max(row)  # 1 / wbar: the alpha of w = 1
        for token, value, is_gated in zip(response, row, gated, strict=True):
            gap = gap_of(token)
            if gap is not None and token.advantage < 0 < gap and any(gated):
                seen += 1
                assert value == untouched and value > 1 and not is_gated
    assert seen > 20


def test_repair_pulls_negative_gaps_towards_zero() -> None:
    only_repair = ACTIVE.with_changes({"gate.enabled": False})
    responses = make_responses(6)
    batch = lay_out(responses)
    loss, _ = TriageLoss(only_repair)(
        torch.zeros_like(batch.base), batch.learner, batch.sampler, batch.advantages, batch.mask, step=0
    )
    loss.backward()
    psi = -batch.learner.grad
    gap = (batch.learner - batch.sampler).detach()
    acted = (psi != 0) & (gap < 0)
    assert acted.sum() > 20
    assert (gap * psi)[acted].max() < 0
    assert (psi >= 0).all()


def test_repair_starts_at_its_step() -> None:
    params = ACTIVE.with_changes({"repair.k_rep": 7})
    batch = lay_out(make_responses(6))
    loss = TriageLoss(params)
    before, stats = loss(*batch.arguments(), step=6)
    after, _ = loss(*batch.arguments(), step=7)
    assert float(stats["repair_loss"]) == 0 and float(stats["repair_lambda"]) == 0
    assert after.item() > before.item()
    assert torch.equal(
        before, TriageLoss(params.with_changes({"repair.enabled": False}))(*batch.arguments(), step=9)[0]
    )


def test_repair_force_is_bounded_for_any_depth() -> None:
    mask = torch.ones(1, 64, dtype=torch.bool)
    for depth, dtype in itertools.product([0.1, 30.0, 1e4, 1e25], [torch.float32, torch.float64]):
        learner = torch.full((1, 64), -depth, dtype=dtype, requires_grad=True)
        sampler = torch.zeros(1, 64, dtype=dtype)
        params = TriageParams().with_changes({"repair.enabled": True})
        loss, _ = TriageLoss(params)(learner * 0, learner, sampler, torch.ones(1, dtype=dtype), mask, step=0)
        loss.backward()
        assert math.isfinite(loss.item())
        q = depth - 0.02
        force = 5.0 / 64 * q / (2 * math.sqrt(1 + (q / 0.5) ** 2))
        assert learner.grad[0, 0].item() == pytest.approx(-force, rel=1e-5 if dtype == torch.float32 else 1e-12)


def test_small_violations_keep_full_relative_accuracy_in_float32() -> None:
    learner = torch.full((1, 64), -(2.0**-6) - 2.0**-14)
    params = TriageParams().with_changes({"repair.enabled": True, "repair.tau_rep": -(2.0**-6), "repair.beta": 1.0})
    loss, _ = TriageLoss(params)(learner * 0, learner, torch.zeros(1, 64), torch.ones(1), learner < 0, step=0)
    assert loss.item() == pytest.approx(5.0 * 2.0**-28 / 4, rel=1e-6)  # phi(q) ~ q^2 / 4; the subtracting form gives 0


def test_gate_carries_no_gradient() -> None:
    batch = lay_out(make_responses(4))
    gate_only = ACTIVE.with_changes({"repair.enabled": False})
    constant = batch.base.clone().requires_grad_()
    loss, stats = TriageLoss(gate_only)(constant, *batch.arguments()[1:], step=0)
    loss.backward()
    assert float(stats["gated_tokens"]) > 0
    assert not batch.learner.grad.any()
    assert constant.grad.any()


def test_repair_moves_the_learner_and_never_the_sampler() -> None:
    batch = lay_out(make_responses(6))
    sampler = batch.sampler.clone().requires_grad_()
    token_loss, learner, _, advantages, mask = batch.arguments()
    loss, stats = TriageLoss(ACTIVE)(token_loss, learner, sampler, advantages, mask, step=0)
    loss.backward()
    assert float(stats["repair_loss"]) > 0 and batch.learner.grad.any()
    assert sampler.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "divisor"), AGGREGATIONS)
def test_nothing_risky_is_bit_equal_to_the_base_loss(name, divisor, dtype: torch.dtype) -> None:
    responses = make_responses(8, count=16, longest=300, holes=0.3)
    for token in itertools.chain.from_iterable(responses):
        token.sampler = token.learner - abs(token.learner - token.sampler)  # all gaps positive
    on, off = lay_out(responses, dtype=dtype), lay_out(responses, dtype=dtype)
    loss, _ = TriageLoss(ACTIVE, name, divisor)(*on.arguments(), step=0)
    masked = off.token_loss() * off.mask
    lengths = off.mask.sum(-1).clamp(min=1)
    base = {
        "sequence_mean": lambda: (masked.sum(-1) / lengths).sum() / (off.mask.any(-1)).sum(),
        "token_mean": lambda: masked.sum() / off.mask.sum(),
        "constant": lambda: masked.sum() / 512.0,
    }[name]()
    assert torch.equal(loss, base)
    loss.backward()
    base.backward()
    assert torch.equal(on.learner.grad, off.learner.grad)


def test_disabled_parameters_are_bit_equal_to_the_base_loss_on_risky_data() -> None:
    on, off = (lay_out(make_responses(8, count=16, longest=300), dtype=torch.float32) for _ in range(2))
    loss, _ = TriageLoss(TriageParams())(*on.arguments(), step=0)
    base = ((off.token_loss() * off.mask).sum(-1) / off.mask.sum(-1)).mean()
    assert torch.equal(loss, base)
    loss.backward()
    base.backward()
    assert torch.equal(on.learner.grad, off.learner.grad)


def test_a_fully_gated_response_keeps_its_update() -> None:
    """All weights alike: nothing to move the mass to, so alpha is 1, also in the limit w_min = 0."""
    for w_min in (0.5, 0.0):
        params = TriageParams().with_changes({"gate.enabled": True, "gate.w_min": w_min})
        learner = torch.full((2, 30), -3.0, dtype=torch.float64)
        weights = TriageLoss(params).token_weights(
            learner, learner + 1, -torch.ones(2, dtype=torch.float64), torch.ones(2, 30)
        )
        assert torch.equal(weights, torch.ones(2, 30, dtype=torch.float64))


def test_gate_weight_never_rises_with_depth_or_tail() -> None:
    params = TriageParams().with_changes({"gate.enabled": True})
    learner = torch.zeros(1, 64, dtype=torch.float64)
    advantages = -torch.ones(1, dtype=torch.float64)

    def ratio(sampler: torch.Tensor) -> float:
        """w_S: the gated token 0 over the ungated token 63."""
        weights = TriageLoss(params).token_weights(learner, sampler, advantages, torch.ones(1, 64))
        return float(weights[0, 0] / weights[0, 63])

    by_mean, by_tail = [], []
    for level in range(40):
        sampler = torch.full((1, 64), level / 100, dtype=torch.float64)
        sampler[0, 63] = -0.001
        by_mean.append(ratio(sampler))
        sampler = torch.full((1, 64), 1e-6, dtype=torch.float64)
        sampler[0, 1 : 1 + level] = 0.3  # beyond tau_tail
        sampler[0, 63] = -100.0  # the mean stays harmless
        by_tail.append(ratio(sampler))
    for weights in (by_mean, by_tail):
        assert weights == sorted(weights, reverse=True)
        assert weights[0] == pytest.approx(1.0) and weights[-1] == pytest.approx(0.5)


def test_gating_shows_raw_and_effective_masses() -> None:
    """Case C55: two responses; the gate weight 0.25 halves the A- mass and leaves the raw numbers as they were."""
    gap = torch.tensor([-2, -1.5, -0.1, -0.2, 0.3, 0.1, 0.2, 0.1], dtype=torch.float64)
    advantages = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    params = TriageParams().with_changes({"gate.enabled": True, "gate.w_min": 0.25})
    offsets = torch.tensor([0, 6, 8])
    zeros, ones = torch.zeros(8, dtype=torch.float64), torch.ones(8)
    loss = TriageLoss(params)
    alpha = loss.token_weights(gap, zeros, advantages, ones, cu_seqlens=offsets)
    assert alpha.tolist() == pytest.approx([0.5] * 4 + [2.0] * 2 + [1.0] * 2)
    _, stats = loss(zeros, gap, zeros, advantages, ones, step=0, cu_seqlens=offsets)
    assert float(stats["mass_a_neg"]) == pytest.approx(4) and float(stats["mass_a_pos"]) == pytest.approx(2)
    assert float(stats["effective_mass_a_neg"]) == pytest.approx(2)
    assert float(stats["effective_mass_a_pos"]) == pytest.approx(2)
    assert float(stats["gate_mass_removed"]) == pytest.approx(2 / 8)
    assert float(stats["wbar_mean"]) == pytest.approx((0.5 + 1) / 2)
