"""AReaL: `grpo_loss_fn` wrapped, so that every actor update is observed and weighed.

    from triage_monitor.trainer.adapters import areal; areal.activate()      in the training script, on every rank

Read against areal 1.0.4: `trainer/ppo/actor.py::PPOActor._ppo_update` looks `grpo_loss_fn` up in its module for each
micro-batch. `input_data`: `logprobs` (sampler), `prox_logp`, `advantages`, `loss_mask`, `cu_seqlens`, all packed [T]
(or padded [B, T]) and already rolled left by one together, so no shift is needed; `versions` is not, and is moved.
AReaL zeroes sampler log-probs outside the mask only. Without the decoupled loss prox_logp is absent and the current
log-probs are observed. The loss is a token mean weighed by the micro-batch's tokens; the repair rides on that.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from triage_monitor.errors import ConfigError
from triage_monitor.trainer import layouts
from triage_monitor.trainer.adapters.environment import tap_from_environment
from triage_monitor.trainer.adapters.tap import Tap

MODULE = "areal.trainer.ppo.actor"


def triaged(grpo_loss_fn: Any, tap: Tap | None = None) -> Any:
    """The loss function with observation and action around it."""
    held = [] if tap is None else [tap]

    @wraps(grpo_loss_fn)
    def wrapped(logprobs: Any, entropy: Any, input_data: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("importance_sampling_level", "token") != "token":
            raise ConfigError("the gate needs one loss term a token: importance_sampling_level=token")
        sampler, mask, advantages = (input_data[name] for name in ("logprobs", "loss_mask", "advantages"))
        offsets = input_data.get("cu_seqlens") if mask.dim() == 1 else None
        prox = input_data.get("prox_logp")
        is_recomputed = prox is not None and prox.data_ptr() != sampler.data_ptr()
        if not held:
            held.append(tap_from_environment("areal", settings={"learner": "old" if is_recomputed else "theta"}))
        now = held[0]
        placement = layouts.padded(mask) if offsets is None else layouts.packed(mask, offsets)
        versions = input_data.get("versions")
        now.add(
            placement,
            learner=prox if is_recomputed else logprobs,
            sampler=sampler,
            advantages=advantages,
            padding=(placement.offsets[1:] == placement.offsets[:-1]) if offsets is not None else None,
            policy_versions=None if versions is None else layouts.shifted(versions, -1, cu_seqlens=offsets),
        )
        weighed = now.weigh(logprobs, sampler, advantages, mask, cu_seqlens=offsets)
        loss = grpo_loss_fn(logprobs, entropy, input_data | {"advantages": weighed.advantages}, *args, **kwargs)
        return loss + weighed.repair_loss

    wrapped.is_triage = True  # type: ignore[attr-defined]  # told apart at a second activation
    return wrapped


def activate(module: Any = None, tap: Tap | None = None) -> None:
    from importlib import import_module

    home: Any = import_module(MODULE) if module is None else module
    if not hasattr(home.grpo_loss_fn, "is_triage"):
        home.grpo_loss_fn = triaged(home.grpo_loss_fn, tap)
