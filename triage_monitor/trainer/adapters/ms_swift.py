"""ms-swift: its GRPOTrainer patched in place, from a file that `--external_plugins` imports.

    from triage_monitor.trainer.adapters import ms_swift; ms_swift.activate()        # the whole plug-in file

Read against ms-swift 4.6.0, swift/rlhf_trainers/grpo_trainer.py: `_compute_loss_and_metrics(model, model_inputs,
grpo_batch)` calls `_get_per_token_logps_and_entropies` and reads `grpo_batch.advantages` [B, T] afterwards; completions
are right padded; `rollout_per_token_logps` is there only if `rollout_importance_sampling_mode` or
`log_rollout_offpolicy_metrics` asked for it, else the first update is refused. `old_per_token_logps` None: the current
ones are observed. The Trainer averages over the accumulation steps, the repair with it. The chunked and Liger losses go
by another way and are refused, as are sequence-level ratios.
"""

from __future__ import annotations

import copy
from functools import wraps
from typing import Any

from triage_monitor.errors import ConfigError
from triage_monitor.trainer import layouts
from triage_monitor.trainer.adapters.environment import tap_from_environment
from triage_monitor.trainer.adapters.tap import Tap

MODULE = "swift.rlhf_trainers.grpo_trainer"


class _Call:
    """One `_compute_loss_and_metrics` in progress."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.repair: Any = None


def activate(module: Any = None, tap: Tap | None = None) -> None:
    from importlib import import_module

    home: Any = import_module(MODULE) if module is None else module
    trainer = home.GRPOTrainer
    if hasattr(trainer, "is_triage"):
        return
    trainer.is_triage = True
    held = [] if tap is None else [tap]
    open_calls: list[_Call] = []
    plain_loss, plain_logps = trainer._compute_loss_and_metrics, trainer._get_per_token_logps_and_entropies

    @wraps(plain_logps)
    def logps(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = plain_logps(self, *args, **kwargs)
        if open_calls:
            _weigh(held[0], open_calls[-1], found[0])
        return found

    @wraps(plain_loss)
    def loss(self: Any, model: Any, model_inputs: Any, grpo_batch: Any) -> Any:
        if not self.model.training:
            return plain_loss(self, model, model_inputs, grpo_batch)
        _check(self, grpo_batch)
        if not held:
            learner = "theta" if grpo_batch.old_per_token_logps is None else "old"
            told = {"logprobs_mode": "processed_logprobs", "learner": learner}
            held.append(tap_from_environment("ms-swift", settings=told))
        open_calls.append(_Call(copy.copy(grpo_batch)))
        try:
            value, *rest = plain_loss(self, model, model_inputs, open_calls[-1].batch)
            return value + open_calls[-1].repair, *rest
        finally:
            open_calls.pop()

    trainer._compute_loss_and_metrics, trainer._get_per_token_logps_and_entropies = loss, logps


def _check(trainer: Any, batch: Any) -> None:
    if batch.rollout_per_token_logps is None:
        raise ConfigError("ms-swift kept no sampler log-probs: set log_rollout_offpolicy_metrics=true")
    if getattr(trainer, "importance_sampling_level", "token") != "token":
        raise ConfigError("the gate needs one loss term a token: importance_sampling_level=token")


def _weigh(tap: Tap, call: _Call, learner: Any) -> None:
    batch = call.batch
    old, sampler = batch.old_per_token_logps, batch.rollout_per_token_logps
    tap.add(
        layouts.padded(batch.completion_mask),
        learner=learner if old is None else old,
        sampler=sampler,
        advantages=batch.advantages,
    )
    batch.advantages, call.repair = tap.weigh(learner, sampler, batch.advantages, batch.completion_mask)
