"""What the objective did in one call, as detached 0-dim tensors on the batch's device.

Sums and counts add over micro-batches and ranks; the ratios are those of this call alone and NaN where nothing
divides (a tensor cannot be absent without asking the device). `read_stats` merges calls, forms each ratio once from
the merged sums, turns what is undefined into None, and is the only place that waits for the device.
Raw masses (`mass_*`) stand beside those after gating (`effective_mass_*`, sums of abs(A) * alpha): an alarm belongs
on the raw ones, or the gate would hide what it treats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from triage_monitor.summary import objective
from triage_monitor.trainer.batch import Batch
from triage_monitor.trainer.corrections import OVERFLOW_GAP
from triage_monitor.trainer.gate import Gating
from triage_monitor.trainer.knobs import Knobs
from triage_monitor.trainer.repair import Repair
from triage_monitor.trainer.segments import SegmentStatistics

# ratio -> (numerator, denominator), both in the same stats
RATIOS = {name: (top, bottom) for name, (top, bottom, _) in objective.RATIOS.items()}
# in force during the call; not added
SETTINGS = ("params_version", "repair_lambda")


def gate_stats(batch: Batch, gating: Gating) -> dict[str, Tensor]:
    layout, gap = batch.layout, batch.gap.detach()
    mass = batch.advantage.abs()
    effective = mass * gating.alpha
    a_neg = batch.usable & (batch.advantage < 0) & (gap < 0)
    a_pos = batch.usable & (batch.advantage > 0) & (gap > 0)
    tokens = layout.response_sum(layout.mask.to(gap.dtype))
    return {
        "tokens": layout.mask.sum(),
        "responses": (tokens > 0).sum(),
        "nonfinite_tokens": (layout.mask & ~batch.usable).sum(),
        "unusable_advantage_tokens": batch.unusable_advantage.sum(),
        "overflow_tokens": (batch.usable & (gap > OVERFLOW_GAP)).sum(),
        "gated_tokens": gating.gated.sum(),
        "gated_segments": (layout.segment_sum(gating.gated.to(gap.dtype)) > 0).sum(),
        "wbar_sum": torch.where(tokens > 0, gating.wbar, 0.0).sum(),
        "mass_total": mass.sum(),
        "gate_mass_moved": (mass - effective).clamp(min=0).sum(),
        "mass_a_neg": torch.where(a_neg, mass, 0.0).sum(),
        "mass_a_pos": torch.where(a_pos, mass, 0.0).sum(),
        "effective_mass_a_neg": torch.where(a_neg, effective, 0.0).sum(),
        "effective_mass_a_pos": torch.where(a_pos, effective, 0.0).sum(),
    }


def segment_stats(
    statistics: SegmentStatistics, repair: Repair, repair_lambda: Tensor, knobs: Knobs
) -> dict[str, Tensor]:
    return {
        "segments": (statistics.count > 0).sum(),
        "repair_segments": repair.segments,
        "repair_fired_segments": torch.where(repair_lambda > 0, repair.violating_segments, 0),
        "repair_lambda": repair_lambda,
        "params_version": knobs.version,
    }


def correction_stats(batch: Batch, factor: Tensor) -> dict[str, Tensor]:
    factor = torch.where(batch.layout.mask, factor, 0.0)
    return {
        "correction_weight_sum": factor.sum(),
        "correction_zeroed_tokens": (batch.layout.mask & (factor == 0)).sum(),
    }


def with_ratios(sums: dict[str, Tensor]) -> dict[str, Tensor]:
    ratios = {name: sums[top] / sums[bottom] for name, (top, bottom) in RATIOS.items()}
    return {name: value.detach() for name, value in (sums | ratios).items()}


def read_stats(calls: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]]) -> dict[str, float | None]:
    """Host numbers of one call, or of several merged (micro-batches of one update). Waits for the device once."""
    parts = [calls] if isinstance(calls, Mapping) else list(calls)
    names = [name for name in parts[0] if name not in RATIOS]
    table = torch.stack([torch.stack([part[name].to(torch.float64) for name in names]) for part in parts]).cpu()
    merged: dict[str, float | None] = dict(zip(names, table.sum(0).tolist(), strict=True))
    newest = dict(zip(names, table[-1].tolist(), strict=True))
    merged |= {name: newest[name] for name in SETTINGS if name in newest}
    for name, (top, bottom) in RATIOS.items():
        numerator, denominator = merged[top], merged[bottom]
        merged[name] = numerator / denominator if numerator is not None and denominator else None
    return merged
