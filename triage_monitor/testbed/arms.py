"""The arms of a comparison: what each path computes in, and which objective the loss is.

Named `precision[+objective]`, where a precision is one of the table, or any two formats as `sampler/learner`: FORMATS,
and on the learner's side also a format with `-qat` behind it. So `fp8/bf16` is what most people run today, `nvfp4/bf16`
its 4-bit form, and `nvfp4/nvfp4-qat` the quantisation-aware learner.

| precision | sampler | learner | |
|---|---|---|---|
| `nvfp4` | row-scaled activations, 1x16 weights | per-tensor activations, 16x16 weights | the mismatch under study |
| `nvfp4-kv8`, `nvfp4-kv4` | the same, keys and values cached in FP8 or NVFP4 | as above | the cache on top of it |
| `nvfp4-matched` | row-scaled, 1x16 | row-scaled, 1x16 | the same 4-bit noise, gap about 0: the fair ceiling |
| `bf16` | bfloat16 operands | bfloat16 operands | unquantised; float32 master weights and accumulation |
| `fp8`, `fp8-block`, `mxfp8`, `mxfp4` | the format | the format | see precision.py |
| `float32` | float32 | float32 | no rounding at all |

Objectives are the names of `trainer/baselines.py`; without one the loss is the trainer's own (`none`). So
`nvfp4+triage` is gate and repair at the parameter set's gentle defaults, `nvfp4+gate+tis` the gate with TIS.
A parameter set in force may ask for `precision: bf16`: then both paths fall back to bfloat16 whatever the arm. `fp8`
lifts 4-bit paths, each to its FP8 counterpart (mxfp4 to mxfp8, a cache to none); a path that is finer stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from triage_monitor.errors import ConfigError
from triage_monitor.parameters import TriageParams
from triage_monitor.testbed.precision import (
    BFLOAT16,
    FLOAT32,
    FP8_BLOCKS,
    FP8_LEARNER,
    FP8_SAMPLER,
    MXFP4_BLOCKS,
    MXFP8_BLOCKS,
    NVFP4_LEARNER,
    NVFP4_SAMPLER,
    NVFP4_SAMPLER_FP8_CACHE,
    NVFP4_SAMPLER_NVFP4_CACHE,
    Precision,
    quantization_aware,
)
from triage_monitor.trainer.baselines import OBJECTIVES, objective
from triage_monitor.trainer.loss import TriageLoss

NAMED = ("bf16", "nvfp4", "nvfp4+tis", "nvfp4+triage", "nvfp4+gate+tis", "nvfp4-matched")

# a format's sampler and learner
FORMATS: dict[str, tuple[Precision, Precision]] = {
    "nvfp4": (NVFP4_SAMPLER, NVFP4_LEARNER),
    "fp8": (FP8_SAMPLER, FP8_LEARNER),
    "fp8-block": (FP8_BLOCKS, FP8_BLOCKS),
    "mxfp8": (MXFP8_BLOCKS, MXFP8_BLOCKS),
    "mxfp4": (MXFP4_BLOCKS, MXFP4_BLOCKS),
    "bf16": (BFLOAT16, BFLOAT16),
    "float32": (FLOAT32, FLOAT32),
}
_PATHS: dict[str, tuple[Precision, Precision]] = {
    **FORMATS,
    "nvfp4-kv8": (NVFP4_SAMPLER_FP8_CACHE, NVFP4_LEARNER),
    "nvfp4-kv4": (NVFP4_SAMPLER_NVFP4_CACHE, NVFP4_LEARNER),
    "nvfp4-matched": (NVFP4_SAMPLER, NVFP4_SAMPLER),
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
        """(sampler, learner) under `params`: the arm's own, or what the set's precision makes of them."""
        if params.precision == "bf16":
            return BFLOAT16, BFLOAT16
        own = (self.sampler, self.learner)
        return (_lifted(own[0]), _lifted(own[1])) if params.precision == "fp8" else own


def arm(name: str) -> Arm:
    """`precision` or `precision+objective`; ConfigError lists what there is."""
    precision, plus, rule = name.partition("+")
    rule = rule if plus else "none"
    paths = _paths(precision)
    if paths is None or rule not in OBJECTIVES:
        raise ConfigError(
            f"no arm '{name}'; an arm is one of {', '.join(_PATHS)}, or SAMPLER/LEARNER of {', '.join(FORMATS)} (the "
            f"learner's also with -qat), or that + one of {', '.join(OBJECTIVES)}"
        )
    return Arm(name, *paths, rule)


def _paths(precision: str) -> tuple[Precision, Precision] | None:
    if "/" not in precision:
        return _PATHS.get(precision)
    sampler, _, learner = precision.partition("/")
    base = learner.removesuffix("-qat")
    if sampler not in FORMATS or base not in FORMATS or (base != learner and FORMATS[base][0].weight is None):
        return None
    own = FORMATS[base][1] if base == learner else quantization_aware(FORMATS[base][0], learner)
    return FORMATS[sampler][0], own


def _lifted(path: Precision) -> Precision:
    """The 8-bit counterpart of a 4-bit path; any other path itself."""
    kind, _, part = path.name.partition("-")
    if kind not in ("nvfp4", "mxfp4"):
        return path
    sampler, learner = FORMATS["fp8" if kind == "nvfp4" else "mxfp8"]
    if part == "qat":
        return quantization_aware(sampler, "fp8-qat" if kind == "nvfp4" else "mxfp8-qat")
    return learner if part == "learner" else sampler
