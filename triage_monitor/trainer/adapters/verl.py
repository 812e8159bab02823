"""verl: the policy loss `triage`, registered by verl's own plug-in loading; acts inside every actor worker.

    actor_rollout_ref.actor.policy_loss.loss_mode=triage      (and TRIAGE_URL, TRIAGE_RUN in the workers' environment)

Read against verl 0.9.1: `import verl` loads the entry points of group `verl.plugins` in each process; importing this
module registers the loss (core_algos.register_policy_loss) and wraps `workers/utils/losses.py::ppo_loss`, because that
function keeps `data["rollout_log_probs"]`, the sampler's log-probs, from a registered loss. Tensors [B, R], right
padded. The wrapped loss is TRIAGE_VERL_LOSS (`vanilla`). Observed learner: `old_log_probs`, unless that *is* the
sampler (bypass mode), then the current ones. The repair is weighed by the micro-batch's share of the global tokens.
Refused: no sampler log-probs (`rollout.calculate_log_probs=true` sends them); losses that are not one term a token;
rejection sampling, whose mask has replaced the response mask before any worker sees it.
verl only logs a failed plug-in at debug level; an unknown loss_mode then stops the run.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

import torch

from triage_monitor.errors import ConfigError
from triage_monitor.trainer import layouts
from triage_monitor.trainer.adapters.environment import tap_from_environment
from triage_monitor.trainer.adapters.tap import Tap

NAME = "triage"
TOKEN_LOSSES = ("vanilla", "dppo_tv", "dppo_kl", "sapo", "gpg", "cispo")
_tap: Tap | None = None
_sampler: list[torch.Tensor] = []  # of the ppo_loss call in progress


def triage_policy_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """verl's policy loss signature. Raises ConfigError at the first call for what the module's docstring refuses."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    if not _sampler:
        raise ConfigError("verl calls its policy losses by another way than ppo_loss: the sampler's are not at hand")
    sampler = _sampler[-1]
    is_bypass = old_log_prob.data_ptr() == sampler.data_ptr() or torch.equal(old_log_prob, sampler)
    tap = _connected(config, "theta" if is_bypass else "old")
    learner = log_prob if is_bypass else old_log_prob
    tap.add(layouts.padded(response_mask), learner=learner, sampler=sampler, advantages=advantages)
    weighed = tap.weigh(log_prob, sampler, advantages, response_mask)
    loss, metrics = get_policy_loss_fn(_inner())(
        old_log_prob=old_log_prob,
        log_prob=log_prob,
        advantages=weighed.advantages,
        response_mask=response_mask,
        loss_agg_mode=loss_agg_mode,
        config=config,
        rollout_is_weights=rollout_is_weights,
    )
    metrics = dict(metrics) | {"actor/triage_params_version": float(tap.params.version)}
    return loss + weighed.repair_loss * _share(config, response_mask), metrics


def with_sampler(ppo_loss: Any) -> Any:
    """ppo_loss that lays the micro-batch's sampler log-probs aside for the policy loss."""

    @wraps(ppo_loss)
    def wrapped(config: Any, model_output: Any, data: Any, dp_group: Any = None) -> Any:
        if config.policy_loss.get("loss_mode", "vanilla") != NAME:
            return ppo_loss(config, model_output, data, dp_group)
        if "rollout_log_probs" not in data:
            raise ConfigError(
                "no rollout_log_probs in the batch: set actor_rollout_ref.rollout.calculate_log_probs=true"
            )
        _sampler.append(data.select("rollout_log_probs").to_padded_tensor()["rollout_log_probs"])
        try:
            return ppo_loss(config, model_output, data, dp_group)
        finally:
            _sampler.pop()

    wrapped.is_triage = True  # type: ignore[attr-defined]  # told apart at a second import
    return wrapped


def _inner() -> str:
    name = os.environ.get("TRIAGE_VERL_LOSS", "vanilla")
    if name not in TOKEN_LOSSES:
        raise ConfigError(f"TRIAGE_VERL_LOSS must have one term a token: {', '.join(TOKEN_LOSSES)}, not {name!r}")
    return name


def _connected(config: Any, learner: str) -> Tap:
    global _tap
    if _tap is None:
        correction = getattr(getattr(config, "policy_loss", None), "rollout_correction", None)
        if correction is not None and getattr(correction, "rollout_rs", None):
            raise ConfigError("rollout_rs rejects tokens before they are seen: the gap of the survivors is no gap")
        _inner()
        _tap = tap_from_environment("verl", settings={"logprobs_mode": "processed_logprobs", "learner": learner})
    return _tap


def _share(config: Any, mask: torch.Tensor) -> torch.Tensor | float:
    info = getattr(config, "global_batch_info", None) or {}
    tokens = info.get("batch_num_tokens")
    return 1.0 if tokens is None else mask.sum() * (info.get("dp_size") or 1) / tokens


def _register() -> None:
    from verl.trainer.ppo.core_algos import register_policy_loss
    from verl.workers.utils import losses

    register_policy_loss(NAME)(triage_policy_loss)
    if not hasattr(losses.ppo_loss, "is_triage"):
        losses.ppo_loss = with_sampler(losses.ppo_loss)


_register()
