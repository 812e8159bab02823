"""`Tap`: one rank's connection from a framework's training step to the monitor and back; every adapter holds one.

    open(step)      the parameter set of this update, the same on every rank
    weigh(..)       act: advantages times the gate's weights, the repair loss to add
    add(..)         observe: one micro-batch's responses
    close(step)     one submission for the update
    follow_optimizer()   where the framework's hook knows no step: an update ends when this process's optimizer steps

Every surrogate loss in use is linear in the advantage for weights of 0 or more, min and clip included: a gate on the
advantage is exactly a gate on the token's loss. N_rep counts the micro-batch; the framework's own average over
micro-batches then weighs the repair (**[choice]**: no framework counts segments of a batch before its forward passes).
`control: pause` and `stop` give weights of 0 and no repair: the update is skipped; an adapter that can stop its
trainer does so. Up to the first closed update what does not fit raises; later it is counted in `conditions`, logged
once, and training goes on.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from triage_monitor.errors import InputError
from triage_monitor.parameters import TriageParams
from triage_monitor.trainer.distributed import apply_on_all_ranks
from triage_monitor.trainer.layouts import Part, Placement, joined
from triage_monitor.trainer.loss import TriageLoss

if TYPE_CHECKING:
    from triage_monitor.trainer.client import Monitor

log = logging.getLogger(__name__)
CLEARLY_LOWER = -0.1  # a learner of exactly 0 beside a sampler below this is a filled-in value


class Weighed(NamedTuple):
    """`advantages` in the mask's shape; `repair_loss` 0-dim, differentiable."""

    advantages: Tensor
    repair_loss: Tensor


def stored_forms(value: float) -> tuple[float, ...]:
    """What reads back when `value` went through a narrower format on its way: -9999 is -9984 in bfloat16."""
    whole = torch.tensor(value, dtype=torch.float64)
    return tuple({whole.to(form).item() for form in (torch.float64, torch.float32, torch.bfloat16, torch.float16)})


