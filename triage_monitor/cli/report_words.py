"""A run's summary in sentences: stage, since when, by which rule, what the alarm was made of, what else explains it.

Pure: the document and the story of an analysis in, plain text out. It says nothing that the numbers do not: a ratio
whose interval holds 1 leans to no side, and a run that was never judged gets no verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from triage_monitor.cli.analysis import Story
from triage_monitor.judge.notices import NoticeSettings
from triage_monitor.judge.score import SCORE
from triage_monitor.judge.stages import Stage, Transition

ALARMS = (Stage.DRIFT, Stage.PRE_TERMINAL, Stage.TERMINAL)
SHARES = {
    "q0.001_neg": "deep tail of A < 0 tokens (q0.001)",
    "q0.001_pos": "deep tail of A > 0 tokens (q0.001)",
    "mismatch_energy": "mismatch energy",
    "abs_delta_mean": "mean |gap|",
    "masked_response_fraction": "unmasked responses",
    "rho_pressure": "pressure ratio",
    "trend": "trend over 25 updates",
    "reward_mean": "reward below its best",
    "grad_norm": "gradient norm above its baseline",
    "signature": "direction with crowding",
}
HEADLINES = {
    Stage.WARMING_UP: "No verdict yet: not enough is known of this run.",
    Stage.NOT_OBSERVABLE: "No verdict: the newest update's gaps are no basis for one.",
    Stage.HEALTHY: "At the end the mismatch is at this run's own normal.",
    Stage.DRIFT: "The mismatch is growing.",
    Stage.PRE_TERMINAL: "This run shows the early signs of a collapse.",
    Stage.TERMINAL: "This run was judged terminal.",
}
NORMAL = (0.8, 1.25)  # times its baseline: a mean that looks normal
NEGLIGIBLE_SHARE = 0.005


def stage_word(stage: str) -> str:
    return stage.replace("_", " ").replace("pre terminal", "pre-terminal")


def last_stage(document: Mapping[str, Any]) -> Stage:
    return Stage(document["windows"][-1]["stage"]) if document["windows"] else Stage.WARMING_UP


def first_alarm(story: Story) -> Transition | None:
    """The first pre-terminal or terminal verdict; a drift when that is all there was."""
    alarms = [item for item in story.transitions if item.to_stage in (Stage.PRE_TERMINAL, Stage.TERMINAL)]
    drifts = [item for item in story.transitions if item.to_stage is Stage.DRIFT]
    return next(iter(alarms or drifts), None)


def alarm_shares(transition: Transition) -> list[tuple[str, float]]:
    """What the score at this transition was made of, largest first; empty when the score did not decide."""
    told = transition.evidence.get(SCORE, {})
    shares = [(SHARES[name], value) for name, value in told.items() if name in SHARES]
    return sorted((item for item in shares if abs(item[1]) >= NEGLIGIBLE_SHARE), key=lambda item: -item[1])


def summary(document: Mapping[str, Any], story: Story) -> list[str]:
    """Sentences, the most important first."""
    if not document["windows"]:
        return ["The recording holds no update."]
    window = document["windows"][-1]
    parts = [_headline(document, story), *_alarm(story)]
    parts += [_direction(window), _averages(window, story), _excess(window)]
    parts += [f"{_kind(item.severity)} since update {item.since_step}: {item.text}." for item in story.notices]
    return [part for part in (*parts, _causes(document["findings"])) if part]


def _headline(document: Mapping[str, Any], story: Story) -> str:
    stage = last_stage(document)
    last = document["windows"][-1]
    entered = next((item for item in reversed(story.transitions) if item.to_stage is stage), None)
    since = f" since update {entered.step}" if entered is not None else ""
    why = f" The rule was '{words(entered.rule)}': {entered.text}." if entered is not None and stage in ALARMS else ""
    waiting = f" ({words(story.why)})" if story.why and stage not in ALARMS and stage is not Stage.HEALTHY else ""
    at = f" at update {last['step']}"
    return f"{HEADLINES[stage]} Stage {stage_word(stage.value)}{since}{waiting}, read{at}.{why}"


def _alarm(story: Story) -> Iterator[str]:
    alarm = first_alarm(story)
    if alarm is None:
        return
    shares = alarm_shares(alarm)
    name = stage_word(alarm.to_stage.value)
    if shares:
        score = alarm.evidence[SCORE]["value"]
        made = ", ".join(f"{term} {share:+.2f}" for term, share in shares)
        at = f"at update {alarm.step}, at a score of {score:.2f} (1 alarms)"
        yield f"The first {name} verdict came {at}, made of {made}."
    else:
        yield f"The first {name} verdict came at update {alarm.step} by another rule than the score: {alarm.text}."


def _direction(window: Mapping[str, Any]) -> str:
    values = window["indicators"]
    rho, low, high = (values.get(name) for name in ("rho_asym", "rho_asym_low", "rho_asym_high"))
    if rho is None or rho <= 0:
        reason = window["reasons"].get("rho_asym", "")
        return f"Which side amplifies the gap is not defined ({words(reason)})." if reason else ""
    known = low is not None and high is not None and low > 0
    if known and low <= 1 <= high:
        return f"Both sides amplify the gap alike: rho_asym {rho:.2f} [{low:.2f}, {high:.2f}]."
    sides = ("negative", "positive") if rho >= 1 else ("positive", "negative")
    times, ends = (rho, (low, high)) if rho >= 1 else (1 / rho, (1 / high, 1 / low) if known else (low, high))
    interval = f" (95% interval {ends[0]:.2f} to {ends[1]:.2f})" if known else ""
    ratio = f"{times:.2f} times as much as {sides[1]} ones{interval}"
    return f"In the last window {sides[0]}-advantage updates amplify the gap {ratio}."


def _averages(window: Mapping[str, Any], story: Story) -> str:
    now, normal = window["indicators"].get("abs_delta_mean"), story.normal.get("abs_delta_mean")
    if now is None or not normal:
        return ""
    grown = now / normal
    looks = "averages look normal: " if NORMAL[0] <= grown <= NORMAL[1] else ""
    text = f"{looks}the mean |gap| is {grown:.2f} times its baseline."
    return text[0].upper() + text[1:]


def _excess(window: Mapping[str, Any]) -> str:
    values = window["indicators"]
    left, low, high = (values.get(name) for name in ("rho_excess", "rho_asym_low", "rho_asym_high"))
    if not left or left <= 0 or (low is not None and high is not None and low <= 1 <= high):
        return ""
    band = NoticeSettings().excess_band
    if 1 / band <= left <= band:
        return f"Sign odds and response lengths explain that imbalance (rho_excess {left:.2f})."
    return f"Sign odds and response lengths do not explain that imbalance: rho_excess {left:.2f} is left."


def _causes(findings: list[Mapping[str, Any]]) -> str:
    if not findings:
        return "No other cause was found in the columns."
    named = [
        f"{words(item['cause'])} (from update {item['step']}, {item['confidence']} confidence)" for item in findings
    ]
    return f"What else the columns show: {'; '.join(named)}. The remedies are below."


def _kind(severity: str) -> str:
    return "Alarm" if severity == "alarm" else "Notice"


def words(slug: str) -> str:
    return slug.replace("_", " ")
