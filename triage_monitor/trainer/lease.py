"""Which parameter set is in force at a step: the trainer's half of the control loop.

Rules. A set must lie inside the trainer's own limits, else it is refused whole (nothing is clamped silently). Sets
come from the one monitor obeyed (fence.py) and in the order of their versions; an older one never replaces a newer one.
A set that changes too often is refused as well (pace.py). A set holds while the monitor is heard from:
at `step > last word + lease_updates` the safe default takes over until the monitor answers again. A `pause` also
ends when nothing was heard for `pause_silence_seconds`, since a paused trainer takes no steps to count. Version 0 is
the monitor's word that it never issued a set: the safe default stays, or returns when that monitor is of a newer epoch.
A refused set stays refused; the next version is looked at anew.

No threads and no sockets here; the clock is an argument. Several threads may call (offers arrive from the poller).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from threading import RLock
from typing import Any

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.parameters import BOUNDS, TriageParams, flatten
from triage_monitor.trainer.fence import UNKNOWN, Fence, Origin, origin_of
from triage_monitor.trainer.pace import Pace

CHANGE_LIMIT = (20, 100)  # changes in updates
Limits = Mapping[str, tuple[float, float] | Collection[Any]]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """`version` is in force from `step` on, or was refused for the reason given."""

    version: int
    step: int
    refused: str | None = None
    origin: Origin = UNKNOWN
    fenced_by: int | None = None  # the epoch obeyed instead


def checked_limits(limits: Limits | None) -> dict[str, Any]:
    """The trainer's ranges per dotted name: `(low, high)` inside BOUNDS, or the accepted values of a flag or choice."""
    if limits is not None and not isinstance(limits, Mapping):
        raise ConfigError(f"limits must be a mapping of parameter names to ranges, got {type(limits).__name__}")
    checked: dict[str, Any] = {}
    known = flatten(TriageParams())
    for name, limit in (limits or {}).items():
        if name not in known or name in ("version", "issued_at_step", "reason"):
            raise ConfigError(f"limits: there is no parameter '{name}' to limit")
        if name not in BOUNDS:
            if isinstance(limit, str) or not isinstance(limit, Collection) or not limit:
                raise ConfigError(f"limits: '{name}' needs the collection of values it may take")
            checked[name] = tuple(limit)
            continue
        checked[name] = _checked_range(name, limit)
    return checked


def _checked_range(name: str, limit: Any) -> tuple[float, float]:
    try:
        low, high = (float(edge) for edge in limit)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"limits: '{name}' needs (low, high)") from error
    widest = BOUNDS[name]
    if not widest[0] <= low <= high <= widest[1]:
        raise ConfigError(f"limits: ({low}, {high}) for '{name}' is not a range inside {widest}")
    return low, high


def outside(params: TriageParams, limits: Mapping[str, Any]) -> str | None:
    """The first limit that a set breaks, in words, or None."""
    flat = flatten(params)
    for name, limit in limits.items():
        value = flat[name]
        if name in BOUNDS:
            if not limit[0] <= value <= limit[1]:
                return f"{name}: {value} is outside the trainer's [{limit[0]}, {limit[1]}]"
        elif value not in limit:
            return f"{name}: {value!r} is not one of the trainer's {list(limit)}"
    return None


