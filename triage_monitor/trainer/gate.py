"""The gate: attenuates A < 0, gap < 0 tokens of risky segments and gives the mass to the rest of the response.

    r1 = clip((mean_hi - mean_S) / (mean_hi - mean_lo), 0, 1)
    r2 = clip((tail_S - tail_lo) / (tail_hi - tail_lo), 0, 1)
    w_S = 1 - (1 - w_min) (1 - (1 - r1)(1 - r2))            w_t = w_S where A < 0 and gap < 0, else 1
    alpha_t = w_t / wbar_i,   wbar_i = sum m w / sum m      (estimands section 9)

Carries no gradient. With every w = 1 alpha is exactly 1. Every segment with a valid token is gated. With per-token
advantages A < 0 is asked of each token; segment statistics are over all valid tokens whatever their advantage.
When all of a response's weights are equal alpha is 1; w_min = 0 can make them all 0, and the limit is taken then
**[choice]**. The mask, not validity, defines sum m: a token with an unusable gap keeps w = 1 and counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from triage_monitor.trainer.batch import Batch
from triage_monitor.trainer.knobs import Knobs
from triage_monitor.trainer.segments import SegmentStatistics


@dataclass(frozen=True, slots=True)
class Gating:
    """Detached. alpha is 1 outside the mask."""

    alpha: Tensor  # [N]
    gated: Tensor  # [N] bool: w < 1
    wbar: Tensor  # [R]; 1 for a response without tokens


def segment_weights(statistics: SegmentStatistics, knobs: Knobs) -> Tensor:
    """[S] in [w_min, 1]; 1 where the gate is off or a segment holds no valid token."""
    mean, tail = statistics.mean.detach(), statistics.tail_fraction
    r1 = ((knobs.mean_hi - mean) / (knobs.mean_hi - knobs.mean_lo)).clamp(0, 1)
    r2 = ((tail - knobs.tail_lo) / (knobs.tail_hi - knobs.tail_lo)).clamp(0, 1)
    weight = 1 - (1 - knobs.w_min) * (1 - (1 - r1) * (1 - r2))
    return torch.where((knobs.gate_on > 0) & (statistics.count > 0), weight, 1.0)


def gate(batch: Batch, statistics: SegmentStatistics, knobs: Knobs) -> Gating:
    layout, gap = batch.layout, batch.gap.detach()
    weight = layout.segment_to_tokens(segment_weights(statistics, knobs))
    targeted = batch.usable & (batch.advantage < 0) & (gap < 0)
    weight = torch.where(targeted, weight, 1.0)
    tokens = layout.response_sum(layout.mask.to(gap.dtype))
    kept = layout.response_sum(torch.where(layout.mask, weight, 0.0))
    wbar = torch.where(tokens > 0, kept / tokens.clamp(min=1), 1.0)
    emptied = wbar <= 0
    share = layout.response_to_tokens(torch.where(emptied, 1.0, wbar))
    alpha = torch.where(layout.mask & ~layout.response_to_tokens(emptied), weight / share, 1.0)
    return Gating(alpha=alpha, gated=weight < 1, wbar=wbar)
