"""NeMo RL's prepare_loss_input makes log-probs of logits for TriageLossFn, pickled as to a worker.

NeMo's own loss then computes what it was given. The two are put together here as its LossPostProcessor does, which
needs a device mesh. `nemo_rl.models.policy` stands empty: it patches one version of transformers when imported.
"""

from __future__ import annotations

import pickle
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
from nemo_rl.algorithms.loss.utils import prepare_loss_input  # noqa: E402
from nemo_rl.distributed.batched_data_dict import BatchedDataDict  # noqa: E402

COMPARED = ("token_mult_prob_error", "gen_kl_error", "policy_kl_error", "sampling_importance_ratio")


def logits_of(learner: Tensor) -> Tensor:
    """[4, 23, 2] by which word 0, asked for everywhere, has the wanted log-prob behind a prompt of three."""
    first = torch.cat([learner.new_full((4, 2), -1.0), learner, learner.new_full((4, 1), -1.0)], dim=1)
    return torch.stack([first, torch.log1p(-first.exp())], dim=-1)


def told() -> dict[str, Any]:
    batch, numbers = Batch(), {}
    batch.learner = (-0.1 - torch.rand(4, 20)).requires_grad_()  # log-probs that two words can have
    config = ClippedPGLossConfig(reference_policy_kl_penalty=0.0)
    tokens = batch.mask.sum()
    Tensor.cuda = lambda self, *_, **__: self  # the labels are sent there

    def loss_of(tap: Tap | None) -> Tensor:
        nemo_rl._tap = tap
        made = ClippedPGLossFn(config) if tap is None else nemo_rl.TriageLossFn(config)
        loss_fn = pickle.loads(pickle.dumps(made))
        data = BatchedDataDict(
            {
                "prev_logprobs": behind_a_prompt(batch.old),
                "generation_logprobs": behind_a_prompt(batch.sampler),
                "advantages": behind_a_prompt(batch.advantages),
                "token_mask": behind_a_prompt(batch.mask.float()),
                "sample_mask": torch.ones(4),
                "input_ids": torch.zeros(4, 23, dtype=torch.long),
            }
        )
        given, data = prepare_loss_input(logits_of(batch.learner), data, loss_fn)
        loss, metrics = loss_fn(data=data, global_valid_seqs=torch.tensor(4), global_valid_toks=tokens, **given)
        numbers.update({name: float(metrics[name]) for name in COMPARED})
        return loss

    return answers(loss_of, batch, expected(batch)) | {"numbers": numbers}
