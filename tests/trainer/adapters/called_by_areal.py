"""AReaL's own PPOActor forms the advantages and hands `grpo_loss_fn`, now wrapped, to its engine as for each update.

The engine's part is played here as FSDPEngine does it: packing by AReaL's function, then loss_fn(logprobs, entropy,
micro-batch). AReaL rolls log-probs and mask left by one, so the first position of each sequence is its prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from trainer.adapters.calling import answers
from trainer.adapters.hollow import hollow
from trainer.adapters.test_wrapped_losses import Batch, expected

from triage_monitor.trainer.adapters import areal
from triage_monitor.trainer.adapters.tap import Tap

hollow("aiohttp", "tenacity", "flask", "lark", "einops", "aiofiles", "openai", "swanlab", "trackio", "tensorboardX")
hollow("pybase64")
from areal.api.cli_args import PPOActorConfig, RejectionSamplingConfig  # noqa: E402
from areal.trainer.ppo import actor  # noqa: E402
from areal.utils import stats_tracker  # noqa: E402
from areal.utils.data import pack_tensor_dict  # noqa: E402

REWARDS = torch.tensor([1.0, -1.0, 0.5, -2.0])


class Engine:
    """One forward pass whose log-probs are `learner` [B, S], rolled as AReaL's labels are."""

    def __init__(self, learner: Tensor) -> None:
        self.learner = learner
        self.loss = torch.zeros(())

    def train(self) -> None: ...

    def get_version(self) -> int:
        return 3

    def train_batch(self, batch: dict[str, Any], loss_fn: Callable[..., Tensor], loss_weight_fn: Any) -> dict[str, Any]:
        packed = pack_tensor_dict(batch | {"learner": self.learner})
        self.loss = loss_fn(packed.pop("learner"), torch.zeros_like(packed["logprobs"]), packed)
        return {}


def behind_a_prompt(values: Tensor, prompt: int = 1) -> Tensor:
    return torch.cat([values.new_zeros(len(values), prompt), values], dim=1)


def told() -> dict[str, Any]:
    """The rewards are such that AReaL's own advantages are those of the batch."""
    batch, plain, numbers = Batch(), actor.grpo_loss_fn, {}
    attention = behind_a_prompt(batch.mask).long()
    attention[:, 0] = 1

    def loss_of(tap: Tap | None, rejection: Any = None) -> Tensor:
        actor.grpo_loss_fn = plain
        if tap is not None:
            areal.activate(actor, tap)
        config = PPOActorConfig(
            ppo_n_minibatches=1,
            kl_ctl=0.0,
            use_decoupled_loss=True,
            recompute_logprob=True,
            rejection_sampling=rejection,
        )
        engine = Engine(torch.roll(behind_a_prompt(batch.learner), -1, dims=1))
        ppo = actor.PPOActor(config, engine)
        data = {
            "input_ids": torch.ones(4, 21, dtype=torch.long),
            "attention_mask": attention,
            "loss_mask": behind_a_prompt(batch.mask).long(),
            "logprobs": behind_a_prompt(torch.where(batch.mask, batch.sampler, 0.0)),
            "prox_logp": torch.roll(behind_a_prompt(batch.old), -1, dims=1),
            "rewards": REWARDS.clone(),
            "versions": torch.full((4, 21), 2),
        }
        ppo._ppo_update(ppo._compute_advantages(data))
        exported = stats_tracker.export_all()
        average = [value for name, value in exported.items() if name.endswith("behave_approx_kl/avg")]
        numbers.update(dict(zip(["behave_approx_kl"], average, strict=False)))  # there only beside a rejection
        return engine.loss

    found = answers(loss_of, batch, expected(batch))
    loss_of(None, RejectionSamplingConfig(upper=1e9))  # the gap is a metric only beside a rejection
    actor.grpo_loss_fn = plain
    return found | {"numbers": numbers}
