"""What every proof by a framework's own code asks: the loss without us, with gate and repair off, and with them on.

Run in a process of its own (`run_with`), which sees the framework; the test compares what `answers` returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from trainer.adapters.test_wrapped_losses import ON, Batch, a_tap

from triage_monitor.parameters import TriageParams
from triage_monitor.trainer.adapters.tap import Tap


def answers(
    loss_of: Callable[[Tap | None], Tensor],
    batch: Batch,
    expected: Tensor,
    params: TriageParams = ON,
    learner: Tensor | None = None,
    **options: Any,
) -> dict[str, Any]:
    """loss_of(None) is the framework alone; expected: TriageLoss on the plain form. learner: what must be observed."""
    plain = loss_of(None)
    off = loss_of(a_tap(TriageParams(), **options))
    tap = a_tap(params, **options)
    on = loss_of(tap)
    gradient, before, wanted = (torch.autograd.grad(loss, batch.learner)[0] for loss in (on, off, expected))
    parts = [part.tokens for part in tap._parts]
    seen = (batch.old if learner is None else learner).detach()
    return {
        "off_is_plain": torch.equal(plain, off),
        "plain": plain.item(),
        "on": on.item(),
        "expected": expected.item(),
        "gradient_off_by": float((gradient - wanted)[batch.mask].abs().max() / wanted.abs().max()),
        "gradient_moved": float((gradient - before).abs().max() / before.abs().max()),
        "lengths": [int(n) for part in tap._parts for n in part.offsets[1:] - part.offsets[:-1]],
        "gap": float(sum((part["learner_logprobs"] - part["sampler_logprobs"])[part["mask"]].sum() for part in parts)),
        "wanted_gap": float((seen - batch.sampler)[batch.mask].sum()),
    }
