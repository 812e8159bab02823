"""Advantages and token losses against numbers worked out by hand."""

import pytest
import torch

from triage_monitor.testbed.grpo import clipped_surrogate, group_advantages


def test_advantages_are_standardised_within_their_group():
    # group 1: mean 0.5, deviation 0.5; group 2: mean 0.3, deviation sqrt((0.04 + 0 + 0.04 + 0) / 4) = 0.1 sqrt 2
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.1, 0.3, 0.5, 0.3], dtype=torch.float64)
    one, two = 0.5 / 0.5001, 0.2 / (0.1 * 2**0.5 + 1e-4)
    assert group_advantages(rewards, 4).tolist() == pytest.approx([one, -one, -one, one, -two, 0.0, two, 0.0])


def test_group_of_equal_rewards_has_no_advantage():
    assert group_advantages(torch.full((4,), 0.7), 4).abs().max() < 1e-3
    assert group_advantages(torch.ones(4), 4).tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [(1.0, 2.0, -2.0), (1.5, 1.0, -1.28), (1.5, -1.0, 1.5), (0.5, 1.0, -0.5), (0.5, -1.0, 0.8), (1.25, 1.0, -1.25)],
)
def test_surrogate_clips_only_what_would_gain(ratio, advantage, loss):
    logprobs = torch.tensor([[ratio]], dtype=torch.float64).log() - 1
    token_loss = clipped_surrogate(logprobs, torch.full((1, 1), -1.0), torch.tensor([advantage], dtype=torch.float64))
    assert token_loss.item() == pytest.approx(loss)


def test_surrogate_gradient_is_minus_the_advantage_where_nothing_is_clipped():
    logprobs = torch.full((2, 3), -0.7, dtype=torch.float64, requires_grad=True)
    clipped_surrogate(logprobs, logprobs.detach(), torch.tensor([1.5, -0.5], dtype=torch.float64)).sum().backward()
    assert logprobs.grad.tolist() == [[-1.5] * 3, [0.5] * 3]
