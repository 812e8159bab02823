"""One judged window, as plain numbers: what the detector and the policy are given for each update.

`values` maps an indicator's name to its value over the trailing window, None where it is not defined; signed quantiles
stand beside them as `q0.001_all`, `q0.05_neg`. Counts are those of the window, which leaves out updates that are no
basis for a verdict; `fresh` is how many of its updates are of this attempt (None: all). `observable` is about the
newest update alone: False when its learner and sampler log-probs are the same array (estimands section 1).
`blinded_by` names what else makes the newest update's gaps no basis (misaligned columns, a temperature that differs);
`precision` is the sampler's, as the trainer declared it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class Observation:
    step: int
    attempt: int
    updates: int
    responses: int
    tokens: int
    unusable_tokens: int = 0
    fresh: int | None = None
    observable: bool = True
    blinded_by: str = ""
    precision: str | None = None
    values: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def fresh_updates(self) -> int:
        return self.updates if self.fresh is None else self.fresh

    @property
    def unusable_ratio(self) -> float:
        """Share of the tokens that had to have a gap and have none (missing or not finite)."""
        total = self.tokens + self.unusable_tokens
        return self.unusable_tokens / total if total else 0.0


def direction_numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    """rho_asym with its 95% interval and the factors that explain it, for evidence; empty when rho is undefined."""
    ratio, error = values.get("rho_asym"), values.get("log_rho_se")
    if ratio is None or ratio <= 0:
        return {}
    numbers = {"value": ratio}
    if error is not None:
        numbers["low"] = math.exp(math.log(ratio) - NORMAL_95 * error)
        numbers["high"] = math.exp(math.log(ratio) + NORMAL_95 * error)
    return numbers
