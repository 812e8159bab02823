"""Magnitude-only corrections, the baselines' token weights: what others do with exp(gap).

A correction gives every token a detached factor on its loss; denominators stay sum m, so micro-batches still add up
**[choice]** (a framework that shrinks the mask instead also changes the average). It acts on evidence only: a token
whose gap is not usable keeps factor 1 in the token rules and follows its response in the sequence rules. TIS is a
monitored parameter (params.tis), the rest are chosen when a loss is built. exp saturates (gap above 700, or 88 in
float32) and never makes an inf; caps and bounds lie far below that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from triage_monitor.errors import ConfigError
from triage_monitor.trainer.batch import Batch

OVERFLOW_GAP = 700.0
_FLOAT32_LIMIT = 88.0


class Correction(Protocol):
    def weights(self, batch: Batch) -> Tensor:
        """[N] detached factors, finite everywhere."""
        ...


def saturating_ratio(gap: Tensor) -> Tensor:
    """exp(gap), detached, finite."""
    limit = OVERFLOW_GAP if gap.dtype == torch.float64 else _FLOAT32_LIMIT
    return torch.exp(gap.detach().clamp(max=limit))


def truncated_ratio(batch: Batch, cap: Tensor) -> Tensor:
    """TIS: min(exp(gap), cap)."""
    return torch.where(batch.usable, torch.minimum(saturating_ratio(batch.gap), cap), 1.0)


@dataclass(frozen=True, slots=True)
class IcePop:
    """exp(gap) inside [low, high], 0 outside; `weighted=False` keeps 1 inside (a pure token mask)."""

    low: float = 0.5
    high: float = 5.0
    weighted: bool = True

    def __post_init__(self) -> None:
        _require_bounds(self.low, self.high)

    def weights(self, batch: Batch) -> Tensor:
        ratio = saturating_ratio(batch.gap)
        inside = (ratio >= self.low) & (ratio <= self.high)
        factor = inside * ratio if self.weighted else inside.to(ratio.dtype)
        return torch.where(batch.usable, factor, 1.0)


@dataclass(frozen=True, slots=True)
class GeometricMask:
    """Drops a response whose geometric mean ratio exp(mean gap) lies outside [low, high]."""

    low: float = 0.99
    high: float = 1.01

    def __post_init__(self) -> None:
        _require_bounds(self.low, self.high)

    def weights(self, batch: Batch) -> Tensor:
        ratio = saturating_ratio(_response_mean_gap(batch))
        inside = ((ratio >= self.low) & (ratio <= self.high)).to(ratio.dtype)
        return batch.layout.response_to_tokens(inside)


@dataclass(frozen=True, slots=True)
class OffPolicyMask:
    """Drops A < 0 tokens of a response whose mean gap is below `mean_gap_low`.

    Others state it as mean(sampler - learner) > -mean_gap_low.
    """

    mean_gap_low: float = -0.05

    def weights(self, batch: Batch) -> Tensor:
        strayed = batch.layout.response_to_tokens(_response_mean_gap(batch) < self.mean_gap_low)
        dropped = strayed & (batch.advantage < 0)
        return (~dropped).to(batch.gap.dtype)


def _response_mean_gap(batch: Batch) -> Tensor:
    """[R]; 0 for a response without a usable token."""
    gap = batch.gap.detach()
    tokens = batch.layout.response_sum(batch.usable.to(gap.dtype))
    return batch.layout.response_sum(gap) / tokens.clamp(min=1)


def _require_bounds(low: float, high: float) -> None:
    if not 0 <= low < high <= 1e30:
        raise ConfigError(f"a ratio band needs 0 <= low < high <= 1e30, got [{low}, {high}]")
