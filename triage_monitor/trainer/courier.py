"""The two daemon threads behind a `Monitor`: one sends updates and acknowledgements, one waits for parameter sets.

Sending is at-least-once under idempotent keys (run, attempt, step, shard), one call at a time, retried with
exponential backoff and jitter; Retry-After is honoured. The first thing sent is the question which attempt this is,
unless the trainer was told. The jitter has its own random generator: the trainer's random state is never touched.

Threads start when first needed, in each process anew: a forked child has an empty outbox and no threads, and leaves
its parent's connections alone.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.trainer.answers import Answer, Verdict, confirmed
from triage_monitor.trainer.lease import Acknowledgement, ParameterDesk
from triage_monitor.trainer.outbox import Outbox, Parcel
from triage_monitor.trainer.route import Route, checked_attempt, safe_text
from triage_monitor.trainer.transport import Link

if TYPE_CHECKING:
    from triage_monitor.trainer.flight import FlightLink

log = logging.getLogger("triage_monitor.monitor")

_FIRST_DELAY = 0.1
_LONGEST_DELAY = 10.0
_CLOSING_DELAY = 0.25  # while a closing trainer waits
_SAY_GAP = 60.0  # between lines in the trainer's log
_REASON_CHARACTERS = 500  # of a refusal, as the monitor takes it
_POLL_GAP = 1.0  # between polls that brought no news


class Backoff:
    """0.1 s doubling to 10 s, each with half of it random; at least what the server asked for."""

    def __init__(self) -> None:
        self._random = random.Random()
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    def next_delay(self, at_least: float) -> float:
        delay = min(_FIRST_DELAY * 2.0 ** min(self._failures, 20), _LONGEST_DELAY)
        self._failures += 1
        return max(delay * self._random.uniform(0.5, 1.0), at_least)


class Courier:
    """Owns the threads and the connections of one monitor in one process."""

    def __init__(
        self,
        route: Route,
        outbox: Outbox,
        desk: ParameterDesk,
        connect: Callable[[], Link],
        poll_seconds: float,
        flight: FlightLink | None = None,
    ) -> None:
        self._route = route
        self._outbox = outbox
        self._desk = desk
        self._connect = connect
        self._poll_seconds = poll_seconds
        self._flight = flight
        self.attempt: int | None = None
        self._links: list[Link] = []
        self.start_afresh()

    def start_afresh(self) -> None:
        """No threads; also what a forked child needs, whose parent's threads do not exist in it."""
        for link in self._links:
            link.backend.close_in_child()
        self._links = []
        self._starting = threading.RLock()
        self._stop = threading.Event()
        self._news = threading.Event()  # an answer spoke of a version that the poll has not brought yet
        self._sender: threading.Thread | None = None
        self._poller: threading.Thread | None = None
        self._at_work: set[str] = set()  # names of threads
        self._is_complete = True
        self._said_reachable: bool | None = None
        self._said_at = -_SAY_GAP

    def ensure_sending(self) -> None:
        if self._sender is None:
            with self._starting:
                if self._sender is None and not self._stop.is_set():
                    self._sender = self._start("triage-monitor-send", self._send)

    def ensure_polling(self) -> None:
        if self._poller is None:
            with self._starting:
                if self._poller is None and not self._stop.is_set():
                    self._poller = self._start("triage-monitor-params", self._poll)

    def finish(self, deadline: float) -> bool:
        """Sends what is left until `deadline`, then stops. True when everything accepted was acknowledged."""
        if self._stop.is_set():
            return self._is_complete
        self._outbox.close()
        is_empty = self._outbox.wait_empty(monotonic() if self._sender is None else deadline)
        self._is_complete = is_empty and self._outbox.is_all_acknowledged
        self.stop()
        for thread in (self._sender, self._poller):
            if thread is not None and thread is not threading.current_thread():
                thread.join(max(0.0, min(0.5, deadline - monotonic())))
        return self._is_complete

    def stop(self) -> None:
        self._stop.set()
        self._news.set()
        self._outbox.abandon()
        for link in list(self._links):
            link.abort()

    def _start(self, name: str, loop: Callable[[Link], None]) -> threading.Thread:
        link = self._connect()
        self._links.append(link)
        thread = threading.Thread(target=self._keep, args=(loop, link), name=name, daemon=True)
        thread.start()
        return thread

    def _keep(self, loop: Callable[[Link], None], link: Link) -> None:
        """Runs one loop to its end; the one place where an error of our own is survived."""
        name = threading.current_thread().name
        with self._starting:
            is_second = name in self._at_work  # a Ctrl-C fell between the start of the first and its being noted
            self._at_work.add(name)
        backoff = Backoff()
        while not is_second and not self._stop.is_set():
            try:
                loop(link)
                break
            except Exception as error:  # a trainer must outlive every bug in here
                self._outbox.note_error(f"{type(error).__name__}: {safe_text(error)}")
                log.warning("the monitor's client failed and goes on", exc_info=True)
                self._stop.wait(backoff.next_delay(0.0))
        link.close()

    # sending

    def _send(self, link: Link) -> None:
        backoff = Backoff()
        while not self._stop.is_set():
            item = self._outbox.take(timeout=60.0)
            if item is None:
                if self._outbox.closed:
                    return
                continue
            answer = self._deliver(link, item)
            if answer is None or answer.verdict is not Verdict.AGAIN:
                backoff.reset()
                continue
            delay = backoff.next_delay(answer.retry_after)
            if self._outbox.closed:
                delay = max(min(delay, _CLOSING_DELAY), answer.retry_after)
            self._outbox.pause(delay)

    def _deliver(self, link: Link, item: Parcel | Acknowledgement) -> Answer | None:
        """One try with one thing; None when it did not even become a call."""
        if isinstance(item, Acknowledgement):
            answer = link.post(f"{self._route.base}/params/ack", self._acknowledgement(item))
        else:
            if item.body is None and not self._pack(item):
                return None
            unknown = self._ask_attempt(link, item.step)
            answer = unknown or confirmed(self._put(link, item), item.step, self._route.shard)
        self._settle(item, answer)
        return answer

    def _pack(self, parcel: Parcel) -> bool:
        try:
            parcel.pack(self._route.encode(parcel))
        except InputError as error:
            self._outbox.refused(parcel, "invalid", f"step {parcel.step}: {safe_text(error)}")
            return False
        except Exception as error:  # noqa: BLE001  nonsense arrays fail in ways nobody lists
            detail = f"step {parcel.step}: {type(error).__name__}: {safe_text(error)}"
            self._outbox.refused(parcel, "invalid", detail)
            return False
        return True

    def _ask_attempt(self, link: Link, step: int) -> Answer | None:
        """The answer that kept us from learning the attempt, or None once it is known."""
        if self.attempt is not None:
            return None
        answer = link.post(f"{self._route.base}/attempts", {"from_step": step, "launch_id": self._route.launch_id})
        if answer.verdict is not Verdict.OK:
            return answer
        try:
            self.attempt = checked_attempt(answer.body.get("attempt"))
        except ConfigError:
            return Answer(Verdict.AGAIN, "garbage", "the answer names no attempt", answer.status)
        return None

    def _put(self, link: Link, parcel: Parcel) -> Answer:
        self._outbox.count_sent()
        route, body, dropped = self._route, parcel.body or b"", self._outbox.drops_as_text()
        query: dict[str, str | int] = {
            "shards": route.shards,
            "attempt": self.attempt or 0,
            **({} if route.form.side is None else {"side": route.form.side}),
        }
        if self._flight is not None and self._flight.is_usable and route.form.is_raw(parcel.step):
            place: dict[str, str | int] = {"run": route.run, "step": parcel.step, "shard": route.shard}
            return self._flight.put({**place, **query, "bytes": len(body), "dropped": dropped}, body)
        return link.call(
            "PUT",
            f"{route.base}/updates/{parcel.step}/shards/{route.shard}",
            query=query,
            content=body,
            headers={"Content-Type": route.form.mime(parcel.step), "Triage-Client-Dropped": dropped},
        )

    def _acknowledgement(self, item: Acknowledgement) -> dict[str, Any]:
        body: dict[str, Any] = {"version": item.version, "step": item.step}
        if item.refused is not None:
            body["refused"] = item.refused[:_REASON_CHARACTERS]
        if item.origin.epoch:
            body["epoch"] = item.origin.epoch
        if item.origin.issuer:
            body["issuer"] = item.origin.issuer
        if item.fenced_by is not None:
            body["fenced_by"] = item.fenced_by
        return body

    def _settle(self, item: Parcel | Acknowledgement, answer: Answer) -> None:
        if answer.verdict is Verdict.OK:
            self._outbox.delivered(item, duplicate=answer.status == 200)
            if not self._desk.is_fenced(answer.body):
                self._heard()
            if self._desk.is_news(answer.body):
                self._news.set()
        elif answer.verdict is Verdict.NEVER:
            self._outbox.refused(item, answer.reason, answer.detail)
        else:
            self._outbox.again(item, answer.detail, server_error=answer.is_server_error)
            self._unheard(answer.detail)

    # parameters

    def _poll(self, link: Link) -> None:
        backoff = Backoff()
        seen: int | None = None  # unknown again after each failure: the monitor that comes back may be another one
        while not self._stop.is_set():
            started = monotonic()
            query = {"wait": int(self._poll_seconds)} | ({} if seen is None else {"after": seen})
            answer = link.call("GET", f"{self._route.base}/params", query=query, patience=self._poll_seconds)
            if answer.verdict is not Verdict.OK:
                seen = None
                self._note_failed_poll(answer)
                if answer.status == 404 and monotonic() - started > _POLL_GAP:
                    backoff.reset()  # it was waited for there
                if self._wait_for_news(backoff.next_delay(answer.retry_after)):
                    backoff.reset()
                continue
            is_fenced = bool(answer.body) and self._desk.is_fenced(answer.body, is_set=True)
            is_word = self._take_in(answer)
            if is_fenced or not is_word:
                seen = None
                self._wait_for_news(backoff.next_delay(0.0))
                continue
            backoff.reset()
            self._heard()
            if self._desk.seen_version == seen:
                self._wait_for_news(_POLL_GAP - (monotonic() - started))
            seen = self._desk.seen_version

    def _wait_for_news(self, seconds: float) -> bool:
        came = self._news.wait(max(0.0, seconds))
        self._news.clear()
        return came

    def _note_failed_poll(self, answer: Answer) -> None:
        if answer.status == 404:  # before its first update a run is unknown; most of the wait for it is the monitor's
            return
        self._outbox.note_error(f"parameters: {answer.detail}")
        if answer.verdict is Verdict.AGAIN:
            self._unheard(answer.detail)

    def _take_in(self, answer: Answer) -> bool:
        """False for somebody else's JSON: no word of the monitor, so it keeps no lease alive."""
        if answer.status in (204, 304) and not answer.body:
            return True
        try:
            refusal = self._desk.offer(answer.body)
        except InputError as error:
            self._outbox.note_error(f"parameter set: {error}")
            return False
        if refusal is not None:
            log.warning("parameter set %d refused: %s", refusal.version, refusal.refused)
            self._outbox.report(refusal)
            self.ensure_sending()
        return True

    def _heard(self) -> None:
        self._desk.heard(monotonic())
        if self._said_reachable is False:
            self._say(True, f"the monitor answers again; dropped: {self._outbox.drops_as_text() or 'nothing'}")

    def _unheard(self, detail: str) -> None:
        if self._said_reachable is not False and not self._stop.is_set():
            self._say(False, f"the monitor does not take part, training goes on: {detail}")

    def _say(self, reachable: bool, sentence: str) -> None:
        """One line when contact is lost and one when it is back, not more than one a minute."""
        if monotonic() - self._said_at >= _SAY_GAP:
            self._said_reachable, self._said_at = reachable, monotonic()
            log.warning("%s", sentence)
