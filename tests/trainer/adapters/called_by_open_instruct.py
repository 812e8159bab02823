"""open-instruct's own functions in the order of its training step: rho correction, now wrapped, then the GRPO loss."""

from __future__ import annotations

from types import SimpleNamespace as Settings
from typing import Any

import torch
from torch import Tensor
from trainer.adapters.calling import answers
from trainer.adapters.hollow import hollow
from trainer.adapters.test_wrapped_losses import GATE, Batch

from triage_monitor.parameters import TriageParams
from triage_monitor.trainer import TriageLoss
from triage_monitor.trainer.adapters import open_instruct
from triage_monitor.trainer.adapters.tap import Tap

hollow("open_instruct.olmo_core_utils", "vllm", "olmo_core", "beaker", "docker", "openenv", "aiohttp", "backoff")
hollow("deepspeed", "tiktoken", "langdetect", "immutabledict", "nltk")
from open_instruct import grpo_utils  # noqa: E402
from open_instruct.rl_utils import masked_mean  # noqa: E402

GATED = TriageParams().with_changes(GATE)
COMPARED = ("debug/vllm_vs_local_logprob_diff_mean", "debug/vllm_vs_local_logprob_diff_max")


def told() -> dict[str, Any]:
    batch, plain = Batch(), grpo_utils.compute_rho_correction
    config = Settings(
        use_vllm_logprobs=False,
        use_rho_correction=False,
        clip_lower=0.2,
        clip_higher=0.2,
        loss_fn=grpo_utils.GRPOLossType.dapo,
        load_ref_policy=False,
        kl_estimator=2,
    )

    def row(values: Tensor, prompt: float = 0.0) -> Tensor:
        """[1, L - 1]: the responses behind prompts of three, packed and already shifted."""
        front = torch.full((3,), prompt, dtype=values.dtype)
        return torch.cat([torch.cat([front, v[:n]]) for v, n in zip(values, batch.lengths, strict=True)])[None]

    mask = row(batch.mask, 0).bool()
    sampler = grpo_utils.mask_logprobs(row(batch.sampler, float("nan")), mask)
    old = grpo_utils.mask_logprobs(row(batch.old), mask)
    advantages = row(batch.advantages)

    def loss_of(tap: Tap | None) -> Tensor:
        grpo_utils.compute_rho_correction = plain
        if tap is not None:
            open_instruct.activate(grpo_utils, tap)
        new = grpo_utils.mask_logprobs(row(batch.learner), mask)
        rho = grpo_utils.compute_rho_correction(old, sampler, mask, advantages, config)
        token, _, _ = grpo_utils.compute_grpo_loss(
            new_logprobs=new,
            ratio=(new - old).exp(),
            advantages=advantages,
            ref_logprobs=None,
            config=config,
            rho_weights=rho.weights,
        )
        return masked_mean(token, mask, None, float(mask.sum()))

    numbers = grpo_utils.compute_vllm_local_debug_metrics(local_logprobs=old, vllm_logprobs=sampler, response_mask=mask)
    weights = TriageLoss(GATED).token_weights(batch.old, batch.sampler, batch.advantages, batch.mask)
    gated = (batch.surrogate(batch.advantages) * weights)[
        batch.mask
    ].mean()  # by the old log-probs: the hook has no other
    found = answers(loss_of, batch, gated, GATED)
    grpo_utils.compute_rho_correction = plain
    return found | {"numbers": {name: float(numbers[name]) for name in COMPARED}}
