"""prime-rl: a custom loss around its own.

    [trainer.loss]
    type = "custom"
    import_path = "triage_monitor.trainer.adapters.prime_rl.loss"
    kwargs = { base = "default", dppo_mask_low = 0.2 }        # base: default or ipo; the rest configures it

Read against commit 559b447 (not on PyPI), src/prime_rl/trainer/rl/loss.py: called once a sequence with
LossInputs(trainer_logprobs, inference_logprobs, ref_logprobs, advantages, loss_mask, loss_weights), each [S] of the
whole sequence with a dummy first position, and returns LossOutputs(loss = a sum, metrics); the trainer divides by the
global token count, so the repair is weighed by the sequence's tokens. There is no old policy: the learner is the
current one, after the mini-batches before it. No step reaches the loss: updates are counted by the optimizer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from triage_monitor.errors import ConfigError
from triage_monitor.trainer import layouts
from triage_monitor.trainer.adapters.environment import tap_from_environment
from triage_monitor.trainer.adapters.tap import Tap

_tap: Tap | None = None
_bases: dict[str, Any] = {}


def loss(inputs: Any, base: str = "default", **settings: Any) -> Any:
    """prime-rl's custom loss signature."""
    if base not in _bases:
        _bases[base] = _base(base, settings)
    return weighed(_bases[base], inputs)


def weighed(base: Any, inputs: Any) -> Any:
    global _tap
    if _tap is None:
        _tap = tap_from_environment("prime-rl", settings={"logprobs_mode": "processed_logprobs", "learner": "theta"})
    mask = inputs.loss_mask[None].clone()
    mask[:, :1] = False
    learner, sampler, advantages = (
        values[None] for values in (inputs.trainer_logprobs, inputs.inference_logprobs, inputs.advantages)
    )
    _tap.add(layouts.padded(mask), learner=learner, sampler=sampler, advantages=advantages)
    act = _tap.weigh(learner, sampler, advantages, mask)
    found = base(replace(inputs, advantages=act.advantages[0]))
    return replace(found, loss=found.loss + act.repair_loss * mask.sum())


def _base(name: str, settings: dict[str, Any]) -> Any:
    from prime_rl.configs.trainer import DefaultLossConfig, IPOLossConfig
    from prime_rl.trainer.rl import loss as home

    known = {"default": (home.default_loss_fn, DefaultLossConfig), "ipo": (home.ipo_loss_fn, IPOLossConfig)}
    if name not in known:
        raise ConfigError(f"base is default or ipo, not {name!r}")
    function, config = known[name]
    configured = config(**settings)
    return lambda inputs: function(inputs, configured)
