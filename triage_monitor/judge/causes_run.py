"""One run's causes, update by update: `CauseTracker.accept` returns what this update shows.

An update is diagnosed together with the ones before it until BASE_TOKENS tokens are looked at, within the window: small
updates lend each other evidence, large ones stand alone. Order of precedence: what explains a pattern keeps the causes
that only resemble it from being named; `undetermined` is said when nothing else is. Pure: a tracker fed with the same
updates and reports, or restored from them, says the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from triage_monitor.judge import causes_columns as columns
from triage_monitor.judge import causes_places as places
from triage_monitor.judge import causes_responses as responses
from triage_monitor.judge.causes import Finding
from triage_monitor.judge.causes_history import Trace, course, trace_of
from triage_monitor.judge.causes_table import CAUSE, UNDETERMINED
from triage_monitor.summary.symptoms import Symptoms, merge_symptoms

BASE_TOKENS = 2048
HEAD_STEPS, NEWEST = 30, 40  # traces kept: of the run's first steps, and of its newest updates

NONFINITE = ("nan", "pos_inf", "neg_inf")
TAIL_MAKERS = (
    *("token_misalignment", "temperature_mismatch", "raw_versus_processed_logprobs"),
    *("dummy_tokens", "retokenised_turn_borders", "appended_tokens"),
)


@dataclass(slots=True)
class CauseTracker:
    """`symptoms` and `traces` by step, as a newer attempt leaves them; not thread-safe."""

    window: int
    symptoms: dict[int, Symptoms] = field(default_factory=dict)
    traces: dict[int, Trace] = field(default_factory=dict)

    def accept(
        self, step: int, update: Mapping[str, Any], window: Mapping[str, Any], symptoms: Symptoms | None
    ) -> list[Finding]:
        """`update` and `window` are the judged reports; `symptoms` None when the update came as a summary alone."""
        if symptoms is not None:
            self.symptoms[step] = symptoms
            self.symptoms = {known: self.symptoms[known] for known in sorted(self.symptoms)[-self.window :]}
        found = counted(update)
        if symptoms is not None:
            found += [item for item in diagnosed(self._base(step)) if item.cause not in {one.cause for one in found}]
        found = without_needless(found)
        flawed = any(CAUSE[item.cause].kind == "fault" for item in found)
        self._remember(trace_of(step, update, window, flawed=flawed))
        found += course([self.traces[known] for known in sorted(self.traces) if known <= step])
        return without_needless(found)

    def rewind(self, step: int) -> None:
        """A new attempt begins at `step`: what was there from then on is replaced."""
        self.symptoms = {known: item for known, item in self.symptoms.items() if known < step}
        self.traces = {known: item for known, item in self.traces.items() if known < step}

    def _base(self, step: int) -> Symptoms:
        parts, tokens = [], 0
        for known in sorted(self.symptoms, reverse=True):
            if known <= step and tokens < BASE_TOKENS:
                parts.append(self.symptoms[known])
                tokens += parts[-1].count("tokens")
        return merge_symptoms(parts)

    def _remember(self, trace: Trace) -> None:
        self.traces[trace.step] = trace
        steps = sorted(self.traces)
        kept = {step for step in steps if step < steps[0] + HEAD_STEPS} | set(steps[-NEWEST:])
        self.traces = {step: self.traces[step] for step in sorted(kept)}


def counted(update: Mapping[str, Any]) -> list[Finding]:
    """What the exact counts of an update say by themselves."""
    counts = update["counts"]
    found = []
    for cause, shows, names, words in (
        (
            "not_observable",
            bool(update["indicators"].get("not_observable")),
            ("valid_tokens",),
            "every gap is exactly 0",
        ),
        (
            "nonfinite_gap",
            any(counts[name] for name in NONFINITE),
            (*NONFINITE, "tokens"),
            "{nan} gaps are not a number, {pos_inf} infinite, {neg_inf} minus infinite, of {tokens} tokens",
        ),
        (
            "missing_values",
            bool(counts["missing"]),
            ("missing", "tokens"),
            "{missing} of {tokens} tokens have no value",
        ),
        (
            "no_usable_token",
            counts["tokens"] > 0 and counts["valid_tokens"] == 0,
            ("tokens",),
            "none of {tokens} tokens has a usable gap",
        ),
        (
            "unusable_advantage",
            bool(counts["unusable_advantage"]),
            ("unusable_advantage", "responses"),
            "{unusable_advantage} of {responses} responses have an advantage that is not a number",
        ),
    ):
        if shows:
            evidence = {name: int(counts[name]) for name in names}
            found.append(Finding(cause, words.format(**evidence), "high", evidence, names))
    return found


def diagnosed(symptoms: Symptoms) -> list[Finding]:
    """What the columns show, stronger explanations first."""
    found = responses.fillers(symptoms)
    found += responses.zero_rows(symptoms)
    if any(item.cause == "not_observable" for item in found):
        return found
    engine, shift = responses.one_engine(symptoms), columns.misalignment(symptoms)
    found += [item for item in (engine, shift) if item is not None]
    if not _mostly_flawed(symptoms):
        for test in (columns.low_precision, columns.temperature, columns.offset):
            finding = test(symptoms)
            if finding is not None and not (test is columns.offset and _says(found, "temperature_mismatch")):
                found.append(finding)
    if shift is None:
        found += places.places(symptoms)
    if engine is None:
        found += [item for item in (responses.broken(symptoms), _tails(symptoms, found)) if item is not None]
    notes = (responses.short_responses, responses.no_signal, responses.versions)
    found += [item for test in notes if (item := test(symptoms)) is not None]
    faults = [item for item in found if CAUSE[item.cause].kind == "fault"]
    last = places.unexplained(symptoms, faults)
    return without_needless(found if last is None else [*found, last])


def _tails(symptoms: Symptoms, found: Sequence[Finding]) -> Finding | None:
    """Tails on both sides are only news where no cause that makes them was named."""
    return None if _says(found, *TAIL_MAKERS) else places.symmetric_tails(symptoms)


def _mostly_flawed(symptoms: Symptoms) -> bool:
    """Too few unsuspicious responses are left to say anything about all of them."""
    flawed = sum(
        symptoms.count(name) for name in ("degenerate", "dummy", "appended", "zero_end", "misaligned", "broken")
    )
    return 2 * flawed > symptoms.count("responses")


def _says(found: Sequence[Finding], *causes: str) -> bool:
    return any(item.cause in causes for item in found)


def without_needless(found: Sequence[Finding]) -> list[Finding]:
    """One entry a cause, the surest; `undetermined` only where no fault was named."""
    kept: dict[str, Finding] = {}
    for item in found:
        kept.setdefault(item.cause, item)
    if any(CAUSE[name].kind == "fault" and name != UNDETERMINED for name in kept):
        kept.pop(UNDETERMINED, None)
    return list(kept.values())
