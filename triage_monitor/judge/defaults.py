"""The detector's settings, and the levels it starts with.

The score's terms and weights were chosen on the development runs of the benchmark. Floors, `leave` levels and the
terminal multiples are choices; a mean gap of twice its baseline was met by runs that lost a seventh of their reward and
recovered, hence three times. Every level is configuration; none is known to hold on another model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from triage_monitor.errors import ConfigError
from triage_monitor.judge.alarm_rate import HIGHEST_RATE, LOWEST_RATE
from triage_monitor.judge.baseline import BaselineSettings
from triage_monitor.judge.rules import Criterion, Form, Hysteresis, Rule, Take
from triage_monitor.judge.score import SCORE, ScoreSettings, Term

# Below these an indicator is noise whatever multiple of its baseline it is: two exact paths agree to about 1e-6 nats.
TAIL_FLOOR_NATS = 0.1
ENERGY_FLOOR = 5e-4
UNMASKED_FLOOR = 0.02
GAP_FLOOR_NATS = 1e-3
PRESSURE_FLOOR = 1e-2


# Terms and weights were chosen on the benchmark's development runs alone (`bench early-warning`).
SCORE_TERMS = (
    Term("q0.001_neg", 0.5, TAIL_FLOOR_NATS, Take.NEGATIVE),
    Term("q0.001_pos", 0.5, TAIL_FLOOR_NATS, Take.NEGATIVE),
    Term("mismatch_energy", 0.5, ENERGY_FLOOR),  # in nats squared: half an e-fold counts as one of the others
    Term("abs_delta_mean", 1.0, GAP_FLOOR_NATS),
    Term("masked_response_fraction", 0.5, UNMASKED_FLOOR, Take.COMPLEMENT),
    Term("rho_pressure", 0.5, PRESSURE_FLOOR),
)
SCORE_SETTINGS = ScoreSettings(
    SCORE_TERMS, trend_weight=1.0, reward_weight=10.0, grad_norm_weight=12.0, signature_band=0.5, signature_scale=0.4
)


def _score(level: float, leave: float) -> Criterion:
    return Criterion(SCORE, level, leave, form=Form.ABS)


DRIFT = Rule((_score(0.5, 0.4),))
PRE_TERMINAL = Rule((_score(1.0, 0.8),))
TERMINAL = Rule(
    criteria=(
        Criterion("q0.05_all", 2.5, 2.0, take=Take.NEGATIVE, floor=0.05),
        Criterion("abs_delta_mean", 3.0, 2.4, floor=0.02),
        Criterion("near_zero_fraction", 2.0, 1.6, take=Take.COMPLEMENT, floor=0.1),
    ),
    votes=1,
)


@dataclass(frozen=True, slots=True)
class MinimumData:
    """What a window must hold before anything is judged; below it the verdict is withheld (never guessed)."""

    tokens: int = 10_000
    responses: int = 100
    updates: int = 10
    max_unusable_ratio: float = 0.25


@dataclass(frozen=True, slots=True)
class RewardRule:
    """Reward against its own running best; needs a positive best. Shortfall = 1 - reward / best."""

    shortfall: float = 0.5
    leave: float = 0.4
    enter_updates: int = 5
    leave_updates: int = 10

    def __post_init__(self) -> None:
        Hysteresis(self.shortfall, self.leave, self.enter_updates, self.leave_updates)


@dataclass(frozen=True, slots=True)
class DetectorSettings:
    minimum: MinimumData = field(default_factory=MinimumData)
    baseline: BaselineSettings = field(default_factory=BaselineSettings)
    material_tail_nats: float = TAIL_FLOOR_NATS  # -q0.001 below this: no tail to speak of, nothing leads
    drift: Rule = DRIFT
    pre_terminal: Rule = PRE_TERMINAL
    score: ScoreSettings = SCORE_SETTINGS
    alarms_per_1000_updates: float = 1.0
    elevated_mismatch: float = 0.5  # of the gaps' own score: from here on a falling reward is the mismatch's doing
    terminal: Rule = TERMINAL
    reward: RewardRule = field(default_factory=RewardRule)

    def __post_init__(self) -> None:
        if self.material_tail_nats < 0:
            raise ConfigError("material_tail_nats must not be negative")
        if not 0 < self.elevated_mismatch <= 1:
            raise ConfigError("elevated_mismatch must be above 0 and at most 1")
        if not LOWEST_RATE <= self.alarms_per_1000_updates <= HIGHEST_RATE:
            raise ConfigError(f"alarms_per_1000_updates must be from {LOWEST_RATE:g} to {HIGHEST_RATE:g}")

    def learned(self) -> tuple[str, ...]:
        """Indicators a baseline is needed for."""
        rules = (self.drift, self.pre_terminal, self.terminal)
        return tuple(sorted({*baseline_names(*rules), *self.score.learned()}))


def baseline_names(*rules: Rule) -> tuple[str, ...]:
    return tuple(sorted({item.indicator for rule in rules for item in rule.criteria if item.form is Form.REL}))


def is_material(values: Mapping[str, float | None], tail_nats: float) -> bool:
    """Whether there is a deep negative tail at all; an unknown one counts as there."""
    tail = values.get("q0.001_all")
    return tail is None or -tail >= tail_nats
