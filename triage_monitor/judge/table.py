"""What an indicator is: a row with a name, a unit, a help text and a function of a merged summary.

A function returns a number or raises Undefined with the reason why there is none; absence is never 0, inf or NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from triage_monitor.summary.step import StepSummary


class Undefined(Exception):
    """Raised by an indicator that has no value here."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Indicator:
    """`unit` is one of nats, nats2, ratio, share, count, log, none; `family` orders tables and dashboards."""

    name: str
    unit: str
    help: str
    family: str
    compute: Callable[[StepSummary], float]


# Reasons that a value is absent, in words for tables and alerts.
REASONS: dict[str, str] = {
    "no_tokens": "no valid token",
    "no_advantage_signal": "every advantage is 0 or unusable",
    "no_amplifying_mass": "no token in either amplifying region",
    "no_positive_mass": "no mass on the positive-advantage side",
    "no_negative_mass": "no mass on the negative-advantage side",
    "no_positive_gap": "no token with a positive gap",
    "no_negative_advantage": "no token with a negative advantage",
    "no_positive_advantage": "no token with a positive advantage",
    "too_few_units": "fewer than two sampling units",
    "no_eligible_segments": "no segment with enough valid tokens",
    "no_tail_tokens": "no amplifying-tail token in an eligible segment",
    "no_heavy_segments": "no tail-heavy segment",
    "no_adjacent_pairs": "no tail-heavy segment with an eligible successor",
    "no_logprobs": "gaps were sent, not both log-probs",
    "no_variance": "one side's probabilities are all equal",
    "no_versions": "no policy versions were sent",
    "no_reward": "no rewards were sent",
    "no_grad_norm": "no gradient norm was sent",
    "out_of_range": "the values sent are too large or too small for float64 sums",
}


def undefined(reason: str) -> NoReturn:
    assert reason in REASONS, reason
    raise Undefined(reason)


def tokens(summary: StepSummary) -> int:
    """Valid tokens, at least one."""
    return summary.count("valid_tokens") or undefined("no_tokens")
