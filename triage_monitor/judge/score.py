"""The early-warning score: how far the leading indicators stand above the run's own normal, as one explained number.

    level = sum over known terms of w ln(x / b) / sum of their w
    score = (level + trend_weight max(0, level - level 25 updates ago)
                   + reward_weight max(0, 1 - reward / best) + grad_norm_weight max(0, ln(grad_norm / b))) / h
            + max(0, signature - signature_band) / signature_scale          while level is above 0
    signature = max(0, |ln(rho_asym / b)| - 1.96 se) + max(0, ln(top5_tail_share / b)) + max(0, ln(persistence / b))

x is a window's value and b its baseline, both floored. `level` is in e-folds: 0.7 says that the leading indicators
stand at twice their normal. Each term's share is kept, so an alarm lists what it is made of. The form, the terms and
the weights were chosen on development runs of the benchmark only; `h` is the threshold that gives the asked-for rate of
false alarms (`alarm_rate`), so 1 is the alarm. Reward and gradient norm enter when the trainer sends them.

The signature is the paper's: amplifying mass leaning to one side while the tail crowds into few segments. From the
paper's healthy to its pre-terminal windows it rises by 1.55 (4B) and 1.1 (30B); no run of our testbed, collapsing or
not, ever rose by more than 0.4, so it costs no false alarm there and warns of nothing there either. It counts only
beside a rising tail and with some crowding: concentration also rises in runs that heal, and a direction alone is
`notices`' to say.

A score that knows the trainer's signals has a higher threshold, for they fluctuate too. So that a trainer's calm
signals cannot mute the gaps, these alarm by themselves as well, at half the rate asked for; the larger of the two
counts.

Pure numbers in and out. Leaves out when a high score is an alarm (`rules`: for how long) and what else makes a stage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from triage_monitor.errors import ConfigError
from triage_monitor.judge.alarm_rate import LOWEST_RATE, score_threshold
from triage_monitor.judge.observation import NORMAL_95
from triage_monitor.judge.rules import Take

SCORE = "warning_score"
REWARD, GRAD_NORM = "reward_mean", "grad_norm"
TREND_UPDATES = 25
CLEAR_OF_NOISE = 15.0  # times the spread of the window's reward
NOISE_EFOLDS = 0.05  # a growth below this is none
_SIGNATURE = ("rho_asym", "top5_tail_share", "persistence")


@dataclass(frozen=True, slots=True)
class Term:
    """One indicator of the score; `floor` is where it is too small to matter, on either side of the ratio."""

    indicator: str
    weight: float
    floor: float
    take: Take = Take.VALUE

    def __post_init__(self) -> None:
        if self.weight <= 0 or self.floor <= 0:
            raise ConfigError(f"{self.indicator}: weight and floor must be positive")

    def efolds(self, value: float, baseline: float) -> float:
        return math.log(max(self.take.of(value), self.floor) / max(self.take.of(baseline), self.floor))


@dataclass(frozen=True, slots=True)
class Score:
    """`value` 1 is the alarm; `shares` add up to it; `level` is what the next windows' trend is taken from.

    `mismatch` is what the gaps alone come to, as if the trainer had sent nothing else; `raw` is the sum in e-folds that
    the threshold of all sent signals is set against.
    """

    value: float
    level: float
    shares: Mapping[str, float]
    mismatch: float = 0.0
    raw: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "shares": dict(self.shares)}

    def words(self) -> str:
        parts = [f"{name} {share:+.2f}" for name, share in self.shares.items() if abs(share) >= 0.005]
        return f"early-warning score {self.value:.2f} (1 alarms): {', '.join(parts) or 'nothing stands out'}"


@dataclass(frozen=True, slots=True)
class ScoreSettings:
    terms: tuple[Term, ...]
    trend_weight: float
    reward_weight: float
    grad_norm_weight: float
    signature_band: float
    signature_scale: float

    def __post_init__(self) -> None:
        if not self.terms or min(self.trend_weight, self.reward_weight, self.grad_norm_weight) < 0:
            raise ConfigError("a score needs terms, and weights that are not negative")
        if self.signature_band < 0 or self.signature_scale <= 0:
            raise ConfigError("signature_band must not be negative, signature_scale must be positive")

    def learned(self) -> tuple[str, ...]:
        """Indicators a baseline is needed for."""
        return (*(term.indicator for term in self.terms), REWARD, GRAD_NORM, *_SIGNATURE)


@dataclass(frozen=True, slots=True)
class History:
    """What the score needs beside the window: its own `level` of 25 updates ago, the best reward so far, and by how
    much the window's reward varied while the baseline was learned."""

    level_before: float | None = None
    best_reward: float | None = None
    reward_noise: float = 0.0


