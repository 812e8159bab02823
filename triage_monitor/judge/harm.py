"""Did an action help or harm: what is measured since, against what the updates before it foretold.

    forecast   of each watched indicator, from the newest `history_updates` updates before the action: Theil-Sen line,
               noise = 1.4826 * median abs residual. A trend counts only when it is larger than `trend_errors` times its
               own standard error and runs towards the worse: no improvement is taken for granted
    since      the median of the newest updates of a trial of `trial_updates`, without its first `settle_updates`
    worse      since - forecast, in the indicator's own scale and signed so that up is worse; its error is that of both
    harmed     the reward is worse by `errors` errors and by its `material` amount; or two mismatch measures are, and
               none is better
    helped     a mismatch measure or the reward is better by as much, and not harmed
    neutral    neither

Per-update values and medians, not the trailing window: a window of 25 updates would still hold mostly updates from
before the action when the verdict is due. Everything is read from raw gaps. Leaves out what to do about a verdict
(`policy`), and what a longer horizon would show: the forecast is carried no further than one trial.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from triage_monitor.errors import ConfigError
from triage_monitor.judge.defaults import ENERGY_FLOOR, TAIL_FLOOR_NATS
from triage_monitor.judge.stages import Evidence

MAD_TO_SIGMA = 1.4826
MEDIAN_TO_MEAN_ERROR = 1.2533  # standard error of a median over that of a mean, normal noise


class Scale(StrEnum):
    VALUE = "value"
    LOG = "log"  # log x
    LOG_DEPTH = "log_depth"  # log -x: a lower-tail quantile in nats


@dataclass(frozen=True, slots=True)
class Watch:
    """One indicator. `material` is the smallest change that matters, in its scale (log 1.5 = 0.41), or as a share of
    the value expected when `relative`. `floor` (log scales): anything smaller reads as this. `falls`: less is worse.
    `decides`: this one alone makes a verdict of harm.
    """

    indicator: str
    material: float
    scale: Scale = Scale.VALUE
    floor: float = 0.0
    falls: bool = False
    relative: bool = False
    decides: bool = False

    def __post_init__(self) -> None:
        if self.material < 0:
            raise ConfigError(f"{self.indicator}: material must not be negative")
        if self.scale is not Scale.VALUE and not self.floor > 0:
            raise ConfigError(f"{self.indicator}: a log scale needs a floor above 0")

    def read(self, values: Mapping[str, float | None]) -> float | None:
        """The value in this scale, up is worse; None when it is absent."""
        value = values.get(self.indicator)
        if value is None:
            return None
        if self.scale is not Scale.VALUE:
            value = math.log(max(value if self.scale is Scale.LOG else -value, self.floor))
        return -value if self.falls else value

    def shown(self, measured: float) -> float:
        """Back from the scale, up-is-worse, to the indicator's own unit."""
        value = -measured if self.falls else measured
        if self.scale is Scale.VALUE:
            return value
        return math.exp(value) if self.scale is Scale.LOG else -math.exp(value)


WATCHES = (
    Watch("reward_mean", 0.07, falls=True, relative=True, decides=True),
    Watch("mismatch_energy", 0.4, Scale.LOG, ENERGY_FLOOR),
    Watch("q0.001_all", 0.2, Scale.LOG_DEPTH, TAIL_FLOOR_NATS),
    Watch("amplification_balance", 0.1),
)


