"""Conditions worth a sentence that are not a stage: they change nothing.

    directional_imbalance  rho_asym at least `ratio` (or at most 1 / ratio) with its 95% interval on that side of 1:
                           an effect size and a bound together, never a bound alone. An alarm when rho_excess leaves
                           direction in it; a mere notice when it is the sign odds or the lengths of the responses
    one_sided              asym_share is 0 or 1, so rho_asym has no value: name a constant offset before a direction
    unusable_tokens        the window holds missing or non-finite gaps
    unsettled_baseline     a leading indicator grew while the baseline was learned: multiples of it will warn late
    unhealthy_start        while the baseline is learned, the gaps lie far above a healthy start of that precision
    reward_falling         reward is well below its best while no leading indicator is out of its baseline: look at what
                           was changed in training (a gate, a cap, a schedule), not at the numerics

Each has its own hysteresis, counted in updates. An undefined rho raises none of them and ends none of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from triage_monitor.errors import ConfigError
from triage_monitor.judge.baseline import Baseline
from triage_monitor.judge.observation import Observation, direction_numbers
from triage_monitor.judge.priors import far_above_prior
from triage_monitor.judge.rules import Hysteresis, HysteresisState
from triage_monitor.judge.score import Term
from triage_monitor.judge.stages import ALARM, NOTICE, Evidence, Notice

KINDS = (
    "directional_imbalance",
    "one_sided",
    "unusable_tokens",
    "unsettled_baseline",
    "unhealthy_start",
    "reward_falling",
)
FACTORS = ("rho_excess", "advantage_mass_ratio", "sign_odds_blind")


@dataclass(frozen=True, slots=True)
class NoticeSettings:
    """`ratio` and `leave_ratio` are on rho_asym, the shortfalls on 1 - reward / best reward."""

    ratio: float = 1.25
    leave_ratio: float = 1.15
    excess_band: float = 1.1  # rho_excess within [1 / band, band]: no direction of its own
    unsettled_ratio: float = 1.25  # last third of the learned windows over the first
    reward_shortfall: float = 0.25
    reward_leave: float = 0.15
    enter_updates: int = 5
    leave_updates: int = 10

    def __post_init__(self) -> None:
        if not 1.0 < self.leave_ratio <= self.ratio or min(self.excess_band, self.unsettled_ratio) < 1.0:
            raise ConfigError("1 < leave_ratio <= ratio, excess_band >= 1 and unsettled_ratio >= 1 must hold")
        Hysteresis(self.reward_shortfall, self.reward_leave, self.enter_updates, self.leave_updates)


@dataclass(frozen=True, slots=True)
class NoticeState:
    gates: Mapping[str, HysteresisState] = field(default_factory=dict)
    since: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        gates = {kind: [item.inside, item.streak] for kind, item in self.gates.items()}
        return {"gates": gates, "since": dict(self.since)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NoticeState:
        gates = {kind: HysteresisState(inside, streak) for kind, (inside, streak) in data["gates"].items()}
        return cls(gates, data["since"])


def notice(
    settings: NoticeSettings,
    state: NoticeState,
    seen: Observation,
    *,
    judged: bool,
    elevated: bool,
    best_reward: float | None,
    learning: bool = False,
    growth: Mapping[str, float] | None = None,
) -> tuple[NoticeState, tuple[Notice, ...]]:
    """Notices that hold after one more window. Not `judged` (too little data): directions keep their state.

    `learning`: the baseline is not frozen yet. `growth` is `baseline_growth` of a frozen one.
    """
    reward = seen.values.get("reward_mean")
    shortfall = None if reward is None else 0.0 if elevated else _shortfall(reward, best_reward)
    growing = max(growth.values(), default=1.0) if growth else None
    enter, leave = settings.enter_updates, settings.leave_updates
    measured = {
        "directional_imbalance": (
            Hysteresis(settings.ratio, settings.leave_ratio, enter, leave),
            imbalance(seen.values) if judged else None,
        ),
        "one_sided": (Hysteresis(0.5, 0.5, enter, leave), _one_sided(seen.values) if judged else None),
        "unusable_tokens": (Hysteresis(0.5, 0.5, 1, 1), float(seen.unusable_tokens > 0)),
        "unsettled_baseline": (Hysteresis(settings.unsettled_ratio, settings.unsettled_ratio, 1, 1), growing),
        "unhealthy_start": (
            Hysteresis(0.5, 0.5, enter, 1),
            float(learning and seen.observable and bool(far_above_prior(seen.precision, seen.values))),
        ),
        "reward_falling": (Hysteresis(settings.reward_shortfall, settings.reward_leave, enter, leave), shortfall),
    }
    gates = {
        kind: gate.advance(state.gates.get(kind, HysteresisState()), value) for kind, (gate, value) in measured.items()
    }
    since = {kind: state.since.get(kind, seen.step) for kind in KINDS if gates[kind].inside}
    said = tuple(_say(settings, kind, since[kind], seen, best_reward, growth or {}) for kind in since)
    return NoticeState(gates, since), said


def imbalance(values: Mapping[str, float | None]) -> float | None:
    """rho_asym or its inverse, whichever is above 1, if the 95% interval excludes 1; else 1. None when rho has none."""
    numbers = direction_numbers(values)
    if "low" not in numbers:
        return None
    sure = numbers["low"] > 1.0 or numbers["high"] < 1.0
    return max(numbers["value"], 1.0 / numbers["value"]) if sure else 1.0


def _one_sided(values: Mapping[str, float | None]) -> float | None:
    share = values.get("asym_share")
    return None if share is None else float(share in (0.0, 1.0))


def _shortfall(reward: float, best: float | None) -> float:
    return 1.0 - reward / best if best is not None and best > 0 else 0.0


def baseline_growth(terms: Iterable[Term], baseline: Baseline) -> dict[str, float]:
    """Growth of each of the score's indicators between the first and last third of a frozen baseline."""
    known = {term: level for term in terms if (level := baseline.levels.get(term.indicator)) is not None}
    return {
        term.indicator: math.exp(term.efolds(level.late, level.early))
        for term, level in known.items()
        if baseline.frozen
    }


