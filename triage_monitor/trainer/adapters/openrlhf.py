"""OpenRLHF: a PolicyLoss that observes and acts, put in the place of the trainer's own.

    ray.init(runtime_env={"worker_process_setup_hook": "triage_monitor.trainer.adapters.openrlhf.activate"})

Read against openrlhf 0.11.2: `trainer/ray/ppo_actor.py` builds `PolicyLoss(**settings)` and calls it with
(log_probs, old_log_probs, advantages, action_mask=, rollout_log_probs=, dp_size=, batch_num_tokens=,
global_batch_size=), all [B, A] right padded, once a micro-batch; `activate` replaces the name in that module, in every
worker. Sampler log-probs are requested only with a correction on (samples_generator.py), so without one the adapter
refuses to start; `is_correction_mode clip` with threshold 1 1 asks for them and weighs nothing, a wide threshold would
weigh by rho. Feedback tokens hold 0.0 and are masked. The repair is weighed by the share of the step's tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from triage_monitor.errors import ConfigError
from triage_monitor.trainer import layouts
from triage_monitor.trainer.adapters.environment import tap_from_environment
from triage_monitor.trainer.adapters.tap import Tap

MODULE = "openrlhf.trainer.ray.ppo_actor"


class TriagePolicyLoss(nn.Module):
    """Wraps a PolicyLoss. Raises ConfigError when sampler log-probs are not requested, or for a sequence-level loss."""

    def __init__(self, inner: nn.Module, tap: Tap | None = None) -> None:
        super().__init__()
        settings: Any = inner
        if settings.policy_loss_type != "ppo":
            raise ConfigError(f"the gate needs one loss term a token: ppo, not {settings.policy_loss_type!r}")
        level = getattr(settings, "is_correction_level", None)  # before 0.11: a switch named enable_vllm_is_correction
        if level == "off" or (level is None and not getattr(settings, "enable_vllm_is_correction", False)):
            raise ConfigError(
                "OpenRLHF requests the sampler's log-probs only with a correction: set "
                "--algo.advantage.is_correction_level token (with is_correction_mode clip and threshold 1 1 it weighs "
                "nothing)"
            )
        self.inner = inner
        told = {"logprobs_mode": "processed_logprobs", "learner": "old"}
        self.tap = tap_from_environment("openrlhf", settings=told) if tap is None else tap

    def forward(
        self,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        action_mask: torch.Tensor | None = None,
        rollout_log_probs: torch.Tensor | None = None,
        **batch: Any,
    ) -> Any:
        if action_mask is None or rollout_log_probs is None:
            raise ConfigError("OpenRLHF handed the loss no action_mask or no rollout_log_probs")
        self.tap.add(
            layouts.padded(action_mask), learner=old_log_probs, sampler=rollout_log_probs, advantages=advantages
        )
        weighed = self.tap.weigh(log_probs, rollout_log_probs, advantages, action_mask)
        loss, *told = self.inner(
            log_probs,
            old_log_probs,
            weighed.advantages,
            action_mask=action_mask,
            rollout_log_probs=rollout_log_probs,
            **batch,
        )
        tokens = batch.get("batch_num_tokens")
        share = 1.0 if tokens is None else action_mask.sum() * batch.get("dp_size", 1) / tokens
        return loss + weighed.repair_loss * share, *told


def activate(module: Any = None) -> None:
    """In the process that trains, before its trainer is built."""
    from importlib import import_module

    home: Any = import_module(MODULE) if module is None else module
    plain = home.PolicyLoss
    if not getattr(plain, "is_triage", False):

        def build(*args: Any, **settings: Any) -> TriagePolicyLoss:
            return TriagePolicyLoss(plain(*args, **settings))

        build.is_triage = True  # type: ignore[attr-defined]  # told apart at a second activation
        home.PolicyLoss = build
