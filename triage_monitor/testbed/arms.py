"""The arms of a comparison: what each path computes in, and which objective the loss is. Named `precision[+objective]`.

| precision | sampler | learner | |
|---|---|---|---|
| `nvfp4` | row-scaled activations, 1x16 weights | per-tensor activations, 16x16 weights | the mismatch under study |
| `nvfp4-kv8`, `nvfp4-kv4` | the same, keys and values cached in FP8 or NVFP4 | as above | the cache on top of it |
| `nvfp4-matched` | row-scaled, 1x16 | row-scaled, 1x16 | the same 4-bit noise, gap about 0: the fair ceiling |
| `bf16` | bfloat16 operands | bfloat16 operands | unquantised; float32 master weights and accumulation |
| `float32` | float32 | float32 | no rounding at all |

Objectives are the names of `trainer/baselines.py`; without one the loss is the trainer's own (`none`). So
`nvfp4+triage` is gate and repair at the parameter set's gentle defaults, `nvfp4+gate+tis` the gate with TIS.
A parameter set in force may ask for `precision: bf16`: then both paths fall back to bfloat16 whatever the arm.
"""

from __future__ import annotations

from dataclasses import dataclass

from triage_monitor.errors import ConfigError
from triage_monitor.parameters import TriageParams
from triage_monitor.testbed.precision import (
    BFLOAT16,
    FLOAT32,
    NVFP4_LEARNER,
    NVFP4_SAMPLER,
    NVFP4_SAMPLER_FP8_CACHE,
    NVFP4_SAMPLER_NVFP4_CACHE,
    Precision,
)
from triage_monitor.trainer.baselines import OBJECTIVES, objective
from triage_monitor.trainer.loss import TriageLoss

NAMED = ("bf16", "nvfp4", "nvfp4+tis", "nvfp4+triage", "nvfp4+gate+tis", "nvfp4-matched")

_PATHS: dict[str, tuple[Precision, Precision]] = {
    "nvfp4": (NVFP4_SAMPLER, NVFP4_LEARNER),
    "nvfp4-kv8": (NVFP4_SAMPLER_FP8_CACHE, NVFP4_LEARNER),
    "nvfp4-kv4": (NVFP4_SAMPLER_NVFP4_CACHE, NVFP4_LEARNER),
    "nvfp4-matched": (NVFP4_SAMPLER, NVFP4_SAMPLER),
    "bf16": (BFLOAT16, BFLOAT16),
    "float32": (FLOAT32, FLOAT32),
}


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    sampler: Precision
    learner: Precision
    objective: str

    def loss(self, segment: int) -> TriageLoss:
        """A fresh loss with the objective's parts on and segments of `segment` tokens."""
        return objective(self.objective, params=TriageParams(), **{"gate.segment": segment})

    def paths(self, params: TriageParams) -> tuple[Precision, Precision]:
        """(sampler, learner) under `params`: the arm's own, or bfloat16 for both when the set asks for it."""
        return (BFLOAT16, BFLOAT16) if params.precision == "bf16" else (self.sampler, self.learner)


def arm(name: str) -> Arm:
    """`precision` or `precision+objective`; ConfigError lists what there is."""
    precision, _, rule = name.partition("+")
    if precision not in _PATHS or (rule or "none") not in OBJECTIVES:
        raise ConfigError(
            f"no arm '{name}'; an arm is one of {', '.join(_PATHS)}, or that + one of {', '.join(OBJECTIVES)}"
        )
    sampler, learner = _PATHS[precision]
    return Arm(name, sampler, learner, rule or "none")
