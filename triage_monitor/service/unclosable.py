"""Updates whose closing fails for a reason of their own: tried a few times, ever later, then set aside.

    closing raises -> again after 1, 2, 4, 8 s -> after `TRIES` set aside until the next start

What is set aside stays stored, and more shards of it are taken and stored; the run's other updates go on, and every
start tries it again. A closing that failed because the store takes no write says nothing about the update: that is no
try, and is repeated until it succeeds.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Any

from triage_monitor.errors import StoreCorrupt, StoreFull, TriageError
from triage_monitor.service.open_update import OpenUpdate, Place

TRIES = 5
FIRST_PAUSE_SECONDS = 1.0
MAX_SHOWN = 20
UNCLOSABLE = "unclosable"
logger = logging.getLogger("triage_monitor")


class Unclosable(TriageError):
    """A closing that failed by its update's own fault; nothing was written."""


@dataclass(slots=True)
class SetAside:
    """`update` holds no pieces: it only says what further shards have to fit."""

    update: OpenUpdate
    shards_in: int
    reason: str
    at: float

    def to_dict(self) -> dict[str, Any]:
        update = self.update
        place = {"step": update.step, "attempt": update.attempt, "shards_in": self.shards_in, "shards": update.shards}
        return {**place, "reason": self.reason, "at": self.at}


@dataclass(frozen=True, slots=True)
class _Trouble:
    tries: int
    again_at: float


def is_own_fault(error: BaseException) -> bool:
    """False for what befalls the store or the process; `error` came out of a closing."""
    return isinstance(error, Exception) and not isinstance(error, StoreFull | StoreCorrupt | OSError | MemoryError)


class Troubles:
    """Those of one run, for as long as this process has it loaded. Changed under the run's lock."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._tried: dict[Place, _Trouble] = {}
        self.aside: dict[Place, SetAside] = {}

    def note(self, update: OpenUpdate, error: BaseException, now: float, wall: float) -> Unclosable:
        """One more try failed; the first and the last are told in the log."""
        tries = self._tried[update.place].tries + 1 if update.place in self._tried else 1
        self._tried[update.place] = _Trouble(tries, now + FIRST_PAUSE_SECONDS * 2 ** (tries - 1))
        reason = f"{type(error).__name__}: {error}"
        where = f"update {update.step} of run {self._run} (attempt {update.attempt})"
        if tries == 1:
            logger.error("%s could not be closed; it is tried again", where, exc_info=error)
        if tries >= TRIES:
            del self._tried[update.place]
            bare = replace(update, pieces={}, join=None, deadline=math.inf)
            self.aside[update.place] = SetAside(bare, update.shards_in, reason, wall)
            told = "%s is set aside until the next start: %d tries to close it failed (%s); its shards stay stored"
            logger.error(told, where, TRIES, reason)
        return Unclosable(f"{where} could not be closed: {reason}")

    def closed(self, place: Place) -> None:
        self._tried.pop(place, None)

    def again_at(self, place: Place) -> float | None:
        """When a closing that failed is tried again, by the monotonic clock; None of one that did not fail."""
        trouble = self._tried.get(place)
        return None if trouble is None else trouble.again_at
