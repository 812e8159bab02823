"""One run's causes, update by update: `CauseTracker.accept` returns what this update shows.

An update with few tokens that shows no fault by itself is diagnosed with such ones before it, until BASE_TOKENS
tokens are looked at: small updates lend each other evidence, large ones stand alone. Precedence: what explains a
pattern keeps the causes that only resemble it from being named; `undetermined` is said when nothing else is. Pure: a
tracker fed with the same updates and reports, or restored from them, says the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from triage_monitor.judge import causes_columns as columns
from triage_monitor.judge import causes_places as places
from triage_monitor.judge import causes_responses as responses
from triage_monitor.judge.causes import Finding, blinding, folded
from triage_monitor.judge.causes_history import Trace, course, trace_of
from triage_monitor.judge.causes_table import CAUSE, UNDETERMINED
from triage_monitor.judge.stages import Stage
from triage_monitor.summary.symptoms import Symptoms, merge_symptoms

BASE_TOKENS = 2048
UNEXPLAINED = "the run is terminal, and nothing in its columns or its course separates a cause from the others"
HEAD_STEPS, NEWEST = 30, 40  # traces kept: of the run's first steps, and of its newest updates

NONFINITE = ("nan", "pos_inf", "neg_inf")
TAIL_MAKERS = (
    *("token_misalignment", "unrelated_columns", "temperature_mismatch", "raw_versus_processed_logprobs"),
    *("dummy_tokens", "retokenised_turn_borders", "appended_tokens"),
)


@dataclass(slots=True)
class CauseTracker:
    """By step, as the newest attempt leaves them: `found` of the newest `window` updates, `symptoms` of those among
    them that show no fault by themselves (a neighbour's plain fault is not lent), and `traces`.

    Not thread-safe."""

    window: int
    symptoms: dict[int, Symptoms] = field(default_factory=dict)
    traces: dict[int, Trace] = field(default_factory=dict)
    found: dict[int, list[Finding]] = field(default_factory=dict)

    def accept(
        self, step: int, update: Mapping[str, Any], window: Mapping[str, Any], symptoms: Symptoms | None
    ) -> list[Finding]:
        """`update` and `window` are the judged reports; `symptoms` None when the update came as a summary alone."""
        seen = counted(update)
        if symptoms is not None:
            seen += [item for item in self._diagnosed(step, symptoms) if not _says(seen, item.cause)]
        seen = without_needless(seen)
        flawed = any(CAUSE[item.cause].kind == "fault" for item in seen)
        self._remember(trace_of(step, update, window, flawed=flawed))
        seen += course([self.traces[known] for known in sorted(self.traces) if known <= step])
        if window.get("stage") == Stage.TERMINAL.value and not self._explained(seen):
            seen.append(Finding(UNDETERMINED, UNEXPLAINED, "low"))
        self.found[step] = [replace(item, since=self._since(item.cause, step)) for item in without_needless(seen)]
        recent = self._recent()
        self.symptoms = {known: item for known, item in self.symptoms.items() if known in recent}
        self.found = {known: items for known, items in self.found.items() if known in recent or known == step}
        return self.found[step]

    def blinded(self, step: int, symptoms: Symptoms | None) -> tuple[str, ...]:
        """Causes in this update's columns that make its gaps no basis for an alarm; changes nothing."""
        if symptoms is None:
            return ()
        return blinding(self._with_lent(step, symptoms, diagnosed(symptoms)), symptoms.count("responses"))

    def current(self) -> list[dict[str, Any]]:
        """The public findings of the newest `window` updates."""
        return folded(sorted(self.found.items()))

    def flawed(self, step: int) -> bool:
        """Whether a fault of this update's own explains its gaps; `restore` wants it back."""
        return self.traces[step].flawed if step in self.traces else False

    def rewind(self, step: int) -> None:
        """A new attempt begins at `step`: what was there from then on is replaced."""
        self.symptoms = {known: item for known, item in self.symptoms.items() if known < step}
        self.traces = {known: item for known, item in self.traces.items() if known < step}
        self.found = {known: items for known, items in self.found.items() if known < step}

    @classmethod
    def restore(
        cls, window: int, reports: Iterable[tuple[int, Mapping[str, Any]]], symptoms: Mapping[int, Symptoms]
    ) -> CauseTracker:
        """From what was stored: (step, report) with `update`, `window`, `findings` and `flawed`, in order of steps, of
        the first HEAD_STEPS steps and of the newest updates; symptoms of the newest `window` of them."""
        tracker = cls(window)
        for step, report in reports:
            flawed = bool(report.get("flawed", False))
            tracker._remember(trace_of(step, report["update"], report["window"], flawed=flawed))
            tracker.found[step] = [Finding.from_dict(item) for item in report.get("findings", ())]
        recent = tracker._recent()
        tracker.found = {step: tracker.found[step] for step in sorted(recent)}
        kept = {step: item for step, item in symptoms.items() if step in recent}
        tracker.symptoms = {step: item for step, item in kept.items() if not any(map(is_fault, diagnosed(item)))}
        return tracker

    @property
    def kept_updates(self) -> int:
        """How many of the newest updates `restore` needs."""
        return max(NEWEST, self.window)

    def _diagnosed(self, step: int, symptoms: Symptoms) -> list[Finding]:
        alone = diagnosed(symptoms)
        found = self._with_lent(step, symptoms, alone)
        self.symptoms.pop(step, None)
        if not any(map(is_fault, alone)):
            self.symptoms[step] = symptoms
        return found

    def _with_lent(self, step: int, symptoms: Symptoms, alone: list[Finding]) -> list[Finding]:
        """By this update alone; where that shows no fault and has few tokens, with the ones before it."""
        if symptoms.count("tokens") >= BASE_TOKENS or any(map(is_fault, alone)):
            return alone
        parts, tokens = [symptoms], symptoms.count("tokens")
        for known in sorted(self.symptoms, reverse=True):
            if known < step and tokens < BASE_TOKENS:
                parts.append(self.symptoms[known])
                tokens += parts[-1].count("tokens")
        return diagnosed(merge_symptoms(parts)) if len(parts) > 1 else alone

    def _explained(self, seen: Sequence[Finding]) -> bool:
        """Whether this update or one of the window's names a fault."""
        return any(is_fault(item) for items in (seen, *self.found.values()) for item in items)

    def _since(self, cause: str, step: int) -> int:
        known = [item.since for items in self.found.values() for item in items if item.cause == cause]
        return min([step, *(since for since in known if since is not None)])

    def _recent(self) -> set[int]:
        return set(sorted(self.traces)[-self.window :])

    def _remember(self, trace: Trace) -> None:
        self.traces[trace.step] = trace
        steps = sorted(self.traces)
        kept = {step for step in steps if step < steps[0] + HEAD_STEPS} | set(steps[-self.kept_updates :])
        self.traces = {step: self.traces[step] for step in sorted(kept)}


def is_fault(finding: Finding) -> bool:
    """A fault with a name."""
    return CAUSE[finding.cause].kind == "fault" and finding.cause != UNDETERMINED


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
    placed = places.places(symptoms) if shift is None else []
    explained = shift is not None or engine is not None or bool(placed) or _says(found, "dummy_tokens")
    strangers = None if explained else columns.unrelated(symptoms)
    found += [item for item in (engine, shift, strangers) if item is not None]
    if not _mostly_flawed(symptoms):
        for test in (columns.low_precision, columns.temperature, columns.offset):
            finding = test(symptoms)
            if finding is not None and not (test is columns.offset and _says(found, "temperature_mismatch")):
                found.append(finding)
    found += placed
    if engine is None and strangers is None:
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
    if any(is_fault(item) for item in kept.values()):
        kept.pop(UNDETERMINED, None)
    return list(kept.values())
