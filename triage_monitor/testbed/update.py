"""What one update of a run leaves behind: its numbers for people and its token arrays for the monitor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from triage_monitor.summary.rows import UpdateRows, rows_from_arrays
from triage_monitor.testbed.sampler import Rollout


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """`rows`: flat per-token arrays of the update's responses, padding cut off; all positions are tokens."""

    step: int
    params_version: int
    sampler_precision: str
    learner_precision: str
    learning_rate: float
    reward_mean: float
    entropy: float  # nats per token, of the learner's distribution
    grad_norm: float | None  # before clipping, largest finite one of the update's optimiser steps
    skipped_optimizer_steps: int  # gradient not finite: the weights stayed as they were
    wall_seconds: float
    rollout_seconds: float
    stats: dict[str, float | None]  # the objective's, merged over minibatches (trainer/stats.py)
    rows: UpdateRows

    def scalars(self) -> dict[str, float | int | str | None]:
        """Everything but the arrays, flat and JSON-able; the objective's numbers keep their names."""
        own = {name: getattr(self, name) for name in self.__slots__ if name not in ("rows", "stats")}
        return own | {f"objective_{name}": value for name, value in self.stats.items()}

    def arrays(self) -> dict[str, Any]:
        """Keyword arguments for `summarize(...)` and, with `step=`, for `Monitor.submit(...)`."""
        rows = self.rows
        return {
            "learner_logprobs": rows.learner_logprobs,
            "sampler_logprobs": rows.sampler_logprobs,
            "offsets": rows.offsets,
            "advantages": rows.advantages,
            "groups": rows.groups,
            "policy_versions": rows.policy_versions,
            "rewards": rows.rewards,
            "grad_norm": rows.grad_norms,
        }


def update_rows(
    step: int,
    rollout: Rollout,
    learner_logprobs: Tensor,
    advantages: Tensor,
    rewards: Tensor,
    group_size: int,
    sampled_by: int,
    grad_norm: float | None,
) -> UpdateRows:
    """The rollout's responses end to end, each cut behind its last token. A policy's version is the number of updates
    behind it; `sampled_by` is the sampler's."""
    count = len(advantages)
    mask = rollout.mask
    return rows_from_arrays(
        learner_logprobs=learner_logprobs[mask].numpy(),
        sampler_logprobs=rollout.logprobs[mask].numpy(),
        offsets=np.concatenate([[0], mask.sum(1).cumsum(0).numpy()]),
        advantages=advantages.numpy(),
        groups=step * (count // group_size) + np.arange(count) // group_size,
        policy_versions=np.full(count, sampled_by),
        rewards=rewards.numpy(),
        grad_norm=float("nan") if grad_norm is None else grad_norm,
        response_ids=[f"{step}-{row}" for row in range(count)],
        settings={"temperature": 1.0, "learner": "old"},
    )
