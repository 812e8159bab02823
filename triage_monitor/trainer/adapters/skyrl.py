"""SkyRL: the policy loss `triage`, through SkyRL's own registry.

    from triage_monitor.trainer.adapters.skyrl import register; register()      in the entry point, before ray starts
    trainer.algorithm.policy_loss_type=triage

Read against skyrl 0.3.0: `PolicyLossRegistry` (backends/skyrl_train/utils/ppo_utils.py) ships what is registered to
the workers, which call it with (log_probs, old_log_probs, advantages, config, loss_mask, rollout_logprobs), [B, R]
LEFT padded. The wrapped loss is TRIAGE_SKYRL_LOSS (`regular`).
Advantages arrive scaled so that a plain sum is the mean wanted: signs, all that the gate asks for, are kept; for
`sequence_mean` the own length is multiplied back before they are observed. The scale of the repair cannot be told
from inside the loss: it is left out, and counted (`repair_left_out`). -9999 stands for "no sampler log-prob".
SkyRL asks vLLM for no logprobs_mode: at a temperature other than 1 the gap holds that difference; say so with
TRIAGE_TEMPERATURE and TRIAGE_LOGPROBS_MODE=raw_logprobs.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import torch

from triage_monitor.errors import ConfigError
from triage_monitor.trainer import layouts
from triage_monitor.trainer.adapters.environment import tap_from_environment
from triage_monitor.trainer.adapters.tap import Tap, stored_forms

NAME = "triage"
SENTINEL = -9999.0
NOT_ABOVE = max(stored_forms(SENTINEL))  # also where the log-probs went through bfloat16
TOKEN_LOSSES = ("regular", "dual_clip", "cispo", "dppo", "rollout_is")
_tap: Tap | None = None


def triage_policy_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    config: Any,
    loss_mask: torch.Tensor | None = None,
    rollout_logprobs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """SkyRL's policy loss signature."""
    from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry

    return weighed_loss(
        PolicyLossRegistry.get(_inner()), log_probs, old_log_probs, advantages, config, loss_mask, rollout_logprobs
    )


def weighed_loss(
    inner: Any, log_probs: Any, old_log_probs: Any, advantages: Any, config: Any, loss_mask: Any, rollout_logprobs: Any
) -> tuple[torch.Tensor, dict[str, float]]:
    if loss_mask is None or rollout_logprobs is None:
        raise ConfigError("SkyRL handed the loss no rollout_logprobs: turn on generator.sampling_params.logprobs")
    tap = _connected()
    observed = advantages
    if getattr(config, "loss_reduction", None) == "sequence_mean":
        observed = advantages * loss_mask.sum(-1, keepdim=True)
    tap.add(layouts.padded(loss_mask), learner=old_log_probs, sampler=rollout_logprobs, advantages=observed)
    weighed = tap.weigh(
        log_probs, rollout_logprobs.masked_fill(rollout_logprobs <= NOT_ABOVE, float("nan")), advantages, loss_mask
    )
    if tap.params.repair.enabled:
        tap.conditions["repair_left_out"] += 1
    plain = copy.copy(config)
    plain.policy_loss_type = _inner()
    loss, metrics = inner(log_probs, old_log_probs, weighed.advantages, plain, loss_mask, rollout_logprobs)
    return loss, metrics | {"triage_params_version_max": float(tap.params.version)}


def register() -> None:
    from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry

    _inner()
    if NAME not in PolicyLossRegistry.list_available():
        PolicyLossRegistry.register(NAME, triage_policy_loss)


def _inner() -> str:
    name = os.environ.get("TRIAGE_SKYRL_LOSS", "regular")
    if name not in TOKEN_LOSSES:
        raise ConfigError(f"TRIAGE_SKYRL_LOSS must have one term a token: {', '.join(TOKEN_LOSSES)}, not {name!r}")
    return name


def _connected() -> Tap:
    global _tap
    if _tap is None:
        _tap = tap_from_environment("skyrl", settings={"learner": "old"}, sentinels=(SENTINEL,))
    return _tap
