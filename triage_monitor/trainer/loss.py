"""The TRIAGE objective: the trainer's own token loss, gated and repaired; the coefficient of log pi becomes

    g = alpha * g_base + psi                                         (estimands section 9)

    policy   = aggregate(alpha * correction * token_loss)            alpha: gate.py     correction: corrections.py
    loss     = policy + lambda_k / N_rep * sum phi_beta(q_R)         psi: repair.py     lambda_k = 0 before step k_rep

alpha is a factor per token, so it serves any aggregation; with every weight 1 the loss is bit-equal to the same
aggregation of the bare token loss. No loop over responses or segments, no wait for the device; the whole of a call
can be compiled as one graph. Sums are float32 or wider whatever the inputs and autocast say.
Left out: clipping and the importance ratio against the old policy (they live in token_loss).
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.parameters import TriageParams
from triage_monitor.trainer.batch import Batch, lay_out, require_shape
from triage_monitor.trainer.corrections import Correction, truncated_ratio
from triage_monitor.trainer.gate import gate
from triage_monitor.trainer.knobs import Knobs, pack, scalar, unpack
from triage_monitor.trainer.repair import repair
from triage_monitor.trainer.segments import SegmentMap, segment_statistics
from triage_monitor.trainer.stats import correction_stats, gate_stats, segment_stats, with_ratios

Aggregation = Literal["sequence_mean", "token_mean", "constant"]
Count = int | float | Tensor


class _InForce(NamedTuple):
    params: TriageParams
    vector: Tensor


class TriageLoss:
    """Callable loss; one object per trainer.

    aggregation: `sequence_mean` (mean over responses with tokens of their token mean), `token_mean`, or `constant`
    (sum over tokens / `divisor`). `correction`: a fixed baseline from corrections.py, applied beside the parameters'
    TIS. `device`: where the parameter tensor lives; give the training device to save a 128-byte copy per call.
    Raises ConfigError on a bad combination and InputError on parameters out of bounds.

    `loss.params = new` takes effect with the next call, as a whole, and recompiles nothing.
    """

    def __init__(
        self,
        params: TriageParams,
        aggregation: Aggregation = "sequence_mean",
        divisor: float | None = None,
        correction: Correction | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if aggregation not in ("sequence_mean", "token_mean", "constant"):
            raise ConfigError(f"aggregation is sequence_mean, token_mean or constant, not {aggregation!r}")
        if (aggregation == "constant") != (divisor is not None):
            raise ConfigError("a divisor is given for aggregation 'constant' and for no other")
        if divisor is not None and not divisor > 0:
            raise ConfigError(f"divisor must be above 0, got {divisor}")
        self.aggregation = aggregation
        self.divisor = divisor
        self.correction = correction
        self._device = device
        self.params = params

    @property
    def params(self) -> TriageParams:
        return self._in_force.params

    @params.setter
    def params(self, new: TriageParams) -> None:
        new.validate()
        self._in_force = _InForce(new, pack(new, self._device))

    def __call__(
        self,
        token_loss: Tensor,
        learner_logprobs: Tensor,
        sampler_logprobs: Tensor,
        advantages: Tensor,
        mask: Tensor,
        step: int | Tensor,
        *,
        cu_seqlens: Tensor | None = None,
        repair_segments: Count | None = None,
        normalizer: Count | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(loss, stats): a 0-dim tensor to call backward on, and detached 0-dim tensors (stats.py).

        token_loss, both log-probs (nats) and mask (nonzero = trained on): padded [B, T], left or right, or packed [T]
        with cu_seqlens [R + 1]. advantages: [B] or [B, T]; packed [R] or [T]. step: the update k; a tensor never
        specialises a compiled graph, a Python int only for its first values. Only mask-1 values are read.

        Losses ADD over micro-batches and ranks when the global counts are given: `normalizer` (responses with tokens
        for sequence_mean, tokens for token_mean, none for constant) and `repair_segments` (count_repair_segments).
        With a process group instead, both are summed over its ranks here. Where gradients are averaged over ranks
        (DDP, FSDP) multiply the loss by the world size, or give each count divided by it. Raises InputError on
        shapes, or on one count without the other.
        """
        require_shape("token_loss", token_loss, mask)
        self._require_both(normalizer, repair_segments)
        knobs, batch = self._open(learner_logprobs, sampler_logprobs, advantages, mask, cu_seqlens)
        statistics = segment_statistics(batch.layout, batch.gap, batch.usable, knobs.tau_tail)
        gating = gate(batch, statistics, knobs)
        factor = self._correction_factor(batch, knobs)
        pull = repair(batch, statistics, knobs)
        stats = gate_stats(batch, gating) | correction_stats(batch, factor)

        average = stats["tokens"] if self.aggregation == "token_mean" else stats["responses"]
        average, n_rep = _global(average, pull.segments, normalizer, repair_segments, process_group, batch.gap.dtype)
        policy = self._aggregate(token_loss, gating.alpha * factor, batch.layout, average)
        started = scalar(step, mask.device, torch.int64) >= knobs.k_rep
        repair_lambda = torch.where(started & (knobs.repair_on > 0), knobs.lambda_rep, 0.0)
        repair_loss = repair_lambda / n_rep * pull.penalty_sum
        stats |= segment_stats(statistics, pull, repair_lambda, knobs)
        return policy + repair_loss.to(policy.dtype), with_ratios(
            stats | {"policy_loss": policy, "repair_loss": repair_loss}
        )

    def token_weights(
        self,
        learner_logprobs: Tensor,
        sampler_logprobs: Tensor,
        advantages: Tensor,
        mask: Tensor,
        *,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """alpha * correction in the mask's shape, detached: for a trainer that aggregates by itself (no repair)."""
        knobs, batch = self._open(learner_logprobs.detach(), sampler_logprobs, advantages, mask, cu_seqlens)
        statistics = segment_statistics(batch.layout, batch.gap, batch.usable, knobs.tau_tail)
        weights = gate(batch, statistics, knobs).alpha * self._correction_factor(batch, knobs)
        return weights.reshape(mask.shape)

    def split(
        self,
        learner_logprobs: Tensor,
        sampler_logprobs: Tensor,
        advantages: Tensor,
        mask: Tensor,
        step: int | Tensor,
        *,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """(weights, repair_loss, stats) for a framework that computes and aggregates its token loss itself: it takes
        `weights` (alpha * correction, the mask's shape, detached) as a factor of each token's loss and adds
        `repair_loss`, whose N_rep counts this batch. Shapes as in a call."""
        knobs, batch = self._open(learner_logprobs, sampler_logprobs, advantages, mask, cu_seqlens)
        statistics = segment_statistics(batch.layout, batch.gap, batch.usable, knobs.tau_tail)
        gating, pull = gate(batch, statistics, knobs), repair(batch, statistics, knobs)
        factor = self._correction_factor(batch, knobs)
        started = scalar(step, mask.device, torch.int64) >= knobs.k_rep
        repair_lambda = torch.where(started & (knobs.repair_on > 0), knobs.lambda_rep, 0.0)
        repair_loss = repair_lambda / pull.segments.clamp(min=1) * pull.penalty_sum
        stats = gate_stats(batch, gating) | correction_stats(batch, factor)
        stats |= segment_stats(statistics, pull, repair_lambda, knobs) | {"repair_loss": repair_loss}
        return (gating.alpha * factor).reshape(mask.shape), repair_loss, with_ratios(stats)

    def _open(
        self, learner: Tensor, sampler: Tensor, advantages: Tensor, mask: Tensor, cu_seqlens: Tensor | None
    ) -> tuple[Knobs, Batch]:
        dtype = torch.promote_types(torch.promote_types(learner.dtype, sampler.dtype), torch.float32)
        knobs = unpack(self._in_force.vector, mask.device, dtype)
        return knobs, lay_out(learner, sampler, advantages, mask, knobs.segment, cu_seqlens)

    def _correction_factor(self, batch: Batch, knobs: Knobs) -> Tensor:
        factor = torch.where(knobs.tis_on > 0, truncated_ratio(batch, knobs.cap), 1.0)
        return factor if self.correction is None else factor * self.correction.weights(batch)

    def _aggregate(self, token_loss: Tensor, factor: Tensor, layout: SegmentMap, average: Tensor) -> Tensor:
        dtype = torch.promote_types(token_loss.dtype, torch.float32)
        clean = torch.where(layout.mask, token_loss.reshape(-1), 0.0).to(dtype)
        weighted = clean * factor.to(dtype)
        if self.divisor is not None:
            return weighted.sum() / self.divisor
        if self.aggregation == "token_mean":
            return weighted.sum() / average.to(dtype)
        tokens = layout.response_sum(layout.mask.to(dtype))
        return (layout.response_sum(weighted) / tokens.clamp(min=1)).sum() / average.to(dtype)

    def _require_both(self, normalizer: Any, repair_segments: Any) -> None:
        if self.aggregation == "constant":
            if normalizer is not None:
                raise InputError("normalizer", "aggregation 'constant' divides by its divisor", column="normalizer")
        elif (normalizer is None) != (repair_segments is None):
            missing = "normalizer" if normalizer is None else "repair_segments"
            raise InputError("normalizer", "give both global counts or neither: losses would not add", column=missing)


def _global(
    average: Tensor,
    repair_segments: Tensor,
    given_average: Count | None,
    given_segments: Count | None,
    group: dist.ProcessGroup | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """What to divide by: the caller's counts, else this batch's, summed over the group if there is one.

    A count of 0 divides a sum of nothing; 1 stands in for it.
    """
    if group is not None:
        counts = torch.stack((average, repair_segments))
        dist.all_reduce(counts, group=group)
        average, repair_segments = counts.unbind()
    divisors = (
        own.to(dtype) if given is None else scalar(given, own.device, dtype)
        for own, given in ((average, given_average), (repair_segments, given_segments))
    )
    first, second = (torch.where(divisor > 0, divisor, 1.0) for divisor in divisors)
    return first, second
