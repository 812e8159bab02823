"""SkyRL's own policy worker takes the loss `triage` from SkyRL's registry and calls it for a micro-batch.

Below Python 3.12 pydantic wants typing_extensions' TypedDict where SkyRL uses typing's: one stands in for the other.
"""

from __future__ import annotations

import typing
from types import SimpleNamespace as Settings
from typing import Any

import torch
import typing_extensions
from trainer.adapters.calling import answers
from trainer.adapters.test_wrapped_losses import GATE, Batch, expected

from triage_monitor.parameters import TriageParams
from triage_monitor.trainer.adapters import skyrl
from triage_monitor.trainer.adapters.tap import Tap

typing.TypedDict = typing_extensions.TypedDict
from skyrl.backends.skyrl_train.utils.ppo_utils import (  # noqa: E402
    PolicyLossRegistry,
    apply_loss_reduction_to_advantages_minibatch,
)
from skyrl.backends.skyrl_train.workers.worker import PolicyWorkerBase  # noqa: E402
from skyrl.train.config import AlgorithmConfig  # noqa: E402
from skyrl.train.dataset.replay_buffer import Experience  # noqa: E402

COMPARED = ("minibatch_rollout_logprobs_abs_diff_mean", "minibatch_rollout_logprobs_abs_diff_max")
GATED = TriageParams().with_changes(GATE)  # the repair is left out here


def on_the_left(batch: Batch, values: torch.Tensor) -> torch.Tensor:
    """SkyRL pads responses on the left."""
    length = values.shape[1]
    rows = [torch.cat([row.new_zeros(length - n), row[:n]]) for row, n in zip(values, batch.lengths, strict=True)]
    return torch.stack(rows)


def told() -> dict[str, Any]:
    batch, numbers = Batch(), {}
    left = {name: on_the_left(batch, getattr(batch, name)) for name in ("sampler", "learner", "old", "advantages")}
    mask = on_the_left(batch, batch.mask)
    scaled = apply_loss_reduction_to_advantages_minibatch(left["advantages"], mask, "token_mean", 4, 20)
    torch.cuda.current_device = lambda: "cpu"  # the worker moves its micro-batch there
    skyrl.register()

    def loss_of(tap: Tap | None) -> torch.Tensor:
        skyrl._tap = tap
        losses: list[torch.Tensor] = []
        name = "regular" if tap is None else "triage"
        worker = PolicyWorkerBase.__new__(PolicyWorkerBase)  # its constructor joins a process group
        worker.cfg = Settings(algorithm=AlgorithmConfig(policy_loss_type=name, use_kl_loss=False))
        worker.policy_loss_fn = PolicyLossRegistry.get(worker.cfg.algorithm.policy_loss_type)
        worker.model = Policy(left["learner"])
        worker.strategy = Settings(backward=lambda loss, *_: losses.append(loss))
        worker.optimizer, worker.mesh_rank = None, Settings(dp_size=1)
        worker.scheduler = Settings(get_last_lr=lambda: [0.0])
        experience = Experience(
            sequences=torch.ones(4, 23, dtype=torch.long),
            action_log_probs=left["old"],
            base_action_log_probs=None,
            values=None,
            returns=None,
            advantages=scaled,
            attention_mask=torch.ones(4, 23, dtype=torch.long),
            loss_mask=mask,
            action_mask=mask,
            rollout_logprobs=left["sampler"],
            rollout_expert_indices=None,
            num_actions=20,
            info={},
        )
        status = worker._forward_backward_micro(experience, 1.0)
        numbers.update({name: status[name] for name in COMPARED})
        return losses[0]

    found = answers(loss_of, batch, expected(batch, GATED), GATED)
    return found | {"numbers": numbers}


class Policy(torch.nn.Module):
    def __init__(self, log_probs: torch.Tensor) -> None:
        super().__init__()
        self.log_probs = log_probs

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.log_probs, {"entropy": torch.zeros(4, 23)}
