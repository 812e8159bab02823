"""OpenRLHF's own ActorPPOTrainer builds the activated loss and calls it in its training_step."""

from __future__ import annotations

from types import SimpleNamespace as Settings
from typing import Any

import torch
from trainer.adapters.calling import answers
from trainer.adapters.hollow import hollow
from trainer.adapters.test_wrapped_losses import Batch, expected

from triage_monitor.trainer.adapters import openrlhf
from triage_monitor.trainer.adapters.tap import Tap

hollow("vllm", "pylatexenc", "aiohttp", "deepspeed", "flash_attn")
from openrlhf.trainer.ppo_utils.experience import Experience  # noqa: E402
from openrlhf.trainer.ray import ppo_actor  # noqa: E402

ARGUMENTS = Settings(
    train=Settings(max_epochs=1, dynamic_batch_enable=False, colocate_all=False, async_enable=False),
    actor=Settings(
        eps_clip_low_high=(0.2, 0.2),
        dual_clip=None,
        loss_agg_mode="token-mean",
        policy_loss_type="ppo",
        aux_loss_coef=0.0,
        entropy_coef=None,
    ),
    algo=Settings(
        advantage=Settings(
            is_correction_level="token",
            is_correction_mode="clip",
            is_correction_gating="ratio",
            is_correction_threshold=(1.0, 1.0),  # asks for the sampler's log-probs and weighs nothing
        ),
        kl=Settings(use_loss=False, init_coef=0.0),
    ),
    ds=Settings(packing_samples=False),
    vllm=Settings(sync_backend="gloo"),
)


class Policy(torch.nn.Module):
    def __init__(self, log_probs: torch.Tensor) -> None:
        super().__init__()
        self.log_probs = log_probs

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.log_probs, Settings()


def told() -> dict[str, Any]:
    batch, numbers = Batch(), {}
    ppo_actor.torch_dist_barrier_and_cuda_sync = lambda: None  # waits for a CUDA device
    torch.cuda.current_device = lambda: 0  # the replay buffer, not used here, notes it
    plain, from_environment = ppo_actor.PolicyLoss, openrlhf.tap_from_environment

    def loss_of(tap: Tap | None) -> torch.Tensor:
        losses: list[torch.Tensor] = []
        if tap is not None:
            openrlhf.tap_from_environment = lambda *_, **__: tap
            openrlhf.activate()
        strategy = Settings(
            args=ARGUMENTS,
            ring_attn_group=None,
            backward=lambda loss, *_: losses.append(loss),
            optimizer_step=lambda *_, **__: None,
            get_grad_norm=lambda _: 0.0,
        )
        scheduler = Settings(get_last_lr=lambda: [0.0])
        trainer = ppo_actor.ActorPPOTrainer(strategy, Policy(batch.learner), None, None, scheduler)
        experience = Experience(
            sequences=torch.ones(4, 23, dtype=torch.long),
            attention_mask=torch.ones(4, 23, dtype=torch.long),
            action_mask=batch.mask,
            action_log_probs=batch.old,
            rollout_log_probs=batch.sampler,
            advantages=batch.advantages,
        )
        trainer.training_step(experience, 0.0, 0)
        numbers["vllm_kl"] = float(experience.info["vllm_kl"])
        return losses[0]

    try:
        found = answers(loss_of, batch, expected(batch))
    finally:
        ppo_actor.PolicyLoss, openrlhf.tap_from_environment = plain, from_environment
    return found | {"numbers": numbers}