class Tap:
    """monitor: None on ranks that neither send nor decide. act: False only watches. emits: this rank sends.

    sentinels: sampler values that stand for "not known", also as bfloat16 and float16 keep them.
    zero_learner_is_missing: a learner log-prob of exactly 0.0 beside a clearly lower sampler's was filled in. Both
    become missing tokens, and are counted.
    """

    def __init__(
        self,
        monitor: Monitor | None,
        *,
        act: bool = True,
        emits: bool = True,
        sentinels: Iterable[float] = (),
        zero_learner_is_missing: bool = False,
    ) -> None:
        self.monitor = monitor
        self.act = act
        self.emits = emits
        self.step: int | None = None
        self.conditions: Counter[str] = Counter()
        self.objective = TriageLoss(TriageParams(), aggregation="constant", divisor=1.0)
        self.stats: list[dict[str, Tensor]] = []
        self._sentinels = np.array([form for value in sentinels for form in stored_forms(value)], np.float64)
        self._zero_learner_is_missing = zero_learner_is_missing
        self._parts: list[Part] = []
        self._padding_rows = 0
        self._used = self._settled = False
        self._hook: Any = None

    @property
    def params(self) -> TriageParams:
        return self.objective.params

    @property
    def is_stopped(self) -> bool:
        return self.params.control == "stop"

    def open(self, step: int) -> TriageParams:
        """A collective where torch.distributed is initialised: every rank calls it once an update."""
        self.step = step
        params = apply_on_all_ranks(self.monitor, step)
        if params is not self.objective.params:
            self.objective.params = params
        return params

    def weigh(
        self, learner: Tensor, sampler: Tensor, advantages: Tensor, mask: Tensor, *, cu_seqlens: Tensor | None = None
    ) -> Weighed:
        """Shapes as `TriageLoss`; advantages [B], [B, 1] or the mask's shape. No wait for the device."""
        spread = self._spread(advantages, mask, cu_seqlens)
        weights, repair_loss = self.weights(learner, sampler, advantages, mask, cu_seqlens=cu_seqlens)
        return Weighed(spread if weights is None else spread * weights.to(spread.dtype), repair_loss)

    def weights(
        self, learner: Tensor, sampler: Tensor, advantages: Tensor, mask: Tensor, *, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor]:
        """(the factor of each token's loss or None for 1 everywhere, the repair loss), for a seam behind the loss."""
        self._begin()
        if not self.act:
            return None, learner.new_zeros(())
        weights, repair_loss, stats = self.objective.split(
            learner, sampler, advantages, mask, self.step or 0, cu_seqlens=cu_seqlens
        )
        self.stats.append(stats)
        scale = 1.0 if self.params.control == "run" else 0.0
        return weights * scale, repair_loss * scale

    def add(
        self, placement: Placement, *, learner: Any, sampler: Any, advantages: Any, padding: Any = None, **others: Any
    ) -> None:
        """One micro-batch. padding [R]: rows that the framework added to fill up; left out and counted."""
        self._begin()
        if not self.emits:
            return
        try:
            part = placement.part(learner=learner, sampler=sampler, advantages=advantages, **others)
            if padding is not None:
                rows = np.asarray(padding, bool)
                self._padding_rows += int(rows.sum())
                part = part.only(~rows)
            self._parts.append(self._screened(part))
        except InputError as error:
            if not self._settled:
                raise
            self._note("refused_micro_batches", str(error))

    def close(self, step: int | None = None, **columns: Any) -> bool:
        """Submits what was added since the last close. True when the monitor's queue took it."""
        self._begin()
        parts, stats, padding = self._parts, self.stats, self._padding_rows
        self._parts, self.stats, self._padding_rows, self._used = [], [], 0, False
        if self.monitor is None or not parts:
            return False
        try:
            arrays = joined(parts) | columns | ({"padding_rows": padding} if padding else {})
        except InputError as error:
            if not self._settled:
                raise
            self._note("refused_updates", str(error))
            return False
        self._settled = True
        number = self.step if step is None else step
        return self.monitor.submit(step=number or 0, objective=stats or None, **arrays)

    def follow_optimizer(self) -> None:
        """From now on each optimizer step of this process closes an update, if anything was weighed or added for it,
        and opens the next. Optimizers that torch does not know (no `torch.optim.Optimizer`) are not seen."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        if self._hook is None:
            self._hook = register_optimizer_step_post_hook(lambda *_: self._stepped())

    def release(self, timeout: float = 10.0) -> bool:
        """Stops following and flushes the monitor."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        return self.monitor is None or self.monitor.close(timeout)

    def _stepped(self) -> None:
        if self._used:
            self.close()
            self.open((self.step or 0) + 1)

    def _begin(self) -> None:
        self._used = True
        if self.step is None:
            self.open(0)

    def _spread(self, advantages: Tensor, mask: Tensor, cu_seqlens: Tensor | None) -> Tensor:
        if advantages.shape == mask.shape:
            return advantages
        if cu_seqlens is None:
            return advantages.reshape(-1, 1).expand(mask.shape)
        order = torch.arange(mask.numel(), device=mask.device)
        row = torch.searchsorted(cu_seqlens[1:].to(order).contiguous(), order, right=True)
        return advantages.reshape(-1)[row.clamp(max=advantages.numel() - 1)].reshape(mask.shape)

    def _screened(self, part: Part) -> Part:
        learner, sampler, mask = (part.tokens[name] for name in ("learner_logprobs", "sampler_logprobs", "mask"))
        if mask.any() and np.array_equal(learner[mask], sampler[mask]):
            said = "learner and sampler log-probs are one array: the gap is 0 by construction and says nothing"
            self._note("learner_is_sampler", said)
        missing = np.isin(sampler, self._sentinels) & mask
        if self._zero_learner_is_missing:
            zeroed = (learner == 0.0) & (sampler < CLEARLY_LOWER) & mask
            self._note("zeroed_learner_tokens", "learner log-probs of exactly 0", int(zeroed.sum()))
            missing |= zeroed
        if not self._sentinels.size and not self._zero_learner_is_missing:
            return part
        self._note(
            "sentinel_tokens",
            "sampler log-probs that stand for none",
            int(np.isin(sampler[mask], self._sentinels).sum()),
        )
        return Part(part.offsets, part.tokens | {"missing": missing}, part.columns)

    def _note(self, condition: str, said: str, count: int = 1) -> None:
        if count and not self.conditions[condition]:
            log.warning("triage_monitor: %s: %s", condition, said)
        self.conditions[condition] += count
