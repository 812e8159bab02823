"""The repair: a bounded pull on segments of rewarded text whose mean gap lies below tau_rep.

    q_R = max(0, tau_rep - mean_R)          loss += lambda_k / N_rep * sum over R of phi_beta(q_R)
    phi_beta(q) = beta^2/2 (sqrt(1 + (q/beta)^2) - 1) = beta/2 * q * x / (1 + sqrt(1 + x^2)),   x = q / beta
    psi_t = -d/d log pi_t = lambda_k / N_rep * m_t / n_R * q / (2 sqrt(1 + x^2))          (estimands section 9)

The second form of phi neither cancels for small q nor overflows for large q. R runs over eligible segments (at
least W/4 valid tokens) whose advantages sum to more than 0 over their valid tokens: with one advantage per response
these are the segments of A > 0 responses; with per-token advantages the sign is the segment's own **[choice]**.
N_rep counts them in the global batch, whether or not they fire; the caller brings it together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from triage_monitor.trainer.batch import Batch, lay_out
from triage_monitor.trainer.knobs import Knobs
from triage_monitor.trainer.segments import SegmentStatistics

ELIGIBLE_SHARE = 4  # a segment needs W / 4 valid tokens


@dataclass(frozen=True, slots=True)
class Repair:
    penalty_sum: Tensor  # 0-dim, differentiable: sum of phi over this batch's segments
    segments: Tensor  # 0-dim int64: this batch's part of N_rep
    violating_segments: Tensor  # 0-dim int64: those with q > 0


def count_repair_segments(
    sampler_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    segment: int | Tensor,
    cu_seqlens: Tensor | None = None,
    learner_logprobs: Tensor | None = None,
) -> Tensor:
    """N_rep of one micro-batch as a detached 0-dim int64 tensor: add over micro-batches and ranks, pass the total.

    Shapes as TriageLoss; `segment` is params.gate.segment. Needs no forward pass: without learner log-probs a token
    is taken as valid when the sampler's value is (they differ only where the learner itself is not finite).
    """
    learner = None if learner_logprobs is None else learner_logprobs.detach()
    batch = lay_out(learner, sampler_logprobs, advantages, mask, segment, cu_seqlens)
    count = batch.layout.segment_sum(batch.usable.to(batch.gap.dtype))
    return repairable(batch, count, segment).sum()


def repairable(batch: Batch, count: Tensor, segment: int | Tensor) -> Tensor:
    """[S] bool: eligible, and rewarded on balance."""
    balance = batch.layout.segment_sum(torch.where(batch.usable, batch.advantage, 0.0))
    return (count > 0) & (ELIGIBLE_SHARE * count >= segment) & (balance > 0)


def repair(batch: Batch, statistics: SegmentStatistics, knobs: Knobs) -> Repair:
    eligible = repairable(batch, statistics.count, knobs.segment)
    violation = torch.where(eligible, knobs.tau_rep - statistics.mean, 0.0).clamp(min=0)
    return Repair(
        penalty_sum=pseudo_huber(violation, knobs.beta).sum(),
        segments=eligible.sum(),
        violating_segments=(violation.detach() > 0).sum(),
    )


def pseudo_huber(q: Tensor, beta: Tensor) -> Tensor:
    x = q / beta
    return 0.5 * beta * q * (x / (1 + torch.hypot(x, torch.ones_like(x))))
