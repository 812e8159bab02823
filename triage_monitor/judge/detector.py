"""Indicator history in, stage out: four rules on trailing windows, each a count of sustained criteria.

    drift         the early-warning score (`score`) is half way to the alarm
    pre_terminal  the score is at the alarm: the threshold whose rate of false alarms the user chose
    terminal      the bulk of the distribution has moved (q0.05, mean gap, share near zero), or the reward has fallen
                  below half of its best while the gaps alone are out; latches until `clear` or a new attempt
    healthy       none of these, on enough data, with a baseline

Rules, terms and levels are configuration (`defaults`), chosen on the benchmark's development runs. Direction alone
raises an alarm of its own (`notices`), never a stage.

Without a verdict: `warming_up` (too few tokens, responses or updates, no baseline yet) and `not_observable` (learner
and sampler are one array, a named cause makes the newest gaps no basis, or too many tokens have none). Neither forgets
what the rules had counted, neither hides a latched `terminal`; the next sound update is judged, on sound ones only.
Pure: no clock, no I/O. Leaves out which causes those are (`causes`) and what to do about a stage (`policy`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from triage_monitor.judge.baseline import MAD_TO_SIGMA, Baseline, forget_from, learn
from triage_monitor.judge.defaults import DetectorSettings, MinimumData, is_material
from triage_monitor.judge.observation import Observation, direction_numbers
from triage_monitor.judge.rules import Hysteresis, HysteresisState, Reading, RuleState, evidence_of
from triage_monitor.judge.score import REWARD, SCORE, TREND_UPDATES, History, Score, early_warning
from triage_monitor.judge.stages import Stage, Transition


@dataclass(frozen=True, slots=True)
class DetectorState:
    """Everything a detector remembers. JSON-able both ways; floats survive exactly."""

    stage: Stage = Stage.WARMING_UP
    why: str = "no_data"
    attempt: int = 0
    latched: bool = False
    latched_by: str = ""
    best_reward: float | None = None
    baseline: Baseline = field(default_factory=Baseline)
    drift: RuleState = field(default_factory=RuleState)
    pre_terminal: RuleState = field(default_factory=RuleState)
    terminal: RuleState = field(default_factory=RuleState)
    reward: HysteresisState = field(default_factory=HysteresisState)
    levels: tuple[float | None, ...] = ()  # the score's level of the newest judged windows, for its trend
    score: Score | None = None  # of the newest window, if it was judged

    def to_dict(self) -> dict[str, Any]:
        return {
            "stage": self.stage.value,
            "why": self.why,
            "attempt": self.attempt,
            "latched": self.latched,
            "latched_by": self.latched_by,
            "best_reward": self.best_reward,
            "baseline": self.baseline.to_dict(),
            "drift": self.drift.to_dict(),
            "pre_terminal": self.pre_terminal.to_dict(),
            "terminal": self.terminal.to_dict(),
            "reward": [self.reward.inside, self.reward.streak],
            "levels": list(self.levels),
            "score": None if self.score is None else self.score.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DetectorState:
        return cls(
            stage=Stage(data["stage"]),
            why=data["why"],
            attempt=data["attempt"],
            latched=data["latched"],
            latched_by=data["latched_by"],
            best_reward=data["best_reward"],
            baseline=Baseline.from_dict(data["baseline"]),
            drift=RuleState.from_dict(data["drift"]),
            pre_terminal=RuleState.from_dict(data["pre_terminal"]),
            terminal=RuleState.from_dict(data["terminal"]),
            reward=HysteresisState(*data["reward"]),
            levels=tuple(data.get("levels", ())),
            score=Score(**data["score"]) if data.get("score") else None,
        )


def detect(
    settings: DetectorSettings, state: DetectorState, seen: Observation, learned: tuple[str, ...] | None = None
) -> tuple[DetectorState, Transition | None]:
    """Judges one more window. `learned` names the indicators to keep a baseline of (default: the rules' own)."""
    before = state.stage
    state, cause = _begin_attempt(settings, state, seen)
    state = _judge(settings, state, seen, settings.learned() if learned is None else learned)
    if state.stage is before:
        return state, None
    return state, _transition(settings, state, seen, before, cause)


def clear(state: DetectorState, step: int) -> tuple[DetectorState, Transition | None]:
    """An operator's word that a latched `terminal` is over. Counting starts anew; baseline and best reward stay."""
    if not state.latched:
        return state, None
    kept = replace(_forget_counts(state), stage=Stage.WARMING_UP, why="cleared")
    text = "an operator cleared the terminal stage"
    return kept, Transition(step, state.attempt, state.stage, kept.stage, "cleared", text)


def reset_baseline(state: DetectorState) -> DetectorState:
    """Learns the baseline and the best reward again from the next window on; a latched stage stays latched."""
    kept = _forget_counts(state)
    return replace(kept, baseline=Baseline(), best_reward=None, latched=state.latched, latched_by=state.latched_by)


def _forget_counts(state: DetectorState) -> DetectorState:
    return replace(
        state,
        latched=False,
        latched_by="",
        drift=RuleState(),
        pre_terminal=RuleState(),
        terminal=RuleState(),
        reward=HysteresisState(),
        levels=(),
        score=None,
    )


def _begin_attempt(settings: DetectorSettings, state: DetectorState, seen: Observation) -> tuple[DetectorState, str]:
    if seen.attempt <= state.attempt:
        return state, ""
    kept = forget_from(settings.baseline, state.baseline, seen.step)
    return replace(_forget_counts(state), attempt=seen.attempt, baseline=kept), "new_attempt"


def _judge(
    settings: DetectorSettings, state: DetectorState, seen: Observation, learned: tuple[str, ...]
) -> DetectorState:
    state = replace(state, score=None)
    no_basis = _no_basis(settings.minimum, seen)
    if no_basis:
        return _withhold(state, Stage.NOT_OBSERVABLE, no_basis)
    lacking = _lacking(settings.minimum, seen)
    if lacking:
        return _withhold(state, Stage.WARMING_UP, lacking)
    state = _advance_rules(settings, state, seen)
    alarmed = settings.drift.holds(state.drift) or settings.pre_terminal.holds(state.pre_terminal) or state.latched
    values = {name: seen.values.get(name) for name in learned}
    baseline = learn(
        settings.baseline,
        state.baseline,
        step=seen.step,
        updates=seen.updates,
        values=values,
        healthy=_is_unmixed(seen) and not alarmed,
    )
    state = replace(state, baseline=baseline)
    if not baseline.ready:
        return _withhold(state, Stage.WARMING_UP, "no_healthy_baseline" if baseline.frozen else "learning_baseline")
    return _settle(settings, state)


def _withhold(state: DetectorState, stage: Stage, why: str) -> DetectorState:
    return replace(state, stage=Stage.TERMINAL if state.latched else stage, why=why)


def _no_basis(minimum: MinimumData, seen: Observation) -> str:
    """Why the newest gaps are no basis for a verdict, as a slug; empty when they are one."""
    if not seen.observable:
        return "gaps_exactly_zero"
    if seen.blinded_by:
        return seen.blinded_by
    return "too_many_unusable_tokens" if seen.unusable_ratio > minimum.max_unusable_ratio else ""


def _lacking(minimum: MinimumData, seen: Observation) -> str:
    """Why there is not enough to judge on, as a slug; empty when there is."""
    if min(seen.updates, seen.fresh_updates) < minimum.updates:
        return "too_few_updates"
    if seen.responses < minimum.responses:
        return "too_few_responses"
    return "too_few_tokens" if seen.tokens < minimum.tokens else ""


def _advance_rules(settings: DetectorSettings, state: DetectorState, seen: Observation) -> DetectorState:
    medians = state.baseline.medians()
    material = is_material(seen.values, settings.material_tail_nats)
    score = _score(settings, state, seen)
    values = {**seen.values, SCORE: None if score is None else score.value}
    drift = settings.drift.advance(state.drift, values, medians, material=material)
    pre_terminal = settings.pre_terminal.advance(state.pre_terminal, values, medians, material=material)
    terminal, best, reward = state.terminal, state.best_reward, state.reward
    if _is_unmixed(seen):  # what an older attempt left in the window must not latch the new one, which may be its cure
        terminal = settings.terminal.advance(terminal, values, medians)
        best, reward = _reward(settings, state, seen, elevated=mismatch_is_out(settings, score, material))
    latched_by = state.latched_by
    if not state.latched and settings.terminal.holds(terminal):
        latched_by = "terminal_magnitude"
    elif not state.latched and reward.inside:
        latched_by = "terminal_reward"
    return replace(
        state,
        drift=drift,
        pre_terminal=pre_terminal,
        terminal=terminal,
        reward=reward,
        best_reward=best,
        latched=bool(latched_by),
        latched_by=latched_by,
        levels=(*state.levels, None if score is None else score.level)[-TREND_UPDATES:],
        score=score,
    )


def _is_unmixed(seen: Observation) -> bool:
    """No older attempt is left in the window."""
    return seen.fresh_updates >= seen.updates


def mismatch_is_out(settings: DetectorSettings, score: Score | None, material: bool) -> bool:
    """Whether the gaps themselves, without reward and gradient norm, are most of the way to an alarm."""
    return material and score is not None and score.mismatch >= settings.elevated_mismatch


def _score(settings: DetectorSettings, state: DetectorState, seen: Observation) -> Score | None:
    reward = state.baseline.levels.get(REWARD)
    noise = 0.0 if reward is None else MAD_TO_SIGMA * reward.mad
    history = History(state.levels[0] if len(state.levels) == TREND_UPDATES else None, state.best_reward, noise)
    return early_warning(
        settings.score, seen.values, state.baseline.medians(), history, settings.alarms_per_1000_updates
    )


def _reward(
    settings: DetectorSettings, state: DetectorState, seen: Observation, *, elevated: bool
) -> tuple[float | None, HysteresisState]:
    """Best window reward so far, and whether reward is far below it while the mismatch is out of its baseline."""
    now, best = seen.values.get("reward_mean"), state.best_reward
    if now is None:
        return best, state.reward
    best = now if best is None else max(best, now)
    shortfall = 1.0 - now / best if elevated and best > 0 else 0.0
    rule = settings.reward
    gate = Hysteresis(rule.shortfall, rule.leave, rule.enter_updates, rule.leave_updates)
    return best, gate.advance(state.reward, shortfall)


def _settle(settings: DetectorSettings, state: DetectorState) -> DetectorState:
    if state.latched:
        return replace(state, stage=Stage.TERMINAL, why=state.latched_by)
    if settings.pre_terminal.holds(state.pre_terminal):
        return replace(state, stage=Stage.PRE_TERMINAL, why="pre_terminal")
    if settings.drift.holds(state.drift):
        return replace(state, stage=Stage.DRIFT, why="drift")
    rules = (state.drift, state.pre_terminal, state.terminal)
    if state.stage in (Stage.WARMING_UP, Stage.NOT_OBSERVABLE) and any(item.on_its_way_in for item in rules):
        return replace(state, stage=Stage.WARMING_UP, why="undecided")
    return replace(state, stage=Stage.HEALTHY, why="calm")


def _deciding(settings: DetectorSettings, state: DetectorState) -> tuple[Reading, ...]:
    """The readings that carry the present stage; the ones that stayed calm when it is `healthy`."""
    if state.stage is Stage.TERMINAL and state.why == "terminal_magnitude":
        return settings.terminal.holding(state.terminal)
    if state.stage is Stage.PRE_TERMINAL:
        return settings.pre_terminal.holding(state.pre_terminal)
    if state.stage in (Stage.DRIFT, Stage.TERMINAL):
        return settings.drift.holding(state.drift)
    return state.drift.readings if state.stage is Stage.HEALTHY else ()


def _transition(
    settings: DetectorSettings, state: DetectorState, seen: Observation, before: Stage, cause: str
) -> Transition:
    readings = [item for item in _deciding(settings, state) if item.strength is not None]
    evidence = evidence_of(readings)
    if state.score is not None and SCORE in evidence:
        evidence[SCORE] |= state.score.shares
    reward, best = seen.values.get("reward_mean"), state.best_reward
    if reward is not None and best is not None:
        evidence["reward_mean"] = {"value": reward, "best": best}
    direction = direction_numbers(seen.values)
    if direction:
        evidence["rho_asym"] = direction
    evidence["window"] = {
        "updates": float(seen.updates),
        "responses": float(seen.responses),
        "tokens": float(seen.tokens),
        "unusable_ratio": seen.unusable_ratio,
    }
    clauses = [
        state.score.words() if item.criterion.indicator == SCORE and state.score is not None else item.words()
        for item in readings
    ]
    if state.why == "terminal_reward" and reward is not None and best is not None:
        clauses.insert(0, f"reward {reward:.3g} has fallen far below its best {best:.3g}")
    rule = f"{cause}, {state.why}" if cause else state.why
    text = "; ".join(clauses) if clauses else rule.replace("_", " ")
    return Transition(seen.step, seen.attempt, before, state.stage, rule, text, evidence)
