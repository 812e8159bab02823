"""open-instruct: `compute_rho_correction` wrapped; its weights are what the token loss is multiplied by.

    from triage_monitor.trainer.adapters import open_instruct; open_instruct.activate()      in every learner process

Read against commit e6c3044 (not on PyPI), open_instruct/grpo_utils.py: compute_rho_correction(old_logprob,
vllm_logprobs, response_mask, advantages, config) on packed rows [B, L - 1], once a forward pass, returns a
RhoCorrection whose `weights` multiply the policy loss. The mask is boolean there, without the rows' sequence ids:
every unbroken stretch of it counts as one response, so a response with tool output inside counts as several.
Gate only, by the old log-probs: nothing here reaches the current ones, so the repair is left out and counted.
`use_vllm_logprobs` puts the sampler into old_logprob: refused. A row on a GPU is copied once to find its stretches.
"""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Any

import torch

from triage_monitor.errors import ConfigError
from triage_monitor.trainer import layouts
from triage_monitor.trainer.adapters.environment import tap_from_environment
from triage_monitor.trainer.adapters.tap import Tap

MODULE = "open_instruct.grpo_utils"
TOLD = {"logprobs_mode": "processed_logprobs", "learner": "old"}


def triaged(compute_rho_correction: Any, tap: Tap | None = None) -> Any:
    held = [] if tap is None else [tap]

    @wraps(compute_rho_correction)
    def wrapped(old_logprob: Any, vllm_logprobs: Any, response_mask: Any, advantages: Any, config: Any) -> Any:
        if config.use_vllm_logprobs:
            raise ConfigError("use_vllm_logprobs makes old and sampler one array: there is no gap to watch")
        if not held:
            held.append(tap_from_environment("open-instruct", settings=TOLD))
        now = held[0]
        placement = layouts.by_id(_stretches(response_mask))
        now.add(placement, learner=old_logprob, sampler=vllm_logprobs, advantages=advantages)
        found = compute_rho_correction(old_logprob, vllm_logprobs, response_mask, advantages, config)
        if not placement.responses:
            return found
        old, sampler, per_token = (placement.take(values) for values in (old_logprob, vllm_logprobs, advantages))
        offsets, mask = (torch.from_numpy(a).to(old_logprob.device) for a in (placement.offsets, placement.mask))
        weights, _ = now.weights(old, sampler, per_token, mask, cu_seqlens=offsets)
        if now.params.repair.enabled:
            now.conditions["repair_left_out"] += 1
        if weights is None:
            return found
        return replace(found, weights=found.weights * placement.put(weights, 1.0).to(found.weights.dtype))

    wrapped.is_triage = True  # type: ignore[attr-defined]  # told apart at a second activation
    return wrapped


def activate(module: Any = None, tap: Tap | None = None) -> None:
    from importlib import import_module

    home: Any = import_module(MODULE) if module is None else module
    if not hasattr(home.compute_rho_correction, "is_triage"):
        home.compute_rho_correction = triaged(home.compute_rho_correction, tap)


def _stretches(mask: Any) -> Any:
    """[B, L] numbers, the same on each unbroken stretch of the mask, 0 outside."""
    rows = mask.detach().to("cpu") != 0
    begins = rows.clone()
    begins[:, 1:] &= ~rows[:, :-1]
    return torch.where(rows, begins.cumsum(1), 0)
