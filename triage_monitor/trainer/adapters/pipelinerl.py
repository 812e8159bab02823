"""PipelineRL: the model that `rl_step` calls, listened to; advantages are weighed between its forward and the loss.

    from triage_monitor.trainer.adapters import pipelinerl; pipelinerl.activate()       before finetune_loop's run

Read against commit 58d3934 (not on PyPI): pipelinerl/finetune_loop.py calls the name
`rl_step(model, batch, current_step, max_step, config, seq_parallel_group)`, which runs `model(**inputs)` and then reads
`batch.advantages[:, 1:]`. Arrays [B, S] or one packed row whose position_ids restart; index t is about token t, index
0 a dummy; mask = labels != -100. `old_logprobs` ARE the sampler's. The learner's log-probs are formed here from the
same logits (one more log-sum-exp). The repair is weighed by the micro-batch's share of config.batch_size sequences.
Refused: a value head, gspo, rewards in the advantages' place, sequence parallelism.
"""

from __future__ import annotations

import copy
from functools import wraps
from typing import Any

import torch

from triage_monitor.errors import ConfigError
from triage_monitor.trainer import layouts
from triage_monitor.trainer.adapters.environment import tap_from_environment
from triage_monitor.trainer.adapters.tap import Tap

MODULE = "pipelinerl.finetune_loop"
TOLD = {"logprobs_mode": "processed_logprobs", "learner": "theta"}


class Listening:
    """A model whose outputs are looked at; everything else is the model's own."""

    def __init__(self, model: Any, after: Any) -> None:
        self._model, self._after = model, after

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outputs = self._model(*args, **kwargs)
        self._after(outputs)
        return outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def triaged(rl_step: Any, tap: Tap | None = None) -> Any:
    held = [] if tap is None else [tap]

    @wraps(rl_step)
    def wrapped(
        model: Any, batch: Any, current_step: int, max_step: int, config: Any, seq_parallel_group: Any = None
    ) -> Any:
        if hasattr(model, "value_head") or not config.use_advantages or seq_parallel_group is not None:
            raise ConfigError("the adapter needs advantages of the batch: no value head, no sequence parallelism")
        if config.policy_loss == "gspo":
            raise ConfigError("the gate needs one loss term a token: ppo or reinforce, not gspo")
        if not held:
            held.append(tap_from_environment("pipelinerl", settings=TOLD))
        now, own, repair = held[0], copy.copy(batch), []

        def after(outputs: Any) -> None:
            repair.append(_weigh(now, own, outputs.logits, config.temperature))

        loss, told = rl_step(Listening(model, after), own, current_step, max_step, config, seq_parallel_group)
        sequences = max(int((batch.position_ids == 0).sum()) if batch.is_packed else len(batch.labels), 1)
        return loss + repair[0] * sequences / config.batch_size, told

    wrapped.is_triage = True  # type: ignore[attr-defined]  # told apart at a second activation
    return wrapped


def activate(module: Any = None, tap: Tap | None = None) -> None:
    from importlib import import_module

    home: Any = import_module(MODULE) if module is None else module
    if not hasattr(home.rl_step, "is_triage"):
        home.rl_step = triaged(home.rl_step, tap)


def _weigh(tap: Tap, batch: Any, logits: Any, temperature: float) -> Any:
    scaled = logits[:, :-1].float() / temperature
    chosen = scaled.gather(2, batch.input_ids[:, 1:].unsqueeze(2)).squeeze(2) - scaled.logsumexp(-1)
    learner = torch.cat([torch.zeros_like(chosen[:, :1]), chosen], dim=1)
    mask = batch.labels != -100
    mask[:, :1] = False
    placement, offsets = layouts.padded(mask), None
    if batch.is_packed:
        placement = layouts.by_position(mask, batch.position_ids, dummy_first=True)
        starts = torch.where(batch.position_ids[0] == 0)[0]
        starts = torch.cat([starts.new_zeros(1), starts[starts > 0]])
        offsets = torch.cat([starts, starts.new_tensor([mask.shape[1]])])
    tap.add(placement, learner=learner, sampler=batch.old_logprobs, advantages=batch.advantages)
    act = tap.weigh(learner, batch.old_logprobs, batch.advantages, mask, cu_seqlens=offsets)
    batch.advantages = act.advantages
    return act.repair_loss
