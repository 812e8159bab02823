"""Where every token of a batch falls: responses, segments, and sums over both, without a loop or a host sync.

Positions of a response run from its first token with mask 1 (estimands section 4): leading prompt or left padding
does not count, masked holes inside do. Segment j of a response holds positions j*W .. j*W + W - 1 and never crosses
into another response; sums run over valid tokens only. Section 9 speaks of segments of W valid tokens; the objective
uses these same position segments **[choice]**, so that a gate weight and a reported segment are about the same text.

Tokens are flat here, [N]: a padded [B, T] batch is the packed one with offsets 0, T, 2T, ...  W may be a tensor:
segments get N // 8 + R slots (8 is the shortest W), so a change of W changes no shape and recompiles nothing.
On CUDA the sums are added in no fixed order unless torch.use_deterministic_algorithms(True) is set.
Left out: which segments matter (gate.py, repair.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from triage_monitor.errors import InputError
from triage_monitor.parameters import BOUNDS

SHORTEST_SEGMENT = int(BOUNDS["gate.segment"][0])


@dataclass(frozen=True, slots=True)
class SegmentMap:
    """N tokens, R responses, S segment slots (some empty) in order of response, then position."""

    mask: Tensor  # [N] bool: mask 1 and inside a response
    slot: Tensor  # [N] int64
    response: Tensor  # [N] int64
    slot_response: Tensor  # [S] int64
    responses: int
    row_length: int | None  # T of a padded batch; None when packed

    @property
    def slots(self) -> int:
        return self.slot_response.shape[0]

    def segment_sum(self, values: Tensor) -> Tensor:
        """[N] -> [S]. Values outside the mask must be 0."""
        return values.new_zeros(self.slots).index_add(0, self.slot, values)

    def response_sum(self, values: Tensor) -> Tensor:
        """[N] -> [R]. Packed sums go through the segments: long responses keep float32 accuracy."""
        if self.row_length is not None:
            return values.reshape(self.responses, self.row_length).sum(-1)
        return self.slot_response_sum(self.segment_sum(values))

    def slot_response_sum(self, per_segment: Tensor) -> Tensor:
        """[S] -> [R]."""
        return per_segment.new_zeros(self.responses).index_add(0, self.slot_response, per_segment)

    def segment_to_tokens(self, per_segment: Tensor) -> Tensor:
        return per_segment.index_select(0, self.slot)

    def response_to_tokens(self, per_response: Tensor) -> Tensor:
        return per_response.index_select(0, self.response)


@dataclass(frozen=True, slots=True)
class SegmentStatistics:
    """Per slot, over valid tokens; a slot without any has count 0, mean 0 and tail fraction 0."""

    count: Tensor
    mean: Tensor
    tail_fraction: Tensor


def segment_map(mask: Tensor, segment: int | Tensor, cu_seqlens: Tensor | None = None) -> SegmentMap:
    """Lays segments of `segment` positions over a batch.

    mask: [B, T], or with `cu_seqlens` [R + 1] (non-decreasing, from 0) packed [T] or [1, T]; nonzero = trained on.
    Packed tokens after the last offset belong to no response. Offsets are not checked: that would wait for the device.
    Raises InputError on a wrong number of dimensions or a segment below 8.
    """
    if isinstance(segment, int) and segment < SHORTEST_SEGMENT:
        raise InputError("segment_too_short", f"{segment} is below {SHORTEST_SEGMENT}", column="segment")
    flat = (mask != 0).reshape(-1)
    order = torch.arange(flat.shape[0], device=flat.device)
    if cu_seqlens is None:
        offsets, response, row_length = _padded_rows(mask)
    else:
        offsets, response, row_length = _packed_responses(mask, cu_seqlens, order)
        flat = flat & (order < offsets[-1])
    responses = offsets.shape[0] - 1
    slot_start = offsets[:-1] // SHORTEST_SEGMENT + torch.arange(responses, device=flat.device)
    slots = torch.arange(flat.shape[0] // SHORTEST_SEGMENT + responses, device=flat.device)
    position = (order - _first_token(flat, offsets).index_select(0, response)).clamp(min=0)
    return SegmentMap(
        mask=flat,
        slot=slot_start.index_select(0, response) + position // segment,
        response=response,
        slot_response=torch.searchsorted(slot_start, slots, right=True) - 1,
        responses=responses,
        row_length=row_length,
    )


def segment_statistics(layout: SegmentMap, gap: Tensor, usable: Tensor, tau_tail: float | Tensor) -> SegmentStatistics:
    """gap [N] (0 where not usable) and usable [N] -> count, mean gap and share below tau_tail of every slot."""
    count = layout.segment_sum(usable.to(gap.dtype))
    divisor = count.clamp(min=1)
    tail = usable & (gap.detach() < tau_tail)
    return SegmentStatistics(
        count=count,
        mean=layout.segment_sum(gap) / divisor,
        tail_fraction=layout.segment_sum(tail.to(gap.dtype)) / divisor,
    )


def _padded_rows(mask: Tensor) -> tuple[Tensor, Tensor, int | None]:
    if mask.dim() != 2:
        raise InputError("shape", f"expected [B, T] or cu_seqlens, got {tuple(mask.shape)}", column="mask")
    rows, length = mask.shape
    offsets = torch.arange(rows + 1, device=mask.device) * length
    response = torch.arange(rows, device=mask.device).unsqueeze(1).expand(rows, length).reshape(-1)
    return offsets, response, length


def _packed_responses(mask: Tensor, cu_seqlens: Tensor, order: Tensor) -> tuple[Tensor, Tensor, int | None]:
    if mask.dim() != 1 and not (mask.dim() == 2 and mask.shape[0] == 1):
        raise InputError("shape", f"packed tokens are [T] or [1, T], got {tuple(mask.shape)}", column="mask")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        raise InputError("shape", f"expected [R + 1] with R >= 1, got {tuple(cu_seqlens.shape)}", column="cu_seqlens")
    offsets = cu_seqlens.to(device=mask.device, dtype=torch.int64)
    response = torch.searchsorted(offsets[1:].contiguous(), order, right=True)
    return offsets, response.clamp(max=cu_seqlens.shape[0] - 2), None


def _first_token(flat: Tensor, offsets: Tensor) -> Tensor:
    """Index of each response's first mask-1 token: where the running count first exceeds the count before it."""
    running = flat.cumsum(0)
    before = torch.cat((running.new_zeros(1), running)).index_select(0, offsets[:-1])
    return torch.searchsorted(running, before + 1)
