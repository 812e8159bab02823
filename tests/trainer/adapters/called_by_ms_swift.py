"""ms-swift's own GRPOTrainer, patched, computes its loss on a batch of its own class. Needs trl below 1."""

from __future__ import annotations

from types import SimpleNamespace as Settings
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from trainer.adapters.calling import answers
from trainer.adapters.hollow import hollow
from trainer.adapters.test_wrapped_losses import Batch, expected

from triage_monitor.trainer.adapters import ms_swift
from triage_monitor.trainer.adapters.tap import Tap

hollow("aiohttp", "einops", "dacite", "msgspec")
from swift.rlhf_trainers import grpo_trainer as home  # noqa: E402

COMPARED = ("kl", "k3_kl", "log_ppl_diff", "log_ppl_abs_diff", "training_ppl", "rollout_ppl", "chi2_token")


def told() -> dict[str, Any]:
    batch, numbers = Batch(), {}
    names = ("_compute_loss_and_metrics", "_get_per_token_logps_and_entropies")
    plain = {name: getattr(home.GRPOTrainer, name) for name in names}

    def loss_of(tap: Tap | None) -> Tensor:
        for name, function in plain.items():
            setattr(home.GRPOTrainer, name, function)
        if hasattr(home.GRPOTrainer, "is_triage"):
            del home.GRPOTrainer.is_triage
        if tap is not None:
            ms_swift.activate(home, tap)
        trainer = home.GRPOTrainer.__new__(home.GRPOTrainer)  # its constructor loads a model
        vars(trainer).update(
            model=Settings(training=True),
            compute_entropy=False,
            overlong_filter=False,
            beta=0.0,
            rollout_importance_sampling_mode=None,
            log_rollout_offpolicy_metrics=True,
            disable_rollout_importance_sampling=False,
            importance_sampling_level="token",
            loss_type="bnpo",
            epsilon_low=0.2,
            epsilon_high=0.2,
            off_policy_sequence_mask_delta=None,
            dynamic_num_samples=False,
            template=Settings(padding_free=False),
            _has_teacher=False,
            sdar_loss_coef=0.0,
            chord_sft_iterator=None,
            accelerator=Accelerator(),
            args=Settings(
                delta=None, report_to=[], per_device_train_batch_size=4, log_entropy=False, top_entropy_quantile=1.0
            ),
            _get_per_token_logps_and_entropies_single=lambda *_, **__: (batch.learner, None),
        )
        given = Settings(
            completion_mask=batch.mask,
            truncated_mask=torch.zeros(4, dtype=torch.bool),
            advantages=batch.advantages,
            old_per_token_logps=batch.old,
            rollout_per_token_logps=batch.sampler,
            seq_lengths=batch.lengths,
        )
        loss, metrics = trainer._compute_loss_and_metrics(None, {"input_ids": torch.ones(4, 23)}, given)
        told = metrics["rollout_correction"]
        numbers.update({f"rollout_correction/{name}": float(told[name]) for name in COMPARED})
        return loss

    return answers(loss_of, batch, expected(batch)) | {"numbers": numbers}
