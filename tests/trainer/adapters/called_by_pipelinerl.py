"""PipelineRL's rl_step, wrapped, runs its own forward pass and loss on a batch of its own class."""

from __future__ import annotations

from types import SimpleNamespace as Settings
from typing import Any

import torch
from torch import Tensor
from trainer.adapters.calling import answers
from trainer.adapters.test_wrapped_losses import ON, Batch, surrogate

from triage_monitor.trainer import TriageLoss
from triage_monitor.trainer.adapters import pipelinerl
from triage_monitor.trainer.adapters.tap import Tap

from pipelinerl.finetune import rl  # isort: skip
from pipelinerl.finetune.types import PipelineBatchEncoding  # isort: skip

WORDS = 2


def told() -> dict[str, Any]:
    batch = Batch()
    batch.learner = (-0.1 - torch.rand(4, 20)).requires_grad_()  # log-probs that two words can have
    batch.sampler = batch.learner.detach() + 0.4 * torch.randn(4, 20)

    def behind(values: Tensor, prompt: float = 0.0) -> Tensor:
        return torch.cat([torch.full((4, 3), prompt, dtype=values.dtype), values], dim=1)

    columns = {
        "rewards": behind(batch.advantages),
        "advantages": behind(batch.advantages),
        "ref_logprobs": torch.zeros(4, 23),
        "old_logprobs": behind(batch.sampler),
        "group_tokens": torch.ones(4, 23),
        "num_labels": behind(batch.lengths[:, None].expand(4, 20).float(), 1.0),
        "overflow": torch.zeros(4, 23),
    }

    def model(input_ids: Tensor, **_: Any) -> Any:
        """Word 0 has the wanted log-prob wherever it is asked for."""
        first = torch.cat([batch.learner.new_zeros(4, 2) - 1.0, batch.learner, batch.learner.new_zeros(4, 1) - 1.0], 1)
        return Settings(logits=torch.stack([first, torch.log1p(-first.exp())], dim=-1))

    def loss_of(tap: Tap | None) -> Tensor:
        step = rl.rl_step if tap is None else pipelinerl.triaged(rl.rl_step, tap)
        given = PipelineBatchEncoding(
            input_ids=torch.zeros(4, 23, dtype=torch.long),
            attention_mask=torch.ones(4, 23, dtype=torch.long),
            labels=torch.where(behind(batch.mask, 0).bool(), 0, -100),
            model_version=0,
            **columns,
        )
        config = rl.RLConfig(policy_loss="ppo", batch_size=4, kl_coef=0.0, final_kl_coef=0.0, temperature=1.0)
        loss, _ = step(model, given, 0, 1, config)
        return loss

    numbers: dict[str, float] = {}
    token = surrogate(batch.learner, batch.sampler, batch.advantages)
    expected, _ = TriageLoss(ON, "constant", divisor=4.0)(
        token, batch.learner, batch.sampler, batch.advantages, batch.mask, step=0
    )
    found = answers(loss_of, batch, expected, learner=batch.learner)
    return found | {"numbers": numbers}
