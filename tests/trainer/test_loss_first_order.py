"""Section 2's identity on a small model: dD = eta sum kappa delta g + eta R_cross + O(eta^2).

D = 1/2 sum delta^2. kappa_t = |grad log pi_t|^2 in parameter space, R_cross collects the pairs t != u. g comes from
the independent reference, the step from the loss under test through the model's own backward.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from trainer.objective_batches import ACTIVE
from trainer.reference_objective import Token, evaluate

from triage_monitor.parameters import TriageParams
from triage_monitor.trainer.loss import TriageLoss

ROWS, LENGTH, VOCABULARY = 4, 24, 7


class NextToken(nn.Module):
    """A recurrent next-token model small enough for a full Jacobian."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 5)
        self.mix = nn.RNN(5, 6, batch_first=True)
        self.head = nn.Linear(6, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T + 1] -> log-probs of tokens 1..T."""
        states, _ = self.mix(self.embed(tokens[:, :-1]))
        return self.head(states).log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


def setting(seed: int) -> tuple[NextToken, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    model = NextToken().double()
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1))
    mask = torch.rand(ROWS, LENGTH) < 0.9
    gap = 0.2 * torch.randn(ROWS, LENGTH, dtype=torch.float64)
    gap[:, LENGTH // 2 :] -= 0.3  # a drifting second half: gated in losing rows, repaired in winning ones
    sampler = model(tokens).detach() - gap
    return model, tokens, sampler, torch.tensor([-1.0, 1.0, -0.7, 0.4], dtype=torch.float64), mask


def energy(model: NextToken, tokens: Tensor, sampler: Tensor, mask: Tensor) -> float:
    gap = (model(tokens).detach() - sampler)[mask]
    return math.fsum((gap**2 / 2).tolist())


def reference_coefficients(
    learner: Tensor, sampler: Tensor, advantages: Tensor, mask: Tensor, params: TriageParams
) -> Tensor:
    rows = [
        [
            Token(float(learner[r, t]), float(sampler[r, t]), a, bool(mask[r, t]), -a * float(learner[r, t]), -a)
            for t in range(LENGTH)
        ]
        for r, a in enumerate(advantages.tolist())
    ]
    return -torch.tensor(evaluate(rows, params.to_dict(), 0).gradient, dtype=torch.float64)


@pytest.mark.parametrize("parts", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("seed", [0, 1])
def test_energy_moves_as_the_first_order_identity_says(parts: tuple[bool, bool], seed: int) -> None:
    params = ACTIVE.with_changes({"gate.enabled": parts[0], "repair.enabled": parts[1], "gate.segment": 8})
    model, tokens, sampler, advantages, mask = setting(seed)
    weights = list(model.parameters())
    learner = model(tokens)
    g = reference_coefficients(learner.detach(), sampler, advantages, mask, params)[mask]
    delta = (learner.detach() - sampler)[mask]
    jacobian = torch.stack(
        [
            torch.cat([part.reshape(-1) for part in torch.autograd.grad(value, weights, retain_graph=True)])
            for value in learner[mask]
        ]
    )
    coupling = jacobian @ jacobian.T
    diagonal = float((coupling.diagonal() * delta * g).sum())
    cross = float(delta @ (coupling @ g)) - diagonal
    assert abs(cross) > 0.03 * abs(diagonal + cross)  # leaving it out would fail the 1% below

    loss, _ = TriageLoss(params)(-advantages[:, None] * learner, learner, sampler, advantages, mask, step=0)
    step = torch.autograd.grad(loss, weights)
    start, before = [weight.detach().clone() for weight in weights], energy(model, tokens, sampler, mask)

    def remainder(eta: float) -> float:
        with torch.no_grad():
            for weight, origin, direction in zip(weights, start, step, strict=True):
                weight.copy_(origin - eta * direction)
        return energy(model, tokens, sampler, mask) - before - eta * (diagonal + cross)

    remainders = [remainder(eta) for eta in (2e-3, 1e-3, 5e-4)]
    assert abs(remainders[-1]) < 0.01 * 5e-4 * abs(diagonal + cross)
    assert remainders[0] / remainders[1] == pytest.approx(4, rel=0.05)  # second order in eta
    assert remainders[1] / remainders[2] == pytest.approx(4, rel=0.05)


def test_gate_and_repair_each_lower_the_local_amplification() -> None:
    """sum kappa delta g, kappa = 1: the gate takes from A-, the repair adds a contracting term."""
    model, tokens, sampler, advantages, mask = setting(0)
    learner = model(tokens).detach()
    delta = learner - sampler

    def amplification(gate: bool, repair: bool) -> float:
        params = ACTIVE.with_changes({"gate.enabled": gate, "repair.enabled": repair, "gate.segment": 8})
        leaf = learner.clone().requires_grad_()
        loss, _ = TriageLoss(params)(-advantages[:, None] * leaf, leaf, sampler, advantages, mask, step=0)
        loss.backward()
        return float(-(delta * leaf.grad)[mask].sum())

    assert amplification(True, False) < amplification(False, False)
    assert amplification(False, True) < amplification(False, False)
    assert amplification(True, True) < min(amplification(True, False), amplification(False, True))