@dataclass(frozen=True, slots=True)
class HarmSettings:
    watches: tuple[Watch, ...] = WATCHES
    history_updates: int = 25
    min_history: int = 10
    settle_updates: int = 4
    trial_updates: int = 20
    errors: float = 3.0
    trend_errors: float = 2.0

    def __post_init__(self) -> None:
        if self.min_history < 5 or self.history_updates < self.min_history:
            raise ConfigError("min_history must be at least 5 and history_updates no smaller")
        if self.settle_updates < 0 or self.trial_updates < self.settle_updates + 5:
            raise ConfigError("trial_updates must be at least settle_updates + 5")
        if self.errors <= 0 or self.trend_errors <= 0:
            raise ConfigError("errors and trend_errors must be above 0")
        names = [item.indicator for item in self.watches]  # one history each
        if len(names) != len(set(names)):
            raise ConfigError("an indicator is watched once")

    @property
    def judged_updates(self) -> int:
        return self.trial_updates - self.settle_updates

    @property
    def kept(self) -> int:
        """Values of each indicator that are remembered."""
        return max(self.history_updates, self.judged_updates)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A line through the updates before an action, in up-is-worse scale: `level` is its value at the action."""

    level: float
    slope: float  # per update; 0 when no worsening trend was sure
    noise: float
    count: int

    def to_list(self) -> list[float]:
        return [self.level, self.slope, self.noise, self.count]

    def at(self, updates: float) -> float:
        return self.level + self.slope * updates

    def error(self, count: int) -> float:
        """Standard error of the difference to the median of `count` later values."""
        return MEDIAN_TO_MEAN_ERROR * self.noise * math.sqrt(1 / self.count + 1 / count)


def forecast(settings: HarmSettings, values: Sequence[float]) -> Forecast | None:
    """From values oldest first, one an update; None when they are too few."""
    kept = list(values)[-settings.history_updates :]
    count = len(kept)
    if count < settings.min_history:
        return None
    slope = median((kept[j] - kept[i]) / (j - i) for i in range(count) for j in range(i + 1, count))
    noise = _noise([value - slope * index for index, value in enumerate(kept)])
    error = noise * math.sqrt(12.0 / count**3)
    if not slope > settings.trend_errors * error:
        return Forecast(median(kept), 0.0, _noise(kept), count)
    level = median(value + slope * (count - 1 - index) for index, value in enumerate(kept))
    return Forecast(level, slope, noise, count)


def _noise(values: Sequence[float]) -> float:
    middle = median(values)
    return MAD_TO_SIGMA * median(abs(value - middle) for value in values)


class Verdict(StrEnum):
    HELPED = "helped"
    NEUTRAL = "neutral"
    HARMED = "harmed"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One watched indicator since the action, beside its forecast; `worse` and `error` in its scale."""

    watch: Watch
    value: float
    expected: float
    worse: float
    error: float
    sign: int  # 1 worse, -1 better, 0 neither, by `errors` errors and the material amount

    def numbers(self) -> dict[str, float]:
        shown = self.watch.shown
        return {"value": shown(self.value), "expected": shown(self.expected), "worse": self.worse, "error": self.error}

    def words(self) -> str:
        shown = self.watch.shown
        return f"{self.watch.indicator} {shown(self.value):.3g} where {shown(self.expected):.3g} was expected"


@dataclass(frozen=True, slots=True)
class Judged:
    verdict: Verdict
    comparisons: tuple[Comparison, ...]

    def evidence(self) -> Evidence:
        return {item.watch.indicator: item.numbers() for item in self.comparisons}

    def words(self) -> str:
        deciding = [item for item in self.comparisons if item.sign] or list(self.comparisons)
        return f"{self.verdict}: " + "; ".join(item.words() for item in deciding)


def judge(
    settings: HarmSettings, before: Mapping[str, Forecast], since: Mapping[str, Sequence[float]]
) -> Judged | None:
    """`since`: settled values, oldest first, in up-is-worse scale. None while none of them fills a trial."""
    found = []
    for watch in settings.watches:
        values, line = since.get(watch.indicator, ()), before.get(watch.indicator)
        if line is not None and len(values) >= settings.judged_updates:
            found.append(_compare(settings, watch, line, values[-settings.judged_updates :]))
    if not found:
        return None
    return Judged(_verdict(found), tuple(found))


def _compare(settings: HarmSettings, watch: Watch, before: Forecast, values: Sequence[float]) -> Comparison:
    expected = before.at(settings.settle_updates + len(values) / 2)
    value, error = median(values), before.error(len(values))
    worse = value - expected
    needed = max(settings.errors * error, watch.material * (abs(expected) if watch.relative else 1.0))
    sign = 1 if worse > needed else -1 if worse < -needed else 0
    return Comparison(watch, value, expected, worse, error, sign)


def _verdict(found: Sequence[Comparison]) -> Verdict:
    worse = [item for item in found if item.sign > 0]
    better = [item for item in found if item.sign < 0]
    if any(item.watch.decides for item in worse):
        return Verdict.HARMED
    if len(worse) >= 2 and not better:
        return Verdict.HARMED
    return Verdict.HELPED if better else Verdict.NEUTRAL