class ParameterDesk:
    """Takes in what the monitor offers and decides, once an update, what the trainer uses."""

    def __init__(
        self,
        safe_default: TriageParams,
        limits: Limits | None,
        pause_silence_seconds: float,
        change_limit: tuple[int, int] = CHANGE_LIMIT,
    ) -> None:
        self._limits = checked_limits(limits)
        broken = outside(safe_default, self._limits)
        if broken is not None:
            raise ConfigError(f"safe_default breaks the limits: {broken}")
        self._safe = safe_default
        self._pace = Pace(change_limit, safe_default)
        self._applied: TriageParams | None = None  # the last of the monitor's sets that was in force
        self._pause_silence_seconds = pause_silence_seconds
        self.fence = Fence()
        self._newest: TriageParams | None = None
        self._seen: tuple[Origin, int] | None = None  # refused ones included
        self._told: tuple[Origin, int] | None = None  # the fenced set reported last
        self._in_force = safe_default
        self._newest_from = UNKNOWN
        self._step: int | None = None
        self._word_step: int | None = None
        self._word_at: float | None = None
        self._heard = False
        self.expired = False
        self.expiries = self.refused = self.stale = 0
        self._lock = RLock()

    @property
    def newest(self) -> TriageParams:
        return self._safe if self._newest is None else self._newest

    @property
    def in_force(self) -> TriageParams:
        return self._in_force

    @property
    def seen_version(self) -> int | None:
        """What the long poll asks for news after."""
        return None if self._seen is None else self._seen[1]

    def renew_lock(self) -> None:
        """In a forked child: the parent's other threads may have held it."""
        self._lock = RLock()

    def heard(self, now: float) -> None:
        """The monitor answered: the lease counts from the next update on."""
        self._heard = True
        self._word_at = now

    def is_fenced(self, answer: Mapping[str, Any], *, is_set: bool = False) -> bool:
        """Whether an answer comes from another monitor than the one obeyed. A parameter set says where it comes from;
        other answers may not."""
        if not is_set and "epoch" not in answer:
            return False
        try:
            return self.fence.against(origin_of(answer)) is not None
        except InputError:
            return False

    def is_news(self, answer: Mapping[str, Any]) -> bool:
        """Whether an answer to something else speaks of a set that was not offered yet."""
        if self.is_fenced(answer) or "params_version" not in answer:
            return False
        epoch = answer.get("epoch", self.fence.obeyed.epoch)
        return bool(answer["params_version"] != self.seen_version or epoch != self.fence.obeyed.epoch)

    def offer(self, document: Mapping[str, Any]) -> Acknowledgement | None:
        """Takes a set in; returns the refusal to report, if it was refused."""
        fields, version = dict(document), document.get("version")
        if type(version) is not int:
            raise InputError("parameter_type", "a parameter set needs an integer version", column="version")
        origin = origin_of(document)
        with self._lock:
            fenced = self.fence.against(origin)
            if fenced is not None:
                return self._fence_off(origin, version, fenced)
            if self._seen is not None and self._seen[0] == origin and version <= self._seen[1]:
                self.stale += version < self._seen[1]
                return None
            reason = None
            try:
                params = TriageParams.from_dict(fields)
                reason = outside(params, self._limits)
            except InputError as error:
                reason = str(error)
            self.fence.obey(origin)
            self._seen = (origin, version)
            if reason is None:
                self._take(params, origin)
                return None
            self.refused += 1
            return Acknowledgement(version, self._step or 0, refused=reason, origin=origin)

    def _fence_off(self, origin: Origin, version: int, reason: str) -> Acknowledgement | None:
        """Counts it, and reports it once."""
        self.fence.refused += 1
        if self._told == (origin, version):
            return None
        self._told = (origin, version)
        return Acknowledgement(
            version, self._step or 0, refused=reason, origin=origin, fenced_by=self.fence.obeyed.epoch
        )

    def _take(self, params: TriageParams, origin: Origin) -> None:
        is_restart = origin.store != "" and origin.store == self._newest_from.store
        if not (is_restart and params == self._newest):  # else it is in force and acknowledged already
            self._newest = params if params.version else None
            self._applied = self._applied if params.version else None
        self._newest_from = origin

    def decide(self, step: int, now: float) -> tuple[TriageParams, Acknowledgement | None]:
        """The set for this update, and what to tell the monitor when it changed."""
        with self._lock:
            self._step = step
            if self._heard or self._word_step is None or step < self._word_step:
                self._word_step, self._heard = step, False
            was_expired, self.expired = self.expired, self._has_expired(step, now)
            self.expiries += self.expired and not was_expired
            held_back = self._hold_back(step)
            if held_back is not None:
                return self._in_force, held_back
            params = self._safe if self._newest is None or self.expired else self._newest
            switched = params is not self._in_force
            self._in_force = params
            if switched and params is self._newest:
                self._applied = params
                return params, Acknowledgement(params.version, step, origin=self._newest_from)
            return params, None

    def _hold_back(self, step: int) -> Acknowledgement | None:
        """Refuses a new set that would be one change too many; the set before it stays."""
        newest, before = self._newest, self._applied
        if newest is None or newest is before or self.expired:
            return None
        reason = self._pace.against(self._safe if before is None else before, newest, step)
        if reason is None:
            return None
        self._newest = before
        self.refused += 1
        return Acknowledgement(newest.version, step, refused=reason, origin=self._newest_from)

    def _has_expired(self, step: int, now: float) -> bool:
        if self._newest is None or self._word_step is None:
            return False
        silence = 0.0 if self._word_at is None else now - self._word_at
        if self._newest.control == "pause" and silence > self._pause_silence_seconds:
            return True
        return step > self._word_step + self._newest.lease_updates
