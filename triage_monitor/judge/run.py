"""One run under judgement: its trailing window, detector, notices and policy behind one call, `accept`.

Values in, values out: each accepted update returns a `Judgement`; nothing is written, sent or timed here. The newest
position of the newest attempt is what gets judged, once. An update that comes late, again, or from an older attempt is
merged into its own place and seen by the next judgement; it never judges a second time and never rewrites a transition.
So replaying the updates in the order in which they came gives the identical transitions.

`state()` is everything but the window's summaries; `restore` with that state and the stored summaries of the window
continues exactly as if nothing had stopped: a restart makes no transition and pushes no parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from triage_monitor.errors import ConfigError, SpecMismatch, StoreCorrupt
from triage_monitor.judge import detector, notices, policy
from triage_monitor.judge.context import NOTHING_KNOWN, Context
from triage_monitor.judge.defaults import DetectorSettings, is_material
from triage_monitor.judge.indicators import update_report
from triage_monitor.judge.notices import NoticeSettings
from triage_monitor.judge.observation import Observation
from triage_monitor.judge.policy import ParameterChange, PolicySettings
from triage_monitor.judge.score import SCORE
from triage_monitor.judge.settings_table import read_table
from triage_monitor.judge.stages import Notice, Stage, Transition
from triage_monitor.parameters import TriageParams
from triage_monitor.summary.spec import DEFAULT_SPEC, SummarySpec
from triage_monitor.summary.step import StepSummary
from triage_monitor.summary.window import TrailingWindow, Window

STATE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """Everything configurable about judging; `from_dict` reads the `[judge]` table of a configuration."""

    window_updates: int = 25
    detector: DetectorSettings = field(default_factory=DetectorSettings)
    notices: NoticeSettings = field(default_factory=NoticeSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)

    def __post_init__(self) -> None:
        needed = max(self.detector.baseline.first_updates, self.detector.minimum.updates)
        if self.window_updates < max(needed, 1):
            raise ConfigError(f"window_updates {self.window_updates} is below the {needed} updates the detector needs")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "judge") -> JudgeSettings:
        """Raises ConfigError naming the dotted key that is unknown, mistyped or refused."""
        return read_table(cls, data, where)

    def learned(self) -> tuple[str, ...]:
        """Indicators whose baseline is learned: those the detector compares with it."""
        return self.detector.learned()


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one accepted update led to. `update` and `window` have the contract's UPDATE and WINDOW fields."""

    step: int
    attempt: int
    update: dict[str, Any]
    window: dict[str, Any]
    stage: Stage
    why: str
    judged: bool  # False: late, repeated or without a usable token; stage, notices and parameters are as they were
    transition: Transition | None
    change: ParameterChange | None
    notices: tuple[Notice, ...]


