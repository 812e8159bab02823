from __future__ import annotations

import math

import pytest
import torch
from trainer.objective_batches import lay_out, make_responses
from trainer.reference_objective import Token, evaluate, gap_of

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.parameters import TriageParams
from triage_monitor.trainer.baselines import OBJECTIVES, objective
from triage_monitor.trainer.corrections import GeometricMask, IcePop


def mean_gap(response: list[Token]) -> float:
    gaps = [gap for token in response if (gap := gap_of(token)) is not None]
    return math.fsum(gaps) / len(gaps) if gaps else 0.0


def token_rule(rule):
    return lambda token, response: 1.0 if gap_of(token) is None else rule(gap_of(token))


EXPECTED = {
    "none": lambda token, response: 1.0,
    "tis": token_rule(lambda gap: min(math.exp(gap), 2.0)),
    "icepop": token_rule(lambda gap: math.exp(gap) if 0.5 <= math.exp(gap) <= 5 else 0.0),
    "mask": token_rule(lambda gap: 1.0 if 0.5 <= math.exp(gap) <= 5 else 0.0),
    "geometric_mask": lambda token, response: float(0.9 <= math.exp(mean_gap(response)) <= 1.05),
    "off_policy_mask": lambda token, response: float(token.advantage >= 0 or mean_gap(response) >= -0.05),
}

SETTINGS = {"geometric_mask": {"low": 0.9, "high": 1.05}}  # the defaults are too tight for these gaps to differ


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("layout", ["right", "packed"])
@pytest.mark.parametrize("per_token", [False, True])
def test_a_baseline_weighs_each_token_by_its_rule(name: str, layout: str, per_token: bool) -> None:
    responses = make_responses(21, count=40, longest=40, per_token=per_token, nonfinite=0.03)
    batch = lay_out(responses, layout, per_token=per_token)
    loss, stats = objective(name, **SETTINGS.get(name, {}))(*batch.arguments(), step=0, cu_seqlens=batch.cu_seqlens)
    loss.backward()
    weights = [[EXPECTED[name](token, response) for token in response] for response in responses]
    used = [
        w
        for row, response in zip(weights, responses, strict=True)
        for w, t in zip(row, response, strict=True)
        if t.mask
    ]
    assert name == "none" or len(set(used)) > 1  # the rule acts on this batch
    for response, row in zip(responses, weights, strict=True):
        for token, weight in zip(response, row, strict=True):
            token.loss, token.slope = token.loss * weight, token.slope * weight
    expected = evaluate(responses, TriageParams().to_dict(), 0)
    assert loss.item() == pytest.approx(expected.loss, rel=1e-12)
    for got, want in zip(batch.rows(batch.learner.grad), expected.gradient, strict=True):
        assert got == pytest.approx(want, rel=1e-12, abs=1e-16)
    assert float(stats["correction_weight_mean"]) == pytest.approx(math.fsum(used) / len(used), rel=1e-12)
    assert int(stats["correction_zeroed_tokens"]) == sum(weight == 0 for weight in used)


@pytest.mark.parametrize(
    ("name", "gate", "repair", "tis"),
    [
        ("gate", True, False, False),
        ("repair", False, True, False),
        ("triage", True, True, False),
        ("gate+tis", True, False, True),
        ("triage+tis", True, True, True),
    ],
)
def test_a_combination_is_the_product_of_its_parts(name: str, gate: bool, repair: bool, tis: bool) -> None:
    values = {"gate.segment": 16, "gate.w_min": 0.2, "repair.lambda_rep": 3.0, "tis.cap": 1.5}
    responses = make_responses(22)
    batch = lay_out(responses)
    loss, _ = objective(name, **values)(*batch.arguments(), step=0)
    for response in responses:
        for token in response:
            weight = min(math.exp(token.learner - token.sampler), 1.5) if tis else 1.0
            token.loss, token.slope = token.loss * weight, token.slope * weight
    params = TriageParams().with_changes({**values, "gate.enabled": gate, "repair.enabled": repair})
    assert loss.item() == pytest.approx(evaluate(responses, params.to_dict(), 0).loss, rel=1e-12)


def test_a_combination_turns_nothing_on_unasked() -> None:
    everything = TriageParams().with_changes({"gate.enabled": True, "repair.enabled": True, "tis.enabled": True})
    params = objective("gate", params=everything).params
    assert (params.gate.enabled, params.repair.enabled, params.tis.enabled) == (True, False, False)
    assert not objective("triage").params.tis.enabled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_extreme_gaps_never_overflow(name: str, dtype: torch.dtype) -> None:
    gap = torch.tensor([[89.0, 300.0, 800.0, 1e6, 1e25, -800.0, -1e25, 0.0] * 8] * 2, dtype=dtype, requires_grad=True)
    zeros, advantages = torch.zeros_like(gap), torch.tensor([-1.0, 1.0], dtype=dtype)
    loss, stats = objective(name)(gap * 0 + 1, gap, zeros, advantages, torch.ones_like(gap), step=0)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(gap.grad).all()
    assert all(torch.isfinite(value) for value in stats.values())
    assert int(stats["overflow_tokens"]) == 2 * 8 * 3  # 800, 1e6, 1e25


def test_settings_of_a_baseline_can_be_overridden() -> None:
    learner, sampler = torch.tensor([[0.0, 0.0]]), torch.tensor([[-0.5, 0.01]])
    mask, advantages = torch.ones(1, 2), -torch.ones(1)
    arguments = learner, sampler, advantages, mask
    assert objective("mask", low=0.9, high=1.2).token_weights(*arguments).tolist() == [[0.0, 1.0]]
    assert objective("icepop", high=1.2, weighted=False).token_weights(*arguments).tolist() == [[0.0, 1.0]]
    assert objective("geometric_mask", low=0.5, high=1.5).token_weights(*arguments).tolist() == [[1.0, 1.0]]
    assert objective("off_policy_mask", mean_gap_low=0.3).token_weights(*arguments).tolist() == [[0.0, 0.0]]
    assert objective("tis", **{"tis.cap": 1.25}).token_weights(*arguments)[0, 0] == 1.25
    assert objective("none", aggregation="constant", divisor=4.0).divisor == 4.0


def test_unknown_names_and_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="no objective 'tsi'"):
        objective("tsi")
    with pytest.raises(ConfigError, match="low"):
        objective("tis", low=0.3)
    with pytest.raises(InputError, match=r"gate\.wmin"):
        objective("gate", **{"gate.wmin": 0.3})
    for kind in (IcePop, GeometricMask):
        with pytest.raises(ConfigError, match="band"):
            kind(low=2.0, high=1.0)
