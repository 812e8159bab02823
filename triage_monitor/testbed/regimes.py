"""Learning regimes: how hard one rollout is used, and at which rate.

| regime | task | optimiser steps a rollout | learning rate | |
|---|---|---|---|---|
| `demo` | awalk, 128 tokens | 1 | 4e-4 | M1 faster: unguarded NVFP4 collapses (seed 0) or falls and recovers (1, 2) |
| `M1` | awalk, 128 tokens | 1 | 2.4e-4 | on-policy; the two paths drift apart slowly |
| `M4` | awalk, 128 tokens | 4 | 6e-5 | the unclipped ratio of A < 0 tokens amplifies the drift |
| `H` | runsum, 65 tokens | 4 | 5e-4 | rollouts used hard, little entropy |
| `D` | runsum, 65 tokens | 1 | ramp to 4e-3 over 400 updates | looks for the critical learning rate |

One *update* of a run is one rollout with all its optimiser steps. Segments (gate, repair) are chosen so that a
response holds at least four.
"""

from __future__ import annotations

from dataclasses import dataclass

from triage_monitor.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Regime:
    name: str
    task: str
    response_tokens: int
    minibatches: int
    learning_rate: float
    segment: int
    updates: int
    ramp_updates: int = 0

    def learning_rate_at(self, step: int) -> float:
        """Linear up to the full rate over `ramp_updates`, then constant."""
        ramp = min(1.0, (step + 1) / self.ramp_updates) if self.ramp_updates else 1.0
        return self.learning_rate * ramp


REGIMES = {
    regime.name: regime
    for regime in (
        Regime("demo", "awalk", 128, minibatches=1, learning_rate=4e-4, segment=32, updates=220),
        Regime("M1", "awalk", 128, minibatches=1, learning_rate=2.4e-4, segment=32, updates=300),
        Regime("M4", "awalk", 128, minibatches=4, learning_rate=6e-5, segment=32, updates=200),
        Regime("H", "runsum", 65, minibatches=4, learning_rate=5e-4, segment=16, updates=125),
        Regime("D", "runsum", 65, minibatches=1, learning_rate=4e-3, segment=16, updates=300, ramp_updates=400),
    )
}


def regime(name: str) -> Regime:
    if name not in REGIMES:
        raise ConfigError(f"no regime '{name}'; there are {', '.join(REGIMES)}")
    return REGIMES[name]
