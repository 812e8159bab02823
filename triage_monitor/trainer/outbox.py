"""The bounded queue between a trainer that must not wait and a network that may.

Bounds are a number of updates and a number of bytes. When an update does not fit, the oldest waiting one makes room:
the monitor judges a trailing window, so after an outage the newest updates are the ones worth having. Every update
that leaves without an acknowledgement is counted under a reason. The update being sent is not evicted, so memory is
bounded by `max_bytes` plus that one.

    accepted = acknowledged + dropped after acceptance + waiting + being sent

A Ctrl-C may end a `put` between any two of its steps, and leaves neither a locked lock nor an uncounted update: the
lock is taken directly, which nothing interrupts, and not by way of the condition, whose own Python code may be.

An update that the server answers with 5xx several times lets the others pass, and is given up ("server_error") once
others were acknowledged between its failures; while the server fails for everybody, nothing is given up.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from threading import Condition, RLock
from time import monotonic
from typing import Any

from triage_monitor.trainer.arrays import Held
from triage_monitor.trainer.lease import Acknowledgement

STUBBORN_AFTER = 5  # server errors until an update lets the others pass
GIVE_UP_AFTER = 3  # of its further failures, with others acknowledged in between
_MAX_ACKNOWLEDGEMENTS = 64
_MAX_REASONS = 32


@dataclass(slots=True)
class Parcel:
    """One update of this shard: the copies, then (once encoded) the body that replaces them."""

    number: int
    step: int
    held: dict[str, Held]
    nbytes: int
    body: bytes | None = None
    server_errors: int = 0
    outvoted: int = 0
    acknowledged_before: int = 0

    def pack(self, body: bytes) -> None:
        self.body, self.held, self.nbytes = body, {}, len(body)


@dataclass(slots=True)
class Counts:
    submitted: int = 0
    accepted: int = 0
    sent: int = 0
    acknowledged: int = 0
    duplicates: int = 0
    retries: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    last_error: str | None = None


class Outbox:
    """Safe to use from any thread; every method returns at once except `take`, the sender's."""

    def __init__(self, max_updates: int, max_bytes: int) -> None:
        self._max_updates = max_updates
        self._max_bytes = max_bytes
        self.start_afresh()

    def start_afresh(self) -> None:
        """Empty, with new locks and counters: also what a forked child needs, whatever the parent's threads held."""
        self.counts = Counts()
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._waiting: deque[Parcel] = deque()
        self._bytes = 0
        self._sending: Parcel | None = None
        self._reports: deque[Acknowledgement] = deque()
        self._report_failed = False
        self._closed = self._abandoned = False

    # the trainer's side

    def put(self, step: int, held: dict[str, Held]) -> bool:
        nbytes = sum(item.nbytes for item in held.values())
        with self._lock:
            try:
                return self._put(step, held, nbytes)
            except BaseException:
                self._recount()
                raise

    def refuse(self, reason: str, detail: str) -> bool:
        """Counts an update that never became a parcel."""
        with self._lock:
            try:
                self.counts.submitted += 1
                self.counts.last_error = detail
                return self._refuse(reason)
            except BaseException:
                self._recount()
                raise

    def report(self, acknowledgement: Acknowledgement) -> None:
        with self._lock:
            if len(self._reports) >= _MAX_ACKNOWLEDGEMENTS:
                self._reports.popleft()
                self._count_drop("acknowledgement")
            self._reports.append(acknowledgement)
            self._changed.notify_all()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._changed.notify_all()

    def wait_empty(self, deadline: float) -> bool:
        """True when everything was settled before `deadline` (monotonic)."""
        with self._lock:
            return self._changed.wait_for(self._is_empty, max(0.0, deadline - monotonic()))

    def abandon(self) -> None:
        """Counts what is left as dropped; nothing more will be sent."""
        with self._lock:
            self._closed = self._abandoned = True
            for _ in range(len(self._waiting) + (self._sending is not None)):
                self._count_drop("closed")
            self._waiting.clear()
            self._reports.clear()
            self._sending, self._bytes = None, 0
            self._changed.notify_all()

    # the sender's side

    def take(self, timeout: float) -> Parcel | Acknowledgement | None:
        """The next thing to send, or None after `timeout` or when closed and empty.

        Reports go first, but one that failed lets an update pass before it is tried again.
        """
        with self._lock:
            self._changed.wait_for(lambda: self._reports or self._waiting or self._closed, timeout)
            if self._reports and not (self._report_failed and self._waiting):
                return self._reports[0]
            if not self._waiting:
                return None
            self._report_failed = False
            parcel = min(self._waiting, key=lambda p: (p.server_errors >= STUBBORN_AFTER, p.number))
            self._waiting.remove(parcel)
            self._sending = parcel
            self._bytes -= parcel.nbytes
            return parcel

    def pause(self, seconds: float) -> None:
        """Waits before the next try; `close` and `abandon` end it early."""
        with self._lock:
            closed = self._closed
            self._changed.wait_for(lambda: self._abandoned or self._closed != closed, seconds)

    def delivered(self, item: Parcel | Acknowledgement, *, duplicate: bool = False) -> None:
        with self._lock:
            if isinstance(item, Acknowledgement):
                self._settle_report(item)
            elif self._sending is item:
                self._sending = None
                self.counts.acknowledged += 1
                self.counts.duplicates += duplicate
            self._changed.notify_all()

    def refused(self, item: Parcel | Acknowledgement, reason: str, detail: str) -> None:
        """The server will never take it, or it cannot be encoded."""
        with self._lock:
            self.counts.last_error = detail
            if isinstance(item, Acknowledgement):
                self._settle_report(item)
                self._count_drop("acknowledgement")
            elif self._sending is item:
                self._sending = None
                self._count_drop(reason)
            self._changed.notify_all()

    def again(self, item: Parcel | Acknowledgement, detail: str, *, server_error: bool = False) -> None:
        """It could not be delivered now: back to its place, unless its time is over."""
        with self._lock:
            self.counts.last_error = detail
            self.counts.retries += 1
            if isinstance(item, Acknowledgement):
                self._report_failed = True
            elif self._sending is item:
                self._sending = None
                if server_error and self._is_hopeless(item):
                    self._count_drop("server_error")
                else:
                    self._put_back(item)
            self._changed.notify_all()

    def count_sent(self) -> None:
        with self._lock:
            self.counts.sent += 1

    # both

    def note_error(self, detail: str) -> None:
        with self._lock:
            self.counts.last_error = detail

    def drops_as_text(self) -> str:
        """`conflict=1,queue_full=12`: how a sender tells the monitor what it will never see."""
        with self._lock:
            return ",".join(f"{reason}={count}" for reason, count in sorted(self.counts.dropped.items()))

    def snapshot(self) -> dict[str, Any]:
        with self._lock:
            counts = self.counts
            sending = 0 if self._sending is None else self._sending.nbytes
            return {
                "submitted": counts.submitted,
                "accepted": counts.accepted,
                "sent": counts.sent,
                "acknowledged": counts.acknowledged,
                "duplicates": counts.duplicates,
                "retries": counts.retries,
                "dropped": dict(counts.dropped),
                "last_error": counts.last_error,
                "queue_depth": len(self._waiting) + (self._sending is not None),
                "queue_bytes": self._bytes + sending,
            }

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def is_all_acknowledged(self) -> bool:
        """Nothing accepted was lost; an update that the server had already counts as acknowledged."""
        with self._lock:
            return self.counts.acknowledged == self.counts.accepted

    def _put(self, step: int, held: dict[str, Held], nbytes: int) -> bool:
        self.counts.submitted += 1
        if self._closed:
            return self._refuse("closed")
        if nbytes > self._max_bytes:
            return self._refuse("too_large")
        while len(self._waiting) >= self._max_updates or self._bytes + nbytes > self._max_bytes:
            self._bytes -= self._waiting.popleft().nbytes
            self._count_drop("queue_full")
        self._waiting.append(Parcel(self.counts.accepted + 1, step, held, nbytes))
        self.counts.accepted += 1
        self._bytes += nbytes
        self._changed.notify_all()
        return True

    def _recount(self) -> None:
        """After an interrupt: what waits is the truth, and what is not accounted for was dropped then."""
        self._bytes = sum(parcel.nbytes for parcel in self._waiting)
        newest = self._waiting[-1].number if self._waiting else 0
        self.counts.accepted = max(self.counts.accepted, newest)
        dropped = self.counts.dropped.total() - self.counts.dropped["acknowledgement"]
        here = len(self._waiting) + (self._sending is not None)
        for _ in range(self.counts.submitted - self.counts.acknowledged - dropped - here):
            self._count_drop("interrupted")

    def _is_empty(self) -> bool:
        return not self._waiting and self._sending is None and not self._reports

    def _is_hopeless(self, parcel: Parcel) -> bool:
        others = self.counts.acknowledged > parcel.acknowledged_before
        parcel.server_errors += 1
        if parcel.server_errors > STUBBORN_AFTER and others:
            parcel.outvoted += 1
        parcel.acknowledged_before = self.counts.acknowledged
        return parcel.outvoted >= GIVE_UP_AFTER

    def _put_back(self, parcel: Parcel) -> None:
        """At its place by age, so that eviction still takes the oldest; it may have to go itself."""
        if len(self._waiting) >= self._max_updates or self._bytes + parcel.nbytes > self._max_bytes:
            self._count_drop("queue_full")
            return
        place = sum(1 for other in self._waiting if other.number < parcel.number)
        self._waiting.insert(place, parcel)
        self._bytes += parcel.nbytes

    def _settle_report(self, report: Acknowledgement) -> None:
        if self._reports and self._reports[0] is report:
            self._reports.popleft()

    def _refuse(self, reason: str) -> bool:
        self._count_drop(reason)
        return False

    def _count_drop(self, reason: str) -> None:
        known = reason in self.counts.dropped or len(self.counts.dropped) < _MAX_REASONS
        self.counts.dropped[reason if known else "other"] += 1