def _say(
    settings: NoticeSettings,
    kind: str,
    since: int,
    seen: Observation,
    best_reward: float | None,
    growth: Mapping[str, float],
) -> Notice:
    if kind == "directional_imbalance":
        return _say_direction(settings, since, seen.values)
    if kind == "one_sided":
        share = seen.values.get("asym_share")
        evidence = {} if share is None else {"asym_share": {"value": share}}
        text = "all amplifying mass is on one side, rho_asym has no value; look for a constant offset of the gap first"
        return Notice(kind, since, text, evidence)
    if kind == "unusable_tokens":
        text = f"{seen.unusable_tokens} tokens of the window have no usable gap ({seen.unusable_ratio:.2%})"
        return Notice(kind, since, text, {"unusable_tokens": {"value": float(seen.unusable_tokens)}})
    if kind == "unsettled_baseline":
        grown = {name: ratio for name, ratio in growth.items() if ratio > settings.unsettled_ratio}
        words = ", ".join(f"{name} {ratio:.2f} times" for name, ratio in grown.items())
        text = f"still rising while the baseline was learned ({words}): multiples of it warn late"
        return Notice(kind, since, text, {name: {"ratio": ratio} for name, ratio in grown.items()})
    if kind == "unhealthy_start":
        beyond = far_above_prior(seen.precision, seen.values)
        words = ", ".join(f"{name} {item['value']:.3g} against {item['level']:.3g}" for name, item in beyond.items())
        text = f"the run starts far above a healthy {seen.precision} start ({words}): its baseline may be a sick one"
        return Notice(kind, since, text, beyond)
    reward = seen.values.get("reward_mean")
    numbers = {name: value for name, value in (("value", reward), ("best", best_reward)) if value is not None}
    words = " of ".join(f"{value:.3g}" for value in numbers.values())
    text = f"reward stands at {words} while the mismatch is at its baseline: look at what training changed"
    return Notice(kind, since, text, {"reward_mean": numbers})


def _say_direction(settings: NoticeSettings, since: int, values: Mapping[str, float | None]) -> Notice:
    numbers = direction_numbers(values)
    evidence: Evidence = {"rho_asym": numbers}
    evidence |= {name: {"value": value} for name in FACTORS if (value := values.get(name)) is not None}
    if not numbers:
        return Notice("directional_imbalance", since, "rho_asym is not defined in this window", evidence)
    interval = f" [{numbers['low']:.3g}, {numbers['high']:.3g}]" if "low" in numbers else ""
    side = "negative" if numbers["value"] > 1 else "positive"
    head = f"rho_asym {numbers['value']:.3g}{interval}: amplifying mass leans to the {side}-advantage side"
    severity = ALARM if _has_direction(settings, values) else NOTICE
    return Notice("directional_imbalance", since, f"{head}; {_content(settings, values)}", evidence, severity)


def _has_direction(settings: NoticeSettings, values: Mapping[str, float | None]) -> bool:
    excess = values.get("rho_excess")
    return excess is not None and excess > 0 and abs(math.log(excess)) > math.log(settings.excess_band)


def _content(settings: NoticeSettings, values: Mapping[str, float | None]) -> str:
    """What the imbalance is made of, by rho_excess and its two factors."""
    excess = values.get("rho_excess")
    if excess is None or excess <= 0:
        return "rho_excess is not defined, so how much of it is direction is unknown"
    if _has_direction(settings, values):
        return f"rho_excess {excess:.3g}: direction beyond sign odds and lengths"
    lengths, odds = values.get("advantage_mass_ratio"), values.get("sign_odds_blind")
    if lengths is None or odds is None or lengths <= 0 or odds <= 0:
        return f"rho_excess {excess:.3g}: no direction of its own"
    by_lengths = abs(math.log(lengths)) > abs(math.log(odds))
    cause = f"the length ratio ({lengths:.3g})" if by_lengths else f"the sign odds of the gap ({odds:.3g})"
    return f"rho_excess {excess:.3g}: no direction of its own, it is {cause}"
