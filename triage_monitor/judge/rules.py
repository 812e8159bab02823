"""The pieces every decision is made of: a criterion on one indicator, and a rule that counts sustained criteria.

A `Criterion` turns an indicator into a strength: `take` of its value, divided by `take` of the run's own baseline
(form `rel`, the baseline never below `floor`) or as it is (form `abs`). `Hysteresis` enters after `enter_updates`
consecutive strengths above `enter` and leaves after `leave_updates` consecutive ones below a lower `leave`. A `Rule`
holds while at least `votes` different indicators are inside. An absent value changes nothing: what is not known is
neither trouble nor calm.

Pure: states are values, `advance` returns the next one. Knows neither stages nor parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from triage_monitor.errors import ConfigError
from triage_monitor.judge.stages import Evidence


class Take(StrEnum):
    """How an indicator becomes a quantity that grows with trouble. All are monotone, so a median commutes with them."""

    VALUE = "value"
    NEGATIVE = "negative"  # max(0, -x): a lower-tail quantile in nats
    COMPLEMENT = "complement"  # 1 - x: a share

    def of(self, value: float) -> float:
        if self is Take.NEGATIVE:
            return max(0.0, -value)
        return 1.0 - value if self is Take.COMPLEMENT else value


class Form(StrEnum):
    REL = "rel"
    ABS = "abs"


@dataclass(frozen=True, slots=True)
class HysteresisState:
    inside: bool = False
    streak: int = 0  # consecutive updates towards the other side


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """Enter above `enter` for `enter_updates` in a row; leave below `leave` for `leave_updates` in a row."""

    enter: float
    leave: float
    enter_updates: int
    leave_updates: int

    def __post_init__(self) -> None:
        if self.leave > self.enter:
            raise ConfigError(f"the leaving level {self.leave} is above the entering level {self.enter}")
        if self.enter_updates < 1 or self.leave_updates < 1:
            raise ConfigError("enter_updates and leave_updates must be at least 1")

    def advance(self, state: HysteresisState, value: float | None) -> HysteresisState:
        if value is None:
            return state
        towards = value < self.leave if state.inside else value > self.enter
        needed = self.leave_updates if state.inside else self.enter_updates
        streak = state.streak + 1 if towards else 0
        if streak >= needed:
            return HysteresisState(inside=not state.inside)
        return replace(state, streak=streak)


@dataclass(frozen=True, slots=True)
class Criterion:
    """One indicator against one level. `level` and `leave` are multiples of the baseline (rel) or values (abs)."""

    indicator: str
    level: float
    leave: float
    form: Form = Form.REL
    take: Take = Take.VALUE
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.leave > self.level:
            raise ConfigError(f"{self.indicator}: leave {self.leave} is above level {self.level}")

    @property
    def key(self) -> str:
        """Names this criterion's state; a changed level starts afresh."""
        return f"{self.indicator}/{self.take}/{self.form}/{self.level:g}"

    def read(self, values: Mapping[str, float | None], baseline: Mapping[str, float]) -> Reading:
        value = values.get(self.indicator)
        if value is None or self.form is Form.ABS:
            return Reading(self, value, None, None if value is None else self.take.of(value))
        reference = baseline.get(self.indicator)
        unit = 0.0 if reference is None else max(self.take.of(reference), self.floor)
        return Reading(self, value, reference, self.take.of(value) / unit if unit > 0 else None)


@dataclass(frozen=True, slots=True)
class Reading:
    """A criterion read on one window."""

    criterion: Criterion
    value: float | None
    baseline: float | None
    strength: float | None

    def numbers(self) -> dict[str, float]:
        named = {"value": self.value, "baseline": self.baseline, "level": self.criterion.level}
        if self.criterion.form is Form.REL:
            named["ratio"] = self.strength
        return {name: number for name, number in named.items() if number is not None}

    def words(self) -> str:
        """The reading as a clause: `q0.001_all -3.1 is 2.07 times its baseline -1.5 (level 1.5)`."""
        item = self.criterion
        if self.value is None or self.strength is None:
            return f"{item.indicator} is not defined"
        quantity = f"1 - {item.indicator}" if item.take is Take.COMPLEMENT else item.indicator
        shown = item.take.of(self.value) if item.take is Take.COMPLEMENT else self.value
        if self.baseline is None:
            return f"{quantity} {shown:.3g} (level {item.level:g})"
        unit = item.take.of(self.baseline) if item.take is Take.COMPLEMENT else self.baseline
        floor = "" if item.take.of(self.baseline) >= item.floor else f", taken as {item.floor:g}"
        ratio = f"{self.strength:.2f} times its baseline {unit:.3g}{floor}"
        return f"{quantity} {shown:.3g} is {ratio} (level {item.level:g})"


@dataclass(frozen=True, slots=True)
class Rule:
    """Holds while at least `votes` different indicators are sustained above their level."""

    criteria: tuple[Criterion, ...]
    votes: int = 1
    enter_updates: int = 5
    leave_updates: int = 10

    def __post_init__(self) -> None:
        named = {item.indicator for item in self.criteria}
        if not 1 <= self.votes <= len(named):
            raise ConfigError(f"votes {self.votes} must be between 1 and the number of indicators, {len(named)}")
        if self.enter_updates < 1 or self.leave_updates < 1:
            raise ConfigError("enter_updates and leave_updates must be at least 1")

    def advance(
        self,
        state: RuleState,
        values: Mapping[str, float | None],
        baseline: Mapping[str, float],
        *,
        material: bool = True,
    ) -> RuleState:
        """The next state. Not `material`, every strength reads as 0: a tail too short to matter may move."""
        inside: dict[str, HysteresisState] = {}
        readings = []
        for item in self.criteria:
            reading = item.read(values, baseline)
            gate = Hysteresis(item.level, item.leave, self.enter_updates, self.leave_updates)
            strength = reading.strength if material else 0.0
            inside[item.key] = gate.advance(state.inside.get(item.key, HysteresisState()), strength)
            readings.append(reading)
        return RuleState(inside, tuple(readings))

    def holding(self, state: RuleState) -> tuple[Reading, ...]:
        """The readings of the criteria that are inside now."""
        return tuple(item for item in state.readings if state.inside[item.criterion.key].inside)

    def holds(self, state: RuleState) -> bool:
        voting = {item.indicator for item in self.criteria if state.inside.get(item.key, HysteresisState()).inside}
        return len(voting) >= self.votes


@dataclass(frozen=True, slots=True)
class RuleState:
    """Per criterion its hysteresis, and the readings of the newest window (those are not stored)."""

    inside: Mapping[str, HysteresisState] = field(default_factory=dict)
    readings: tuple[Reading, ...] = ()

    @property
    def on_its_way_in(self) -> bool:
        """Whether a criterion is above its level but not yet for long enough."""
        return any(item.streak > 0 and not item.inside for item in self.inside.values())

    def to_dict(self) -> dict[str, Any]:
        return {key: [item.inside, item.streak] for key, item in self.inside.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RuleState:
        return cls({key: HysteresisState(inside, streak) for key, (inside, streak) in data.items()})


def evidence_of(readings: Iterable[Reading]) -> Evidence:
    """Numbers by indicator; a second criterion on the same indicator stands under its form."""
    evidence: Evidence = {}
    for item in readings:
        name = item.criterion.indicator
        evidence[name if name not in evidence else f"{name} ({item.criterion.form})"] = item.numbers()
    return evidence
