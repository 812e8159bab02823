"""What the adaptive policy may do about a stage, in the order in which it is tried.

| remedy | entered in | sets |
|---|---|---|
| `gentle` | drift, pre_terminal | gate with w_min 0.5 and repair with lambda 5 |
| `tis` | drift | truncated importance sampling, no gate, no repair |
| `fallback` | pre_terminal, terminal | bf16 on both sides: no 4-bit mismatch left, and no 4-bit speed; stays |

A remedy's changes are laid over the base set alone, so two remedies never add up. Why this order: on the testbed gate
and repair at the drift alarm held runs that TIS begun at the same moment did not (TIS held them only from the start),
while on a learning-rate ramp gate and repair hastened the collapse, and bf16 at the alarm restored the reward in
full. Few runs; every entry is configuration. A hard gate and TIS with gate and repair made runs worse and are no
remedy here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triage_monitor.errors import ConfigError
from triage_monitor.judge.stages import Stage

ACTED_ON = (Stage.DRIFT, Stage.PRE_TERMINAL, Stage.TERMINAL)


@dataclass(frozen=True, slots=True)
class Remedy:
    """`changes` maps dotted parameter names to values (`{"gate.enabled": True}`); `stages` are those it is entered in.

    A `lasting` one is neither relaxed nor undone by the policy: that the gaps are calm under bf16 says nothing about
    what 4 bits would do.
    """

    name: str
    stages: tuple[Stage, ...]
    changes: Mapping[str, Any]
    lasting: bool = False

    def __post_init__(self) -> None:
        if not self.name or not self.stages or not set(self.stages) <= set(ACTED_ON):
            raise ConfigError(f"a remedy needs a name and stages of {', '.join(ACTED_ON)}")


REMEDIES = (
    Remedy(
        "gentle",
        (Stage.DRIFT, Stage.PRE_TERMINAL),
        {"gate.enabled": True, "gate.w_min": 0.5, "repair.enabled": True, "repair.lambda_rep": 5.0},
    ),
    Remedy("tis", (Stage.DRIFT,), {"tis.enabled": True}),
    Remedy("fallback", (Stage.PRE_TERMINAL, Stage.TERMINAL), {"precision": "bf16"}, lasting=True),
)
