"""NeMo RL: `TriageLossFn`, a ClippedPGLossFn for grpo_train.

    from triage_monitor.trainer.adapters.nemo_rl import TriageLossFn
    loss_fn = TriageLossFn(master_config.loss_fn)            # in the launch script, in ClippedPGLossFn's place

Read against commit 7ea279a (PyPI's nemo-rl is an empty 0.0.0), nemo_rl/algorithms/loss/loss_functions.py:
__call__(next_token_logprobs [B, S - 1], data, global_valid_seqs, global_valid_toks); data holds [B, S] arrays of prompt
and response whose index 0 is a dummy, `sample_mask` [B]. The object is pickled to the workers, which make their own
connection. Micro-batch losses are sums over the global count, and so is the repair's share; metrics of micro-batches
are summed there, so none is added. A learner log-prob of exactly 0.0 replaced an -inf of the learner's own top-p
filter: such tokens are missing, and counted. `sample_mask` may already be without the sequences that
seq_logprob_error_threshold rejected: leave it null, or the survivors are what is observed.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from triage_monitor.errors import ConfigError
from triage_monitor.trainer import layouts
from triage_monitor.trainer.adapters.environment import tap_from_environment
from triage_monitor.trainer.adapters.tap import Tap

_tap: Tap | None = None


class TriageLossMixin:
    """What TriageLossFn adds to a ClippedPGLossFn."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings: Any = self
        if settings.sequence_level_importance_ratios:
            raise ConfigError("the gate needs one loss term a token: sequence_level_importance_ratios=false")

    def __call__(self, next_token_logprobs: Any, data: Any, global_valid_seqs: Any, global_valid_toks: Any) -> Any:
        token, sample = data["token_mask"][:, 1:], data["sample_mask"]
        mask = token * sample.unsqueeze(-1)
        sampler, advantages = data["generation_logprobs"][:, 1:], data["advantages"][:, 1:]
        settings: Any = self
        is_current = settings.force_on_policy_ratio or "prev_logprobs" not in data
        learner = next_token_logprobs if is_current else data["prev_logprobs"][:, 1:]
        tap = _connected("theta" if is_current else "old")
        tap.add(layouts.padded(mask), learner=learner, sampler=sampler, advantages=advantages)
        act = tap.weigh(next_token_logprobs, sampler, advantages, mask)
        shadow = copy.copy(data)
        shadow["advantages"] = torch.cat([data["advantages"][:, :1], act.advantages], dim=1)
        loss, metrics = super().__call__(  # type: ignore[misc]  # of ClippedPGLossFn
            next_token_logprobs, shadow, global_valid_seqs, global_valid_toks
        )
        return loss + act.repair_loss * mask.sum() / global_valid_toks, metrics


def _connected(learner: str) -> Tap:
    global _tap
    if _tap is None:
        _tap = tap_from_environment("nemo-rl", settings={"learner": learner}, zero_learner_is_missing=True)
    return _tap


def __getattr__(name: str) -> Any:
    if name != "TriageLossFn":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nemo_rl.algorithms.loss.loss_functions import ClippedPGLossFn

    made = type("TriageLossFn", (TriageLossMixin, ClippedPGLossFn), {"__module__": __name__})
    globals()["TriageLossFn"] = made  # where pickle looks for it in the workers
    return made