def early_warning(
    settings: ScoreSettings,
    values: Mapping[str, float | None],
    baseline: Mapping[str, float],
    history: History,
    alarms_per_1000_updates: float,
) -> Score | None:
    """None while no term is known."""
    known = [
        (term, term.efolds(value, baseline[term.indicator]))
        for term in settings.terms
        if term.indicator in baseline and (value := values.get(term.indicator)) is not None
    ]
    if not known:
        return None
    total = sum(term.weight for term, _ in known)
    gaps = {term.indicator: term.weight * efolds / total for term, efolds in known}
    level = sum(gaps.values())
    if history.level_before is not None:
        gaps["trend"] = settings.trend_weight * max(0.0, level - history.level_before)
    told = _told(settings, values, baseline, history)
    rate = alarms_per_1000_updates
    threshold = score_threshold(rate, reward=REWARD in told, grad_norm=GRAD_NORM in told)
    alone = score_threshold(rate, reward=False, grad_norm=False)
    shares = {name: share / threshold for name, share in (gaps | told).items()}
    if told:
        # What the trainer tells must not talk down what the gaps say: they alarm by themselves, at half the rate.
        rare = score_threshold(max(LOWEST_RATE, rate / 2), reward=False, grad_norm=False)
        unheard = {name: share / rare for name, share in gaps.items()} | dict.fromkeys(told, 0.0)
        shares = max(shares, unheard, key=lambda item: sum(item.values()))
    signature = _signature(values, baseline)
    if signature is not None:
        beyond = max(0.0, signature - settings.signature_band) if level > NOISE_EFOLDS else 0.0
        shares["signature"] = beyond / settings.signature_scale
    raw = sum(gaps.values()) + sum(told.values())
    return Score(sum(shares.values()), level, shares, sum(gaps.values()) / alone, raw)


def _told(
    settings: ScoreSettings, values: Mapping[str, float | None], baseline: Mapping[str, float], history: History
) -> dict[str, float]:
    """What the trainer's own signals add, in e-folds; a signal that was not sent is not there."""
    shortfall, growth = _shortfall(values.get(REWARD), history), _growth(values, baseline)
    told = {}
    if shortfall is not None:
        told[REWARD] = settings.reward_weight * max(0.0, shortfall)
    if growth is not None:
        told[GRAD_NORM] = settings.grad_norm_weight * max(0.0, growth)
    return told


def _signature(values: Mapping[str, float | None], baseline: Mapping[str, float]) -> float | None:
    """Growth of direction, concentration and persistence over their normal; None where one is not known."""
    growth = {
        name: math.log(now / normal)
        for name in _SIGNATURE
        if (now := values.get(name)) and (normal := baseline.get(name))
    }
    error = values.get("log_rho_se")
    if len(growth) < len(_SIGNATURE) or error is None:
        return None
    direction, *parts = growth.values()
    crowding = sum(max(0.0, item) for item in parts)
    return max(0.0, abs(direction) - NORMAL_95 * error) + crowding if crowding > NOISE_EFOLDS else 0.0


def _shortfall(reward: float | None, history: History) -> float | None:
    """1 - reward / best; None where a reward is unknown, or its best is not well above 0 and its own noise: of rewards
    that are centred or normalised a share of the best says nothing."""
    best = history.best_reward
    if reward is None or best is None or best <= 0 or best < CLEAR_OF_NOISE * history.reward_noise:
        return None
    return 1.0 - reward / best


def _growth(values: Mapping[str, float | None], baseline: Mapping[str, float]) -> float | None:
    now, normal = values.get(GRAD_NORM), baseline.get(GRAD_NORM)
    return None if not now or not normal else math.log(now / normal)
