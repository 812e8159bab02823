"""Which parameter set is in force at a step: the trainer's half of the control loop.

Rules. A set must lie inside the trainer's own limits, else it is refused whole (nothing is clamped silently). Sets
are ordered by (epoch, version); an older one never replaces a newer one. A set holds while the monitor is heard from:
at `step > last word + lease_updates` the safe default takes over until the monitor answers again. A `pause` also
ends when nothing was heard for `pause_silence_seconds`, since a paused trainer takes no steps to count. Version 0 is
the monitor's word that it never issued a set: the safe default stays, or returns when that monitor is of a newer epoch.

No threads and no sockets here; the clock is an argument. Several threads may call (offers arrive from the poller).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from threading import RLock
from typing import Any

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.parameters import BOUNDS, TriageParams, flatten

Limits = Mapping[str, tuple[float, float] | Collection[Any]]


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """`version` is in force from `step` on, or was refused for the reason given."""

    version: int
    step: int
    refused: str | None = None
    epoch: int = 0


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
    except (TypeError, ValueError) as error:
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

    def __init__(self, safe_default: TriageParams, limits: Limits | None, pause_silence_seconds: float) -> None:
        self._limits = checked_limits(limits)
        broken = outside(safe_default, self._limits)
        if broken is not None:
            raise ConfigError(f"safe_default breaks the limits: {broken}")
        self._safe = safe_default
        self._pause_silence_seconds = pause_silence_seconds
        self._newest: TriageParams | None = None
        self._seen: tuple[int, int] | None = None  # (epoch, version), refused ones included
        self._in_force = safe_default
        self._newest_epoch = 0
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

    def offer(self, document: Mapping[str, Any]) -> Acknowledgement | None:
        """Takes a set in; returns the refusal to report, if it was refused."""
        fields = dict(document)
        epoch, version = fields.pop("epoch", 0), fields.get("version")
        if type(epoch) is not int or type(version) is not int:
            raise InputError("parameter_type", "a parameter set needs an integer version", column="version")
        rank = (epoch, version)
        with self._lock:
            if self._seen is not None and rank <= self._seen:
                self.stale += rank < self._seen
                return None
            reason = None
            try:
                params = TriageParams.from_dict(fields)
                reason = outside(params, self._limits)
            except InputError as error:
                reason = str(error)
            self._seen = rank
            if reason is None:
                self._newest, self._newest_epoch = (params if version else None), epoch
                return None
            self.refused += 1
            return Acknowledgement(version, self._step or 0, refused=reason, epoch=epoch)

    def decide(self, step: int, now: float) -> tuple[TriageParams, Acknowledgement | None]:
        """The set for this update, and what to tell the monitor when it changed."""
        with self._lock:
            self._step = step
            if self._heard or self._word_step is None or step < self._word_step:
                self._word_step, self._heard = step, False
            was_expired, self.expired = self.expired, self._has_expired(step, now)
            self.expiries += self.expired and not was_expired
            params, epoch = self._safe, 0
            if self._newest is not None and not self.expired:
                params, epoch = self._newest, self._newest_epoch
            switched = params is not self._in_force
            self._in_force = params
            if switched and params is self._newest:
                return params, Acknowledgement(params.version, step, epoch=epoch)
            return params, None

    def _has_expired(self, step: int, now: float) -> bool:
        if self._newest is None or self._word_step is None:
            return False
        silence = 0.0 if self._word_at is None else now - self._word_at
        if self._newest.control == "pause" and silence > self._pause_silence_seconds:
            return True
        return step > self._word_step + self._newest.lease_updates
