"""prime-rl imports the loss by its configured path (setup_rl_loss_fn) and calls it for each sequence (compute_loss)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from trainer.adapters.calling import answers
from trainer.adapters.hollow import hollow
from trainer.adapters.test_wrapped_losses import ON, Batch
from trainer.adapters.test_wrapped_sequences import behind_a_prompt

from triage_monitor.trainer import TriageLoss
from triage_monitor.trainer.adapters import prime_rl
from triage_monitor.trainer.adapters.tap import Tap

hollow("beartype")
from prime_rl.configs.trainer import CustomLossConfig, DefaultLossConfig  # noqa: E402
from prime_rl.trainer.rl import loss as home  # noqa: E402

PLAIN = {"dppo_mask_low": 1.0, "dppo_mask_high": 1.0, "kl_tau": 0.0}  # minus advantage times ratio, nothing else


def told() -> dict[str, Any]:
    batch = Batch()
    tokens = int(batch.mask.sum())
    columns = [behind_a_prompt(v) for v in (batch.learner, batch.sampler, batch.advantages, batch.mask)]
    numbers: dict[str, float] = {}

    def loss_of(tap: Tap | None) -> Tensor:
        prime_rl._tap = tap
        chosen = (
            DefaultLossConfig(**PLAIN)
            if tap is None
            else CustomLossConfig(
                import_path="triage_monitor.trainer.adapters.prime_rl.loss", kwargs={"base": "default"} | PLAIN
            )
        )
        lists = [list(values) for values in columns]
        loss, _ = home.compute_loss(
            trainer_logprobs=lists[0],
            inference_logprobs=lists[1],
            ref_logprobs=None,
            advantages=lists[2],
            loss_mask=lists[3],
            rl_weights=None,
            ce_weights=None,
            ref_kl_weights=None,
            rl_loss_fn=home.setup_rl_loss_fn(chosen),
            rl_scale=tokens,
            ce_scale=1,
            ref_kl_scale=1,
        )
        return loss

    kl = home.compute_importance_ratio_and_mismatch_kl(batch.learner.detach(), batch.sampler)[2]
    numbers["mismatch_kl/all/mean"] = float(kl[batch.mask].mean())  # as train.py averages it
    token = -(batch.learner - batch.sampler).exp() * batch.advantages
    columns_of = (token, batch.learner, batch.sampler, batch.advantages, batch.mask)
    expected = torch.zeros(())
    for i, n in enumerate(batch.lengths.tolist()):  # a sequence at a time: the repair is a mean over its own segments
        alone, _ = TriageLoss(ON, "token_mean")(*(values[i : i + 1] for values in columns_of), step=0)
        expected = expected + alone * n / tokens
    return answers(loss_of, batch, expected, learner=batch.learner) | {"numbers": numbers}
