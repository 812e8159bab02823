"""TRL: `TriageGRPOTrainer`, a GRPOTrainer that sends every update and trains on the gated and repaired loss.

    from triage_monitor.trainer.adapters.trl import TriageGRPOTrainer
    trainer = TriageGRPOTrainer(..., monitor=Monitor(url, run="my-run"))

Seams (trl 1.16.0, trl/trainer/grpo_trainer.py): `_compute_loss(model, inputs)` reads `inputs["advantages"]` after
`_get_per_token_logps_and_entropies` returned the learner's log-probs, so the advantages can be weighed in between;
`sampling_per_token_logps` [B, T] (right padded, NaN where vLLM gave none) is there with vLLM and with `rollout_func`;
`old_per_token_logps` only when TRL recomputed it, otherwise the update is on-policy and the current ones are observed.
Mask: completion_mask * tool_mask, before any correction. The repair is scaled as the loss is, by the accumulation
steps. `pause` skips updates, `stop` ends training. Rewards are the weighted sums that advantages come from.
Refused at start: losses that are not one term a token, and rollouts without log-probs.
"""

from __future__ import annotations

from typing import Any

import torch

from triage_monitor.errors import ConfigError
from triage_monitor.trainer import layouts
from triage_monitor.trainer.adapters.tap import Tap
from triage_monitor.trainer.client import Monitor
from triage_monitor.trainer.stats import read_stats

TOKEN_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo")
SHOWN = ("gated_token_fraction", "wbar_mean", "repair_fire_fraction", "repair_loss")


class _Late(dict[str, Any]):
    """A micro-batch whose advantages may be read only once they are weighed."""

    weighed = False

    def __getitem__(self, key: str) -> Any:
        if key == "advantages" and not self.weighed:
            raise ConfigError("this TRL reads advantages before the log-probs: it is newer than the adapter knows")
        return super().__getitem__(key)


class TriageMixin:
    """What TriageGRPOTrainer adds; put it before a GRPOTrainer subclass of your own."""

    def __init__(self, *args: Any, monitor: Monitor | None = None, tap: Tap | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        trainer: Any = self
        if (monitor is None) == (tap is None):
            raise ConfigError("give TriageGRPOTrainer a monitor or a tap")
        if trainer.loss_type not in TOKEN_LOSSES or trainer.importance_sampling_level != "token":
            level = trainer.importance_sampling_level
            said = f"not {trainer.loss_type!r} at level {level!r}"
            raise ConfigError(f"the gate needs one loss term a token: {', '.join(TOKEN_LOSSES)}, {said}")
        if not trainer.use_vllm and trainer.rollout_func is None:
            raise ConfigError("without vLLM or a rollout_func TRL knows no sampler log-probs: there is no gap to watch")
        self.tap = Tap(monitor) if tap is None else tap
        self._open_batch: _Late | None = None
        self._repair: Any = None
        self._rewards: Any = None

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        trainer: Any = self
        accumulated = trainer._step % trainer.current_gradient_accumulation_steps
        if accumulated == 0:
            self.tap.open(trainer.state.global_step)
        loss = super().training_step(*args, **kwargs)  # type: ignore[misc]  # of GRPOTrainer
        if trainer._step % trainer.current_gradient_accumulation_steps == 0:
            self._show()
            self.tap.close()
            if self.tap.is_stopped:
                trainer.control.should_training_stop = True
        return loss

    def _show(self) -> None:
        metrics = self._metrics["train"]  # type: ignore[attr-defined]  # of GRPOTrainer
        metrics["triage/params_version"].append(float(self.tap.params.version))
        if self.tap.stats:
            told = read_stats(self.tap.stats)
            for name in SHOWN:
                value = told.get(name)
                if value is not None:
                    metrics[f"triage/{name}"].append(value)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        self._rewards = super()._calculate_rewards(*args, **kwargs)  # type: ignore[misc]
        return self._rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        trainer: Any = self
        output = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        rows = len(output["advantages"])
        first = trainer.accelerator.process_index * rows
        weights = trainer.reward_weights.to(self._rewards.device)
        output["triage_rewards"] = (self._rewards * weights).nansum(dim=1)[first : first + rows]
        groups = torch.arange(first, first + rows, device=output["advantages"].device)
        output["triage_groups"] = groups // (trainer.num_generations if trainer.model.training else 1)
        return output

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)  # type: ignore[misc]
        if self._open_batch is not None:
            self._weigh(self._open_batch, found[0])
        return found

    def _weigh(self, batch: _Late, learner: Any) -> None:
        batch.weighed = True
        advantages, sampler = batch["advantages"], batch["sampling_per_token_logps"]
        mask = batch["completion_mask"]
        if "tool_mask" in batch:
            mask = mask * batch["tool_mask"]
        old = batch.get("old_per_token_logps")
        self.tap.add(
            layouts.padded(mask),
            learner=learner if old is None else old,
            sampler=sampler,
            advantages=advantages,
            rewards=batch["triage_rewards"],
            groups=batch["triage_groups"],
        )
        batch["advantages"], self._repair = self.tap.weigh(learner, sampler, advantages, mask)

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        trainer: Any = self
        if not trainer.model.training:
            return super()._compute_loss(model, inputs)  # type: ignore[misc]
        if inputs.get("sampling_per_token_logps") is None:
            raise ConfigError("the rollout gave no sampler log-probs: rollout_func must return them as `logprobs`")
        self._open_batch = _Late(inputs)
        try:
            loss = super()._compute_loss(model, self._open_batch)  # type: ignore[misc]
        finally:
            self._open_batch = None
        return loss + self._repair / trainer.current_gradient_accumulation_steps


def __getattr__(name: str) -> Any:
    if name != "TriageGRPOTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from trl import GRPOTrainer
    except ImportError as error:
        raise ConfigError("the TRL adapter needs trl: pip install 'triage-monitor[trl]'") from error

    made = type(
        "TriageGRPOTrainer", (TriageMixin, GRPOTrainer), {"__doc__": TriageMixin.__doc__, "__module__": __name__}
    )
    globals()["TriageGRPOTrainer"] = made
    return made
