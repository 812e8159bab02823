"""NeMo RL's LossPostProcessor takes its log-probs from logits and calls TriageLossFn in ClippedPGLossFn's place.

`nemo_rl.models.policy` stands empty: it patches one version of transformers when imported.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from trainer.adapters.calling import answers
from trainer.adapters.hollow import hollow
from trainer.adapters.test_wrapped_losses import Batch, expected
from trainer.adapters.test_wrapped_sequences import behind_a_prompt

from triage_monitor.trainer.adapters import nemo_rl
from triage_monitor.trainer.adapters.tap import Tap

hollow("nemo_rl.models.policy", "pynvml", "swanlab", "tensorboardX")
from nemo_rl.algorithms.loss.loss_functions import ClippedPGLossConfig, ClippedPGLossFn  # noqa: E402
from nemo_rl.distributed.batched_data_dict import BatchedDataDict  # noqa: E402

COMPARED = ("token_mult_prob_error", "gen_kl_error", "policy_kl_error", "sampling_importance_ratio")


def told() -> dict[str, Any]:
    batch, numbers = Batch(), {}
    config = ClippedPGLossConfig(reference_policy_kl_penalty=0.0)
    tokens = batch.mask.sum()

    def loss_of(tap: Tap | None) -> Tensor:
        nemo_rl._tap = tap
        loss_fn = ClippedPGLossFn(config) if tap is None else nemo_rl.TriageLossFn(config)
        data = BatchedDataDict(
            {
                "prev_logprobs": behind_a_prompt(batch.old),
                "generation_logprobs": behind_a_prompt(batch.sampler),
                "advantages": behind_a_prompt(batch.advantages),
                "token_mask": behind_a_prompt(batch.mask.float()),
                "sample_mask": torch.ones(4),
            }
        )
        loss, metrics = loss_fn(behind_a_prompt(batch.learner)[:, 1:], data, torch.tensor(4), tokens)
        numbers.update({name: float(metrics[name]) for name in COMPARED})
        return loss

    return answers(loss_of, batch, expected(batch)) | {"numbers": numbers}
