"""When an alert of `alerts` holds, told from a run's snapshot, for those who let the monitor push without any rules.

The same conditions as `deploy/prometheus/rules.yml` (which is held to the same texts), counted in updates: a condition
that is entered stays until its laxer staying condition ends, fires `after` steps later, and lasts `keep_seconds` beyond
the last time it held. `advanced` is pure: what was held before, and what is seen now, give what is held next.

Leaves out what needs a window of time or somebody outside: partial and dropped updates of the last half hour, refused
shards of the last quarter, damaged rows of the last hour, and a monitor that is gone. Damage to the store's files is
told for six hours by the process that found it when it opened them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from triage_monitor.judge.causes_table import CAUSES
from triage_monitor.judge.stages import ALARM, Stage
from triage_monitor.service.live import Snapshot

KEEP_SECONDS = 900.0
DAMAGE_SECONDS = 6 * 3600.0
IMBALANCE = "TriageDirectionalImbalance"
NOT_OBSERVABLE = "not_observable"


@dataclass(frozen=True, slots=True)
class Held:
    """One condition that holds, or has ended and is still to be told so. Times are Unix seconds."""

    since_step: int
    firing_at: float | None = None
    ended_at: float | None = None
    held_at: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Seen:
    """What conditions are told from: a run, or without one the monitor itself. `lost_writes` has just been found in
    damaged files; None when none were damaged."""

    run: Snapshot | None
    now: float
    held: Mapping[str, Held] = field(default_factory=dict)
    store_failed: bool = False
    lost_writes: int | None = None

    @property
    def step(self) -> int:
        return 0 if self.run is None or self.run.newest is None else self.run.newest.step

    @property
    def age(self) -> float | None:
        """Seconds since the newest update."""
        return None if self.run is None or self.run.newest is None else self.now - self.run.newest.closed_at

    def notice(self, kind: str, severity: str | None = None) -> bool:
        said = () if self.run is None or self.run.newest is None else self.run.newest.report["notices"]
        return any(item["kind"] == kind and severity in (None, item.get("severity")) for item in said)

    def value(self, name: str, scope: str = "window") -> float | None:
        return self._report(scope, "indicators").get(name)

    def growth(self, name: str, floor: float) -> float | None:
        """A window's value over the run's own normal, both floored."""
        normal = None if self.run is None else self.run.normal.get(name)
        return _ratio(self.value(name), normal, floor)

    def tail_growth(self) -> float:
        """The deep negative tail over the run's own, of the side where it grew most; 1 where it is not known."""
        sides, normal = self._report("window", "quantiles"), {} if self.run is None else self.run.normal
        both = (_ratio(_depth(sides, side), _minus(normal.get(f"q0.001_{side}")), 0.1) for side in ("neg", "pos"))
        return max((ratio for ratio in both if ratio is not None), default=1.0)

    def _report(self, scope: str, part: str) -> Mapping[str, float | None]:
        newest = None if self.run is None else self.run.newest
        found: Mapping[str, float | None] = {} if newest is None else (newest.report[scope] or {}).get(part, {})
        return found


Check = Callable[[Seen], bool]


@dataclass(frozen=True, slots=True)
class Condition:
    """`stays` is what keeps an entered one (None: `enters`). `cause` is a further label."""

    alert: str
    enters: Check
    stays: Check | None = None
    after: int = 0
    keep_seconds: float = 0.0
    cause: str = ""

    @property
    def key(self) -> str:
        return f"{self.alert}/{self.cause}" if self.cause else self.alert


def advanced(conditions: Iterable[Condition], seen: Seen) -> dict[str, Held]:
    """What is held next, `seen.held` being what was; an ended one that fired stays until it is taken out."""
    held = dict(seen.held)
    seen = replace(seen, held=held)  # a condition may ask for one before it
    for condition in conditions:
        before = held.get(condition.key)
        after = _next(condition, before, seen)
        if after is None:
            held.pop(condition.key, None)
        else:
            held[condition.key] = after
    return held


def ended(held: Mapping[str, Held], now: float) -> dict[str, Held]:
    """Everything over, as for a run that was retired."""
    return {key: _over(item, now) for key, item in held.items() if item.firing_at is not None}


def _next(condition: Condition, before: Held | None, seen: Seen) -> Held | None:
    was_held = before is not None and before.ended_at is None
    check = condition.stays if was_held and condition.stays is not None else condition.enters
    if check(seen) or condition.enters(seen):
        since = min(before.since_step, seen.step) if before is not None and was_held else seen.step
        firing = before.firing_at if before is not None and was_held else None
        if firing is None and seen.step - since >= condition.after:
            firing = seen.now
        return Held(since, firing, None, seen.now)
    if before is None or before.firing_at is None:
        return None
    held_at = min(before.held_at, seen.now)  # the clock may have gone back since
    if was_held and seen.now - held_at < condition.keep_seconds:
        return replace(before, held_at=held_at)
    return _over(before, seen.now)


def _over(item: Held, now: float) -> Held:
    return item if item.ended_at is not None else replace(item, ended_at=now)


def _minus(value: float | None) -> float | None:
    return None if value is None else -value


