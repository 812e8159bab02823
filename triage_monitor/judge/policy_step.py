"""One step of the adaptive policy: from the stage and the verdict on the remedy in force to a change, or none.

The table is in `policy`; here is each of its rows. Called only when the policy may act and has dwelt long enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from triage_monitor.judge.actions import combines_tis_with_triage
from triage_monitor.judge.harm import Judged, Verdict, forecast
from triage_monitor.judge.observation import Observation
from triage_monitor.judge.policy_settings import PolicySettings
from triage_monitor.judge.policy_state import ParameterChange, PolicyState
from triage_monitor.judge.remedies import Remedy
from triage_monitor.judge.stages import Evidence, Stage
from triage_monitor.parameters import changed

Outcome = tuple[PolicyState, ParameterChange | None]


@dataclass(frozen=True, slots=True)
class Picture:
    """The window in words and numbers, for the record of a change."""

    words: str
    evidence: Evidence


def picture(settings: PolicySettings, seen: Observation, baseline: Mapping[str, float]) -> Picture:
    evidence: Evidence = {}
    words = []
    for watch in settings.harm.watches:
        value, usual = seen.values.get(watch.indicator), baseline.get(watch.indicator)
        if value is None:
            continue
        evidence[watch.indicator] = {"value": value} if usual is None else {"value": value, "baseline": usual}
        words.append(f"{watch.indicator} {value:.3g}" + ("" if usual is None else f" (baseline {usual:.3g})"))
    return Picture(", ".join(words), evidence)


@dataclass(frozen=True, slots=True)
class Step:
    """One update's decision: `taken` is the table of the module's docstring."""

    settings: PolicySettings
    state: PolicyState
    stage: Stage
    judged: Judged | None  # what the remedy in force has done, when there is a verdict
    picture: Picture

    def taken(self) -> Outcome:
        state, settings = self.state, self.settings
        now = settings.named(state.remedy)
        if now is None:
            found = self._admitted()
            return self._enter(found, "strengthen", self._alarm()) if found else (state, None)
        judged = self.judged
        if judged is not None and judged.verdict is Verdict.HARMED:
            return self._after_harm(now, judged)
        if self._should_escalate():
            return self._escalate(now)
        if state.calm >= settings.calm_updates and not now.lasting and now.name not in state.relaxed:
            relaxed = replace(state, relaxed=(*state.relaxed, now.name))
            why = f"healthy for {settings.calm_updates} updates: {self.picture.words}"
            return replace(self, state=relaxed)._set(None, "relax", why, self.picture.evidence)
        return state, None

    def _admitted(self, after: str = "") -> Remedy | None:
        """The first remedy of this stage that has not harmed; with `after`, of those behind it in the list."""
        names = [item.name for item in self.settings.remedies]
        later = self.settings.remedies[names.index(after) + 1 if after in names else 0 :]
        harmed = self.state.harmed
        return next((item for item in later if self.stage in item.stages and item.name not in harmed), None)

    @property
    def _trial_over(self) -> bool:
        since = self.state.since_change
        return since is None or since >= self.settings.harm.trial_updates

    def _should_escalate(self) -> bool:
        if self.stage is Stage.TERMINAL:
            return True
        helping = self.judged is not None and self.judged.verdict is Verdict.HELPED
        return self.stage is Stage.PRE_TERMINAL and self._trial_over and not helping

    def _escalate(self, now: Remedy) -> Outcome:
        judged = self.judged
        done = f"{now.name} {judged.words()}" if judged else f"no verdict on {now.name}"
        found = self._admitted(after=now.name)
        if found is not None:
            evidence = {**self.picture.evidence, **(judged.evidence() if judged else {})}
            return self._enter(found, "strengthen", f"{self._alarm()}; {done}", evidence)
        if self.stage is Stage.TERMINAL and self._trial_over:
            return self._handed_over(f"terminal and nothing left to try; {done}"), None
        return self.state, None

    def _after_harm(self, now: Remedy, judged: Judged) -> Outcome:
        marked = replace(self, state=replace(self.state, harmed=(*self.state.harmed, now.name)))
        why = f"{now.name} {judged.words()}"
        if now.lasting:
            return marked._handed_over(why), None
        found = marked._admitted()
        if found is not None:
            return marked._enter(found, "switch", f"stage {self.stage}; {why}", judged.evidence())
        if self.stage is Stage.TERMINAL:
            return marked._handed_over(f"terminal, {why}"), None
        state, change = marked._set(None, "undo", why, judged.evidence())
        if all(item.name in state.harmed for item in self.settings.remedies):
            state = replace(state, handed_over=True, note=f"handed over: every remedy harmed; {why}")
        return state, change

    def _alarm(self) -> str:
        return f"stage {self.stage}: {self.picture.words}"

    def _enter(self, remedy: Remedy, kind: str, why: str, evidence: Evidence | None = None) -> Outcome:
        if self.state.changes < self.settings.max_changes:
            return self._set(remedy, kind, why, self.picture.evidence if evidence is None else evidence)
        lasting = (item for item in self.settings.remedies if item.lasting and item.name not in self.state.harmed)
        why = f"{self.settings.max_changes} changes in this attempt did not settle it; {why}"
        state, change = self._set(next(lasting, None), "hand_over", why, self.picture.evidence)
        return replace(state, handed_over=True, note=f"handed over: {why}"), change

    def _handed_over(self, why: str) -> PolicyState:
        return replace(self.state, handed_over=True, note=f"handed over: {why}")

    def _set(self, remedy: Remedy | None, kind: str, why: str, evidence: Evidence) -> Outcome:
        state, settings = self.state, self.settings
        params = settings.under(state.params, remedy)
        if combines_tis_with_triage(params) and not settings.allow_tis_with_triage:
            note = "blocked: TIS is on, and gate and repair are not added to it unasked"
            return replace(state, note=note), None
        foretold = {name: forecast(settings.harm, values) for name, values in state.recent.items()}
        moved = replace(
            state,
            params=params,
            remedy=remedy.name if remedy else "",
            since_change=0,
            calm=0,
            changes=state.changes + 1,
            note="",
            before={name: line for name, line in foretold.items() if line is not None},
            recent={},
        )
        differing = changed(state.params, params)
        if not differing:
            return moved, None
        what = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in sorted(differing.items()))
        reason = f"{state.remedy or 'base'} -> {moved.remedy or 'base'}: {why}. Sets {what}"
        return moved, ParameterChange(params, kind, reason, evidence)