class RunMonitor:
    """Not thread-safe: one owner calls it, one update after another."""

    def __init__(self, settings: JudgeSettings, spec: SummarySpec = DEFAULT_SPEC) -> None:
        self.settings = settings
        self.spec = spec
        self._window = TrailingWindow(settings.window_updates, spec)
        self._learned = settings.learned()
        self._last: tuple[int, int] | None = None  # newest (attempt, step) judged
        self._detector = detector.DetectorState()
        self._notices = notices.NoticeState()
        self._said: tuple[Notice, ...] = ()
        self._policy = policy.begin(settings.policy)

    @property
    def stage(self) -> Stage:
        return self._detector.stage

    @property
    def params(self) -> TriageParams:
        """The parameters the policy believes in force; version and step are the store's to fill in."""
        return self._policy.params

    @property
    def policy_note(self) -> str:
        """Why the policy keeps its hands off; empty when it may act."""
        return self._policy.note

    @property
    def handed_over(self) -> bool:
        """True once the policy gave up in this attempt and asks for a person."""
        return self._policy.handed_over

    @property
    def baseline(self) -> dict[str, Any]:
        """The learned baseline as plain data: frozen, windows offered and excluded, median, MAD and count by name."""
        return self._detector.baseline.to_dict()

    @property
    def normal(self) -> dict[str, float]:
        """The baseline's medians by indicator; empty while there are none."""
        return self._detector.baseline.medians()

    def start(self) -> ParameterChange | None:
        """The parameters this run begins with; None in observe mode and in dry runs, which leave it its own.

        Without this call the paper mode issues them at the first update; so it does, for the record, in a dry run.
        """
        if self.settings.policy.dry_run:
            return None
        self._policy, change = policy.start(self.settings.policy, self._policy)
        return None if self.settings.policy.mode is policy.Mode.OBSERVE else change

    def accept(self, step: int, attempt: int, summary: StepSummary, context: Context = NOTHING_KNOWN) -> Judgement:
        """Takes one closed update, any number of times and in any order. Raises SpecMismatch, keeping nothing.

        `context` is what is known of the update beside its summary.
        """
        if summary.spec != self.spec:
            raise SpecMismatch("spec_mismatch", "the update was summarised under another spec than this run's")
        update = update_report(summary)
        observable = update["indicators"].get("not_observable") != 1.0
        self._window.put(step, attempt, summary, sound=observable and not context.blinded_by)
        merged = self._window.merged() or self._nothing(step)
        window = update_report(merged.summary)
        is_newest = self._last is None or (attempt, step) > self._last
        judged = is_newest and update["counts"]["valid_tokens"] > 0
        transition, change = None, None
        if judged:
            self._last = (attempt, step)
            transition, change = self._judge(
                self._observe(step, attempt, merged, window, context, observable), _values(update)
            )
        update |= {"step": step, "attempt": attempt}
        window |= {"step": merged.last_step, "attempt": max([attempt, *self._window.starts])}
        window |= {"first_step": merged.first_step, "updates": merged.updates, "stage": self.stage.value}
        window |= {"score": None if self._detector.score is None else self._detector.score.to_dict()}
        why = self._detector.why
        return Judgement(step, attempt, update, window, self.stage, why, judged, transition, change, self._said)

    def start_attempt(self, attempt: int, from_step: int) -> None:
        """A trainer begins or resumes: older attempts' updates from this step on leave the window."""
        self._window.start_attempt(attempt, from_step)

    def window_keys(self) -> list[tuple[int, int]]:
        """(step, attempt) of the updates held: the ones `restore` has to be given."""
        return [(step, attempt) for step, attempt, _ in self._window.live()]

    def clear(self, step: int) -> Transition | None:
        """An operator ends a latched terminal stage; None when there was none."""
        self._detector, transition = detector.clear(self._detector, step)
        return transition

    def reset_baseline(self) -> None:
        """Learns the baseline again from the next window on."""
        self._detector = detector.reset_baseline(self._detector)

    def hold(self, params: TriageParams, who: str) -> None:
        """`who` has set these parameters; the policy leaves them alone until `release`."""
        self._policy = policy.hold(self._policy, params, who)

    def adopt(self, params: TriageParams) -> None:
        """These parameters are in force, by the store's word."""
        self._policy = policy.adopt(self._policy, params)

    def release(self) -> None:
        self._policy = policy.release(self._policy)

    def state(self) -> dict[str, Any]:
        """JSON-able; with the window's stored summaries it is all that `restore` needs."""
        return {
            "format": STATE_FORMAT,
            "attempts": [list(item) for item in self._window.starts.items()],
            "last": None if self._last is None else list(self._last),
            "held": [list(key) for key in self.window_keys()],
            "unsound": [list(key) for key in self._window.unsound],
            "detector": self._detector.to_dict(),
            "notices": self._notices.to_dict(),
            "said": [item.to_dict() for item in self._said],
            "policy": self._policy.to_dict(),
        }

    @classmethod
    def restore(
        cls,
        settings: JudgeSettings,
        spec: SummarySpec,
        state: Mapping[str, Any],
        recent: Iterable[tuple[int, int, StepSummary]],
    ) -> RunMonitor:
        """Continues a stopped run with `recent` as its window: (step, attempt, summary) of updates in force.

        With the updates of `window_keys` (`held` in the state) it goes on exactly as the stopped one would have. With
        the updates before a new attempt's first step it is that run, rewound to there. Changed settings apply from the
        next update on; a criterion whose level changed starts counting anew. Raises StoreCorrupt for a state of another
        format.
        """
        if state.get("format") != STATE_FORMAT:
            raise StoreCorrupt(f"judge state has format {state.get('format')!r}, this version reads {STATE_FORMAT}")
        monitor = cls(settings, spec)
        for attempt, from_step in state["attempts"]:
            monitor._window.start_attempt(attempt, from_step)
        unsound = {(step, attempt) for step, attempt in state.get("unsound", ())}
        for step, attempt, summary in recent:
            monitor._window.put(step, attempt, summary, sound=(step, attempt) not in unsound)
        last = state["last"]
        monitor._last = None if last is None else (last[0], last[1])
        monitor._detector = detector.DetectorState.from_dict(state["detector"])
        monitor._notices = notices.NoticeState.from_dict(state["notices"])
        monitor._said = tuple(Notice(**item) for item in state["said"])
        monitor._policy = policy.PolicyState.from_dict(state["policy"])
        return monitor

    def _nothing(self, step: int) -> Window:
        return Window(step, step, 0, StepSummary.empty(self.spec))

    def _observe(
        self, step: int, attempt: int, held: Window, window: Mapping[str, Any], context: Context, observable: bool
    ) -> Observation:
        """What is judged: the window of sound updates, `held` itself and its report while all are."""
        sound, report = held, window
        if not self._window.all_sound():
            sound = self._window.sound() or self._nothing(step)
            report = update_report(sound.summary)
        counts = report["counts"]
        return Observation(
            step=step,
            attempt=attempt,
            updates=sound.updates,
            responses=counts["responses"],
            tokens=counts["valid_tokens"],
            unusable_tokens=counts["missing"] + counts["nan"] + counts["pos_inf"] + counts["neg_inf"],
            fresh=self._window.sound_of(attempt),
            observable=observable,
            blinded_by=next(iter(context.blinded_by), ""),
            precision=context.precision,
            values=_values(report),
        )

    def _judge(
        self, seen: Observation, newest: Mapping[str, float | None]
    ) -> tuple[Transition | None, ParameterChange | None]:
        settings = self.settings
        self._detector, transition = detector.detect(settings.detector, self._detector, seen, self._learned)
        score = self._detector.score
        material = is_material(seen.values, settings.detector.material_tail_nats)
        seen = replace(seen, values={**seen.values, SCORE: None if score is None else score.value})
        self._notices, self._said = notices.notice(
            settings.notices,
            self._notices,
            seen,
            judged=self.stage not in (Stage.WARMING_UP, Stage.NOT_OBSERVABLE),
            elevated=detector.mismatch_is_out(settings.detector, score, material),
            best_reward=self._detector.best_reward,
            learning=not self._detector.baseline.frozen,
            growth=notices.baseline_growth(settings.detector.score.terms, self._detector.baseline),
        )
        self._policy, change = policy.decide(
            settings.policy,
            self._policy,
            seen,
            stage=self.stage,
            baseline=self._detector.baseline.medians(),
            update=newest,
        )
        return transition, change


def _values(report: Mapping[str, Any]) -> dict[str, float | None]:
    """Indicators, and the signed quantiles beside them as `q0.001_all`."""
    values = dict(report["indicators"])
    for side, quantiles in report["quantiles"].items():
        values |= {f"q{probability}_{side}": value for probability, value in quantiles.items()}
    return values
