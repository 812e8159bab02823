"""The training itself: GRPO with a low-precision forward on both sides, one update at a time.

    rollout (sampler path) -> rewards -> advantages -> learner log-probs -> TriageLoss -> AdamW, once per minibatch

An update is one rollout with all its optimiser steps. Everything random comes from one generator, so a configuration
determines a run bit for bit on one machine; a parameter set acts only through the loss (and, when it asks for bf16,
the paths), never through the order of draws. A checkpoint holds weights, optimiser, generator and step:
`Trainer.restore` continues the same arm bit-identically, or branches into another one.
The gap of an update is learner minus sampler before the rollout's first optimiser step; the objective sees the
current learner, which after the first minibatch has moved.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from triage_monitor.errors import ConfigError
from triage_monitor.parameters import TriageParams
from triage_monitor.testbed.arms import arm
from triage_monitor.testbed.config import TrainConfig
from triage_monitor.testbed.grpo import clipped_surrogate, group_advantages
from triage_monitor.testbed.learner import response_logprobs
from triage_monitor.testbed.model import Shape, Weights
from triage_monitor.testbed.precision import Precision
from triage_monitor.testbed.sampler import Rollout, Sampler
from triage_monitor.testbed.tasks import make_task
from triage_monitor.testbed.update import UpdateResult, update_rows
from triage_monitor.testbed.warmup import RECIPES, Progress, cached_warm_up
from triage_monitor.trainer.stats import read_stats

CHECKPOINT_FORMAT = 2


class Trainer:
    """One run. `step` is the number of the next update, from 0; `update()` does it.

    Without `weights` the warm-up is made, or read from `cache_directory` (default: warmup.cache_directory()).
    Sets torch to one thread: the numbers of a run must not depend on the machine's cores.
    """

    def __init__(
        self,
        config: TrainConfig,
        weights: Weights | None = None,
        *,
        cache_directory: Path | None = None,
        on_warmup: Progress | None = None,
    ) -> None:
        torch.set_num_threads(1)
        self.config = config
        self.regime = config.resolved_regime()
        self.task = make_task(self.regime.task, self.regime.response_tokens)
        self.arm = arm(config.arm)
        self.shape = Shape(self.task.vocabulary, self.task.prompt_tokens + self.task.response_tokens)
        if weights is None:
            recipe = config.warmup or RECIPES[self.task.name]
            weights = cached_warm_up(self.task, self.shape, recipe, config.warmup_seed, cache_directory, on_warmup)
        self.weights = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
        self.loss = self.arm.loss(self.regime.segment)
        self.own_params = self.loss.params
        self.optimizer = torch.optim.AdamW(self.weights.values(), betas=(0.9, 0.95), weight_decay=0.0)
        self.generator = torch.Generator().manual_seed(7_000 + config.rl_seed)
        self.sampler = Sampler(self.shape, config.prompts, config.group_size)
        self.step = 0
        self._published = deque([_snapshot(self.weights)], maxlen=config.stale_updates + 1)

    def update(self, params: TriageParams | None = None) -> UpdateResult:
        """Does update `step` under `params`, or under the arm's own set when None."""
        started = time.perf_counter()
        self.loss.params = self.own_params if params is None else params
        sampler, learner = self.arm.paths(self.loss.params)
        prompts = self.task.prompts(self.config.prompts, self.generator)
        rollout = self.sampler.sample(
            self._published[0], sampler, prompts, self.task.response_tokens, self.task.end_token, self.generator
        )
        rollout_seconds = time.perf_counter() - started
        rewards = self.task.rewards(rollout.prompts, rollout.responses, rollout.mask)
        advantages = group_advantages(rewards, self.config.group_size)
        learning_rate = self.regime.learning_rate_at(self.step)
        self.optimizer.param_groups[0]["lr"] = learning_rate
        done = self._optimize(rollout, advantages, learner)
        result = UpdateResult(
            step=self.step,
            params_version=self.loss.params.version,
            sampler_precision=sampler.name,
            learner_precision=learner.name,
            learning_rate=learning_rate,
            reward_mean=rewards.mean().item(),
            entropy=done.entropy,
            grad_norm=max(done.grad_norms, default=None),
            skipped_optimizer_steps=done.skipped,
            wall_seconds=time.perf_counter() - started,
            rollout_seconds=rollout_seconds,
            stats=read_stats(done.stats),
            rows=update_rows(
                self.step,
                rollout,
                done.old_logprobs,
                advantages,
                rewards,
                self.config.group_size,
                sampled_by=max(0, self.step - self.config.stale_updates),
                grad_norm=max(done.grad_norms, default=None),
            ),
        )
        self.step += 1
        self._published.append(_snapshot(self.weights))
        return result

    def save(self, path: Path) -> None:
        """Writes a checkpoint; the file appears whole."""
        state = {
            "format": CHECKPOINT_FORMAT,
            "config": self.config.to_dict(),
            "step": self.step,
            "weights": {name: weight.detach() for name, weight in self.weights.items()},
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "published": list(self._published),
        }
        beside = path.with_name(f".{path.name}.tmp")
        torch.save(state, beside)
        beside.replace(path)

    @classmethod
    def restore(cls, path: Path, *, arm: str | None = None, updates: int | None = None) -> Trainer:
        """The run of a checkpoint, from its next update on; with another arm or total length if given.

        Raises ConfigError when the file is no checkpoint of this format.
        """
        try:
            state = torch.load(path, weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise ConfigError(f"{path} is no testbed checkpoint: {error}") from error
        if not isinstance(state, dict) or state.get("format") != CHECKPOINT_FORMAT:
            raise ConfigError(f"{path} is no testbed checkpoint of format {CHECKPOINT_FORMAT}")
        config = TrainConfig.from_dict(state["config"])
        config = replace(config, arm=arm or config.arm, updates=updates or config.updates)
        trainer = cls(config, state["weights"])
        trainer.optimizer.load_state_dict(state["optimizer"])
        trainer.generator.set_state(state["generator"])
        trainer._published = deque(state["published"], trainer._published.maxlen)
        trainer.step = state["step"]
        return trainer

    def _optimize(self, rollout: Rollout, advantages: Tensor, learner: Precision) -> _Optimized:
        """All optimiser steps of one rollout."""
        count = len(advantages)
        if self.regime.minibatches == 1:
            batches = [torch.arange(count)]
            old = None
        else:
            with torch.no_grad():
                old = self._logprobs(rollout, learner, torch.arange(count))
            batches = list(torch.randperm(count, generator=self.generator).chunk(self.regime.minibatches))
        done = None if old is None else _Optimized.before(*old, rollout.mask)
        for chosen in batches:
            logprobs, entropy = self._logprobs(rollout, learner, chosen)
            if done is None:
                done = _Optimized.before(logprobs.detach(), entropy, rollout.mask)
            token_loss = clipped_surrogate(logprobs, done.old_logprobs[chosen], advantages[chosen])
            loss, stats = self.loss(
                token_loss, logprobs, rollout.logprobs[chosen], advantages[chosen], rollout.mask[chosen], self.step
            )
            done.stats.append(stats)
            self._descend(loss, done)
        assert done is not None
        return done

    def _descend(self, loss: Tensor, done: _Optimized) -> None:
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        norm = torch.nn.utils.clip_grad_norm_(self.weights.values(), self.config.max_grad_norm)
        if torch.isfinite(norm):
            done.grad_norms.append(norm.item())
            self.optimizer.step()
        else:
            done.skipped += 1

    def _logprobs(self, rollout: Rollout, learner: Precision, chosen: Tensor) -> tuple[Tensor, Tensor]:
        prompts, responses = rollout.prompts[chosen], rollout.responses[chosen]
        return response_logprobs(self.weights, self.shape, learner, prompts, responses)


def _snapshot(weights: Weights) -> Weights:
    return {name: weight.detach().clone() for name, weight in weights.items()}


@dataclass(slots=True)
class _Optimized:
    """What the optimiser steps of one rollout leave: the log-probs from before them, and what they measured."""

    old_logprobs: Tensor
    entropy: float
    grad_norms: list[float] = field(default_factory=list)
    skipped: int = 0
    stats: list[dict[str, Tensor]] = field(default_factory=list)

    @classmethod
    def before(cls, logprobs: Tensor, entropy: Tensor, mask: Tensor) -> _Optimized:
        return cls(logprobs, (entropy * mask).sum().item() / mask.sum().item())


def train(
    config: TrainConfig,
    *,
    on_update: Callable[[UpdateResult], None] | None = None,
    params_for: Callable[[int], TriageParams] | None = None,
    trainer: Trainer | None = None,
    pause_seconds: float = 0.2,
) -> Trainer:
    """Runs `trainer` (default: a new one) to the configured number of updates and returns it.

    `params_for(step)` gives the set in force for each update, `Monitor.apply` for instance; without it the arm's own
    stays. Its `control` is obeyed at update boundaries: `stop` ends the run, `pause` waits until the word changes.
    """
    running = Trainer(config) if trainer is None else trainer
    while running.step < running.regime.updates:
        params = None if params_for is None else params_for(running.step)
        if params is not None and params.control == "stop":
            break
        if params is not None and params.control == "pause":
            time.sleep(pause_seconds)
            continue
        result = running.update(params)
        if on_update is not None:
            on_update(result)
    return running
