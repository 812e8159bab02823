"""What determines a run: arm, regime, seeds, and the few numbers one may override."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from triage_monitor.errors import ConfigError
from triage_monitor.testbed.arms import arm
from triage_monitor.testbed.regimes import Regime, regime
from triage_monitor.testbed.warmup import WarmupRecipe

_OVERRIDES = ("updates", "response_tokens", "learning_rate", "segment")


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """None means: as the regime, or the task's own warm-up recipe, has it. Runs that share regime, overrides and
    seeds see the same start weights, prompts and sampling noise whatever their arm. `stale_updates` is how many updates
    old the sampler's weights are, as in asynchronous training (0: synchronised before every rollout). Raises
    ConfigError."""

    arm: str = "nvfp4"
    regime: str = "M1"
    warmup_seed: int = 0
    rl_seed: int = 0
    updates: int | None = None
    response_tokens: int | None = None
    learning_rate: float | None = None
    segment: int | None = None
    stale_updates: int = 0
    prompts: int = 8
    group_size: int = 8
    max_grad_norm: float = 1.0
    warmup: WarmupRecipe | None = None

    def __post_init__(self) -> None:
        arm(self.arm)
        chosen = self.resolved_regime()
        if chosen.updates < 1 or not chosen.learning_rate > 0 or not self.max_grad_norm > 0:
            raise ConfigError("a run needs updates, learning_rate and max_grad_norm above 0")
        if self.stale_updates < 0:
            raise ConfigError("stale_updates must not be negative")
        if self.group_size < 2 or self.prompts < 2 or self.prompts % 2:
            raise ConfigError("a rollout needs an even number of prompts and groups of at least 2")
        responses = self.prompts * self.group_size
        if responses % chosen.minibatches:
            raise ConfigError(f"{responses} responses do not make {chosen.minibatches} equal minibatches")

    def resolved_regime(self) -> Regime:
        given = {name: getattr(self, name) for name in _OVERRIDES}
        return replace(regime(self.regime), **{name: value for name, value in given.items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrainConfig:
        recipe = data.get("warmup")
        return cls(**{**data, "warmup": WarmupRecipe(**recipe) if recipe else None})
