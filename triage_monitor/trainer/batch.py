"""One micro-batch as the objective sees it: flat tokens, their gaps and advantages, and what is usable.

gap = learner - sampler, formed and kept in at least float32 (float64 stays float64), differentiable through the
learner. Nothing outside the mask is ever computed with: values there are replaced before arithmetic, so a NaN or inf
in padding reaches neither the loss nor a gradient. A gap that is NaN, infinite or beyond 1e30 (the sentinel
finfo.min of some engines, whose float32 sums would overflow **[choice]**) is not usable: it enters no statistic and
its token keeps weight 1. A non-finite advantage puts a token in no region.
Left out: the loss itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from triage_monitor.errors import InputError
from triage_monitor.trainer.segments import SegmentMap, segment_map

GAP_LIMIT = 1e30


@dataclass(frozen=True, slots=True)
class Batch:
    """N tokens flat; see SegmentMap for the layout."""

    layout: SegmentMap
    gap: Tensor  # [N], 0 where not usable
    usable: Tensor  # [N] bool: mask 1 and a usable gap
    advantage: Tensor  # [N], 0 where masked or not finite
    unusable_advantage: Tensor  # [N] bool, inside the mask


def lay_out(
    learner_logprobs: Tensor | None,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    segment: int | Tensor,
    cu_seqlens: Tensor | None,
) -> Batch:
    """Checks shapes (InputError names the argument) and flattens. learner None: gaps 0, validity from the sampler."""
    named = {"sampler_logprobs": sampler_logprobs} | (
        {} if learner_logprobs is None else {"learner_logprobs": learner_logprobs}
    )
    for name, tensor in named.items():
        require_shape(name, tensor, mask)
    layout = segment_map(mask, segment, cu_seqlens)
    sampler = sampler_logprobs.detach()
    learner = torch.zeros_like(sampler) if learner_logprobs is None else learner_logprobs
    dtype = torch.promote_types(torch.promote_types(learner.dtype, sampler.dtype), torch.float32)
    gap = learner.to(dtype).reshape(-1) - sampler.to(dtype).reshape(-1)
    usable = layout.mask & (gap.detach().abs() <= GAP_LIMIT)
    advantage = _per_token(advantages, layout, mask).detach().to(dtype)
    finite = torch.isfinite(advantage)
    return Batch(
        layout=layout,
        gap=torch.where(usable, gap if learner_logprobs is not None else torch.zeros_like(gap), 0.0),
        usable=usable,
        advantage=torch.where(layout.mask & finite, advantage, 0.0),
        unusable_advantage=layout.mask & ~finite,
    )


def require_shape(name: str, tensor: Tensor, mask: Tensor) -> None:
    if tensor.shape != mask.shape:
        raise InputError("shape", f"{tuple(tensor.shape)} does not match mask {tuple(mask.shape)}", column=name)


def _per_token(advantages: Tensor, layout: SegmentMap, mask: Tensor) -> Tensor:
    """[R], [R, 1] or the mask's shape -> [N]. One value per response wins where a shape fits both."""
    if advantages.shape in ((layout.responses,), (layout.responses, 1)):
        return layout.response_to_tokens(advantages.reshape(-1))
    if advantages.shape == mask.shape:
        return advantages.reshape(-1)
    raise InputError(
        "shape",
        f"{tuple(advantages.shape)} is neither [{layout.responses}] nor {tuple(mask.shape)}",
        column="advantages",
    )
