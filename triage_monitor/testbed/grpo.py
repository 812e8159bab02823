"""Group-relative policy optimisation: advantages within a group, and the clipped surrogate loss per token.

    A_i = (r_i - mean of its group) / (standard deviation of its group + 1e-4)
    l_t = -min(ratio_t A, clip(ratio_t, 1 - 0.2, 1 + 0.28) A),      ratio_t = exp(log pi_learner - log pi_old)

pi_old is the learner's own log-prob before the rollout's first optimiser step, as frameworks that recompute it do;
the sampler's log-probs enter only the objective's corrections. No KL term, no dual clip: for A < 0 the loss is
unbounded in the ratio.
"""

from __future__ import annotations

import torch
from torch import Tensor

CLIP_LOW, CLIP_HIGH = 0.2, 0.28
STANDARD_DEVIATION_FLOOR = 1e-4


def group_advantages(rewards: Tensor, group_size: int) -> Tensor:
    """[B] from rewards [B] whose groups lie side by side; all 0 in a group of equal rewards. Population deviation."""
    grouped = rewards.view(-1, group_size)
    centred = grouped - grouped.mean(1, keepdim=True)
    deviation = centred.square().mean(1, keepdim=True).sqrt()
    return (centred / (deviation + STANDARD_DEVIATION_FLOOR)).view(-1)


def clipped_surrogate(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Tensor:
    """[B, T] token losses from log-probs [B, T] and advantages [B]."""
    ratio = (logprobs - old_logprobs).exp()
    advantage = advantages[:, None]
    clipped = ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    return -torch.minimum(ratio * advantage, clipped * advantage)