def _depth(sides: Mapping[str, object], side: str) -> float | None:
    points = sides.get(side)
    return _minus(points.get("0.001")) if isinstance(points, Mapping) else None


def _ratio(value: float | None, normal: float | None, floor: float) -> float | None:
    return None if value is None or normal is None else max(value, floor) / max(normal, floor)


def _above(value: float | None, bound: float) -> bool:
    return value is not None and value > bound


def _beyond(seen: Seen, high: float, low: float) -> bool:
    """The interval's near end is beyond, on either side."""
    upper = seen.value("rho_asym_high")
    return _above(seen.value("rho_asym_low"), high) or (upper is not None and upper < low)


def _imbalance_lasted(seen: Seen, steps: int) -> bool:
    held = seen.held.get(IMBALANCE)
    return held is not None and held.ended_at is None and seen.step - held.since_step >= steps


def _crowds(seen: Seen, crowding: float, tail: float) -> bool:
    share, persistence = seen.growth("top5_tail_share", 1e-9), seen.growth("persistence", 1e-9)
    known = share is not None and persistence is not None
    return known and _above((share or 0.0) * (persistence or 0.0), crowding) and seen.tail_growth() > tail


def _stalled(seen: Seen) -> bool:
    interval = None if seen.run is None else seen.run.interval_seconds
    if not interval:
        return _above(seen.age, 1800.0)
    return _above(seen.age, max(60.0, 5.0 * interval))


def _in_stage(stage: Stage) -> Check:
    return lambda seen: seen.run is not None and seen.run.stage == stage.value


def _is_named(cause: str) -> Check:
    return lambda seen: seen.run is not None and any(item["cause"] == cause for item in seen.run.findings)


def _of_causes() -> Iterable[Condition]:
    for cause in CAUSES:
        if cause.name == NOT_OBSERVABLE or (cause.kind == "note" and not cause.blinds):
            continue
        if cause.blinds:
            yield Condition("TriageGapsUnusable", _is_named(cause.name), cause=cause.name)
        else:
            named = _is_named(cause.name)
            yield Condition("TriageCauseNamed", named, keep_seconds=KEEP_SECONDS, cause=cause.name)


OF_A_RUN: tuple[Condition, ...] = (
    Condition(
        IMBALANCE,
        lambda seen: seen.notice("directional_imbalance", ALARM),
        lambda seen: seen.notice("directional_imbalance"),
    ),
    Condition(
        "TriageDirectionalImbalanceSevere",
        lambda seen: _beyond(seen, 1.25, 0.8) and _imbalance_lasted(seen, 25),
        lambda seen: _beyond(seen, 1.15, 0.87) and _imbalance_lasted(seen, 0),
    ),
    Condition(
        "TriageSegmentCrowding",
        lambda seen: _crowds(seen, 1.5, 1.25),
        lambda seen: _crowds(seen, 1.25, 1.1),
        after=4,
    ),
    Condition("TriageRunDrifting", _in_stage(Stage.DRIFT)),
    Condition("TriageRunPreTerminal", _in_stage(Stage.PRE_TERMINAL)),
    Condition("TriageRunTerminal", _in_stage(Stage.TERMINAL)),
    Condition(
        "TriageTerminalMagnitude",
        lambda seen: _above(seen.growth("abs_delta_mean", 0.02), 3.0),
        lambda seen: _above(seen.growth("abs_delta_mean", 0.02), 2.4),
        after=4,
    ),
    Condition("TriageRewardFalling", lambda seen: seen.notice("reward_falling")),
    Condition(
        "TriageUnusableTokens",
        lambda seen: (
            _above(seen.value("nonfinite_fraction", "update"), 0.0)
            or _above(seen.value("missing_fraction", "update"), 0.01)
        ),
        keep_seconds=KEEP_SECONDS,
    ),
    Condition("TriageNotObservable", _in_stage(Stage.NOT_OBSERVABLE)),
    Condition("TriageOneSided", lambda seen: seen.notice("one_sided")),
    Condition(
        "TriageDirectionUndefined",
        lambda seen: seen.age is not None and seen.value("rho_asym") is None,
        after=25,
    ),
    Condition("TriageTrainerFenced", lambda seen: seen.run is not None and seen.run.fenced_by is not None),
    Condition("TriageParametersRefused", lambda seen: seen.run is not None and seen.run.is_refused),
    Condition(
        "TriageParametersUnacknowledged",
        lambda seen: seen.run is not None and (seen.run.unacknowledged_updates or 0) >= 5,
    ),
    Condition("TriageTrainerStalled", _stalled),
    Condition("TriageUpdateUnclosable", lambda seen: seen.run is not None and seen.run.unclosable > 0),
    *_of_causes(),
)
OF_THE_MONITOR: tuple[Condition, ...] = (
    Condition("TriageStoreFailing", lambda seen: seen.store_failed, keep_seconds=300.0),
    Condition("TriageStoreLostWrites", lambda seen: bool(seen.lost_writes), keep_seconds=DAMAGE_SECONDS),
    Condition("TriageStoreDamaged", lambda seen: seen.lost_writes is not None, keep_seconds=DAMAGE_SECONDS),
)
