"""slime, and miles, which shares its hooks: a custom loss around the stack's own policy loss.

    --loss-type custom_loss --custom-loss-function-path triage_monitor.trainer.adapters.slime.loss    (or .miles_loss)

Read against slime commit 624b824 (PyPI's slime is another package), backends/megatron_utils/loss.py, and miles commit
31f1ca9, backends/training_utils/loss_hub/losses.py: fn(args, batch, logits, sum_of_sample_mean); `batch` holds lists of
one [L_i] tensor a sample (response tokens only, no padding): rollout_log_probs, log_probs, advantages, loss_masks (full
length even under context parallelism). `policy_loss_function` computes the learner's log-probs by
`get_log_probs_and_entropy` and reduces its flat token loss by `custom_pg_loss_reducer_function_path`; both are listened
to, so nothing is computed twice. The repair is weighed as a sample's loss is.
Refused: context parallelism (slices would have to be joined inside the loss; `layouts.join_response_slices` does it for
dumps), TIS and rejection of the stack's own, sequence-level losses, a recomputed loss, no sampler log-probs.
"""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any

import torch

from triage_monitor.errors import ConfigError
from triage_monitor.trainer import layouts
from triage_monitor.trainer.adapters.environment import megatron_rank, tap_from_environment
from triage_monitor.trainer.adapters.tap import Tap

SLIME, MILES = "slime.backends.megatron_utils.loss", "miles.backends.training_utils.loss_hub.losses"
_tap: Tap | None = None
_open: list[dict[str, Any]] = []


def loss(args: Any, batch: Any, logits: Any, sum_of_sample_mean: Any) -> Any:
    return weighed(import_module(SLIME), "slime", args, batch, logits, sum_of_sample_mean)


def miles_loss(args: Any, batch: Any, logits: Any, sum_of_sample_mean: Any) -> Any:
    return weighed(import_module(MILES), "miles", args, batch, logits, sum_of_sample_mean)


def weighed(home: Any, name: str, args: Any, batch: Any, logits: Any, sum_of_sample_mean: Any) -> Any:
    global _tap
    _check(args, batch)
    if _tap is None:
        learner = "old" if batch.get("log_probs") and not args.use_rollout_logprobs else "theta"
        _tap = tap_from_environment(name, rank=megatron_rank(), settings={"learner": learner})
    call: dict[str, Any] = {"batch": batch, "args": args, "reduce": sum_of_sample_mean}
    plain = home.get_log_probs_and_entropy

    def listening(*own: Any, **kwargs: Any) -> Any:
        found = plain(*own, **kwargs)
        _weigh(_tap, call, found[1]["log_probs"] if isinstance(found, tuple) else found["log_probs"])
        return found

    own_args = copy.copy(args)
    own_args.custom_pg_loss_reducer_function_path = f"{__name__}.reducer"
    home.get_log_probs_and_entropy = listening
    _open.append(call)
    try:
        value, metrics = home.policy_loss_function(own_args, batch, logits, sum_of_sample_mean)
    finally:
        _open.pop()
        home.get_log_probs_and_entropy = plain
    return value + call["repair"], metrics


def reducer(total_lengths: Any, response_lengths: Any, loss_masks: Any, per_token: Any) -> Any:
    """The stack's pg-loss reducer of the call in progress, behind the gate."""
    call = _open[-1]
    return lambda pg_loss: call["reduce"](pg_loss if call["weights"] is None else pg_loss * call["weights"])


def _weigh(tap: Any, call: dict[str, Any], learner: list[Any]) -> None:
    batch, args = call["batch"], call["args"]
    lengths = [len(mask) for mask in batch["loss_masks"]]
    if [len(values) for values in learner] != lengths:
        raise ConfigError("context-parallel slices reach the loss: the adapter needs context_parallel_size 1")
    sampler, advantages, masks = (batch[name] for name in ("rollout_log_probs", "advantages", "loss_masks"))
    old = None if args.use_rollout_logprobs else batch.get("log_probs")
    tap.add(layouts.per_sample(masks), learner=old or learner, sampler=sampler, advantages=advantages)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    new, given, per_token, mask = (torch.cat(list(values)) for values in (learner, sampler, advantages, masks))
    call["weights"], repair = tap.weights(new, given, per_token, mask, cu_seqlens=offsets)
    call["repair"] = repair * (mask.sum() if args.calculate_per_token_loss else len(lengths))


def _check(args: Any, batch: Any) -> None:
    if not batch.get("rollout_log_probs"):
        raise ConfigError("the batch holds no rollout_log_probs: the rollout must return the sampler's log-probs")
    if getattr(args, "custom_pg_loss_reducer_function_path", None):
        raise ConfigError("the adapter brings its own custom_pg_loss_reducer_function_path")
    if args.use_tis or args.get_mismatch_metrics:
        raise ConfigError("use_tis and get_mismatch_metrics change the reduction; TIS is part of the parameter set")
    if args.advantage_estimator == "gspo" or getattr(args, "recompute_loss_function", False):
        raise ConfigError("the gate needs one loss term a token, computed once: no gspo, no recompute_loss_function")
