"""What slime and miles are given to compute on, and Megatron's part in it.

One rank of each parallel kind, and a vocabulary-parallel log-softmax that returns the first column of the logits, into
which the test lays the log-probs it wants.
"""

from __future__ import annotations

from types import SimpleNamespace as Settings
from typing import Any

import torch
from torch import Tensor
from trainer.adapters.test_wrapped_losses import ON, Batch

from triage_monitor.trainer import TriageLoss

PROMPT = 3


def each(batch: Batch, values: Tensor) -> list[Tensor]:
    return [row[:n] for row, n in zip(values, batch.lengths.tolist(), strict=True)]


def given(batch: Batch) -> tuple[dict[str, Any], Tensor]:
    """The micro-batch, and logits [1, T, 2] of prompts and responses, each position predicting the next token."""
    lengths = batch.lengths.tolist()
    masks = each(batch, batch.mask.float())
    micro = {
        "rollout_log_probs": each(batch, batch.sampler),
        "log_probs": each(batch, batch.old),
        "advantages": each(batch, batch.advantages),
        "loss_masks": masks,
        "rollout_mask_sums": [mask.sum() for mask in masks],
        "response_lengths": lengths,
        "total_lengths": [n + PROMPT for n in lengths],
        "unconcat_tokens": [torch.zeros(n + PROMPT, dtype=torch.long) for n in lengths],
    }
    rows = [torch.cat([part.new_zeros(PROMPT - 1), part, part.new_zeros(1)]) for part in each(batch, batch.learner)]
    flat = torch.cat(rows)
    return micro, torch.stack([flat, torch.zeros_like(flat)], dim=1)[None]


def first_column(logits: Tensor, tokens: Tensor, *_: Any, with_entropy: bool = False, **__: Any) -> Any:
    entropy = torch.zeros(len(tokens)) if with_entropy else None
    return logits[:, :1], entropy


def arguments(path: str | None) -> Any:
    return Settings(
        loss_type="policy_loss" if path is None else "custom_loss",
        custom_loss_function_path=path,
        calculate_per_token_loss=False,
        recompute_loss_function=False,
        allgather_cp=False,
        use_rollout_logprobs=False,
        use_opsm=False,
        advantage_estimator="grpo",
        eps_clip=0.2,
        eps_clip_high=0.2,
        eps_clip_c=None,
        use_tis=False,
        get_mismatch_metrics=False,
        custom_tis_function_path=None,
        custom_pg_loss_reducer_function_path=None,
        entropy_coef=0.0,
        use_kl_loss=False,
        log_probs_chunk_size=-1,
        skip_actor_forward_only=False,
        observe_training_entropy=False,
        qkv_format="thd",
        rollout_temperature=1.0,
        rollout_top_p=1.0,
        use_dynamic_global_batch_size=False,
        true_on_policy_mode=False,
        use_rollout_routing_replay=False,
        keep_old_actor=False,
        global_batch_size=4,
    )


def expected(batch: Batch) -> Tensor:
    return TriageLoss(ON, "sequence_mean")(
        batch.surrogate(batch.advantages), batch.learner, batch.sampler, batch.advantages, batch.mask, step=0
    )[0]
