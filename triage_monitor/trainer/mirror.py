"""What the monitor found about this run's updates, carried on into the trainer's own experiment tracker.

    submit(step) -> awaited steps -> the sidecar's reports of them -> one tracker

Each tracker has a daemon thread and a connection of its own: one that hangs holds up neither training nor another.
Only steps that this Monitor submitted are asked for, oldest first, a few at a time, and once more when an update closes
out of turn. At most MAX_AWAITED steps wait; a step that never closes, or that the tracker refuses again and again, is
given up and counted. Reading needs the token scope `read`.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from triage_monitor.trainer.answers import Answer, Verdict
from triage_monitor.trainer.courier import Backoff
from triage_monitor.trainer.route import safe_text
from triage_monitor.trainer.trackers import PREFIX, Tracker
from triage_monitor.trainer.transport import Link

log = logging.getLogger("triage_monitor.monitor")

ANSWER_BYTES = 8 * 2**20
MAX_AWAITED = 4096
CHUNK = 8  # updates asked for at once
PATIENCE = 180.0  # seconds for an update to close that later ones overtook
TRIES = 5  # of one step at the tracker
CLOSING_PATIENCE = 2.0  # seconds without news after which a closing mirror takes no more
_CLOSING_PAUSE = 0.1
_SAY_GAP = 60.0
STAGES = {"not_observable": -1, "warming_up": 0, "healthy": 1, "drift": 2, "pre_terminal": 3, "terminal": 4}


@dataclass(slots=True)
class _Awaited:
    since: float
    version: int
    reason: str
    failures: int = 0


class Mirror:
    """One tracker's. `expect` is the trainer's side and returns at once; `connect` makes a connection."""

    def __init__(
        self, tracker: Tracker, base: str, connect: Callable[[], Link], attempt_of: Callable[[], int | None]
    ) -> None:
        self._tracker = tracker
        self._base = base
        self._connect = connect
        self._attempt_of = attempt_of
        self._lock = threading.Lock()
        self._awaited: OrderedDict[int, _Awaited] = OrderedDict()
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._link: Link | None = None
        self._passed = -1  # steps up to here were looked at; what still waits there was overtaken
        self._newest: int | None = None
        self._said: dict[str, str] = {}
        self._said_at = -_SAY_GAP
        self.written = 0
        self.given_up = 0
        self.last_error: str | None = None

    @property
    def name(self) -> str:
        return self._tracker.name

    def snapshot(self) -> dict[str, Any]:
        counts = {"written": self.written, "newest_step": self._newest, "waiting": len(self._awaited)}
        return {**counts, "given_up": self.given_up, "last_error": self.last_error}

    def expect(self, step: int, version: int, reason: str) -> None:
        """The trainer submitted this step, under this parameter set."""
        if self._closing.is_set():
            return
        with self._lock:
            while len(self._awaited) >= MAX_AWAITED:
                self._awaited.popitem(last=False)
                self.given_up += 1
            self._awaited[step] = _Awaited(monotonic(), version, reason)
            if self._thread is None:
                self._link = self._connect()
                self._thread = threading.Thread(target=self._run, name=f"triage-mirror-{self.name}", daemon=True)
                self._thread.start()
        self._changed.set()

    def begin_closing(self) -> None:
        self._closing.set()
        self._changed.set()

    def finish(self, deadline: float) -> None:
        """Waits for what is closed already to be written, at most until `deadline`."""
        self.begin_closing()
        if self._thread is None:
            return
        self._thread.join(max(0.0, deadline - monotonic()))
        self._stop.set()
        self._changed.set()
        if self._link is not None:
            self._link.abort()
        if self._awaited:
            text = f"{self.name}: {len(self._awaited)} updates were not written before the monitor closed"
            self._note(text if self.last_error is None else f"{text}; {self.last_error}")

    def leave_in_child(self) -> None:
        """The parent goes on with it; a forked child has neither its thread nor its connection."""
        if self._link is not None:
            self._link.backend.close_in_child()

    # the mirror's own thread

    def _run(self) -> None:
        link, backoff = self._link, Backoff()
        assert link is not None
        while not self._stop.is_set():
            try:
                self._tracker.open()
                break
            except Exception as error:  # noqa: BLE001  foreign code; training goes on whatever it does
                self._note(f"{self.name} cannot be opened: {type(error).__name__}: {safe_text(error)}")
                if self._closing.is_set():
                    return
                self._pause(backoff.next_delay(0.0))
        self._follow(link)
        link.close()
        try:
            self._tracker.close()
        except Exception as error:  # noqa: BLE001  as above
            self._note(f"{self.name} cannot be closed: {type(error).__name__}: {safe_text(error)}")

    def _follow(self, link: Link) -> None:
        backoff, heard_at = Backoff(), None
        while not self._stop.is_set():
            came = self._round(link)
            if came:
                backoff.reset()
            if not self._awaited:
                if self._closing.is_set():
                    return
                self._changed.wait()
                self._changed.clear()
                continue
            if not self._closing.is_set():
                self._pause(backoff.next_delay(0.0))
                continue
            heard_at = monotonic() if came or heard_at is None else heard_at
            if monotonic() - heard_at > CLOSING_PATIENCE:
                return
            self._stop.wait(_CLOSING_PAUSE)

    def _pause(self, seconds: float) -> None:
        """Ends early only when the monitor closes: a new step is no reason to ask sooner."""
        end = monotonic() + seconds
        while not self._closing.is_set() and (left := end - monotonic()) > 0:
            self._changed.wait(left)
            self._changed.clear()

    def _round(self, link: Link) -> bool:
        """One look for the next updates, and for one that was overtaken; True when something was written."""
        try:
            with self._lock:
                steps = list(self._awaited)
            ahead = sorted(step for step in steps if step > self._passed)[:CHUNK]
            late = [step for step in steps if step <= self._passed][:1]
            came = [self._copy(link, part) for part in (ahead, late) if part]
            if ahead and not any(came):
                self._look_past(link, ahead[-1])
            self._forget(late)
            return any(came)
        except Exception as error:  # noqa: BLE001  a trainer must outlive every bug in here
            self._note(f"{type(error).__name__}: {safe_text(error)}")
            return False

    def _copy(self, link: Link, steps: list[int]) -> bool:
        if not self._tracker.is_ready():
            return False
        bounds = {"from": steps[0], "to": steps[-1], "limit": CHUNK}
        rows = self._read(link, "update", bounds)
        merged = {row["step"]: row for row in (self._read(link, "window", bounds) if rows else [])}
        came = False
        for row in rows:
            awaited = self._awaited.get(row["step"])
            if awaited is None or row["step"] not in merged:
                continue
            if not self._tracker.is_ready() or not self._write(row, merged[row["step"]], awaited):
                return came
            came = True
        return came

    def _look_past(self, link: Link, step: int) -> None:
        """Of an outage whole stretches never arrived: where later updates are closed, the search goes on with them."""
        if self._tracker.is_ready() and self._read(link, "update", {"from": step + 1, "limit": 1}):
            self._passed = max(self._passed, step)

    def _read(self, link: Link, scope: str, query: Mapping[str, int]) -> list[Mapping[str, Any]]:
        """Reports of this launch's own updates."""
        answer = link.call("GET", f"{self._base}/updates", query={**query, "scope": scope})
        if answer.verdict is not Verdict.OK:
            self._unread(answer)
            return []
        attempt = self._attempt_of()
        return [row for row in answer.body.get(f"{scope}s", []) if row["attempt"] == attempt]

    def _unread(self, answer: Answer) -> None:
        if answer.status in (401, 403):
            self._note(f"the monitor lets this token read nothing, the mirror needs the scope `read`: {answer.detail}")
        elif answer.status != 404 and not self._stop.is_set():  # before its first update a run is unknown
            self._note(f"the monitor does not answer: {answer.detail}")

    def _write(self, update: Mapping[str, Any], window: Mapping[str, Any], awaited: _Awaited) -> bool:
        step = update["step"]
        texts = {f"{PREFIX}stage_name": update["stage"]}
        if awaited.reason:
            texts[f"{PREFIX}params_reason"] = awaited.reason
        news = {name: text for name, text in texts.items() if self._said.get(name) != text}
        try:
            self._tracker.write(step, update["closed_at"], values_of(update, window, awaited.version), news)
        except (Exception, SystemExit) as error:  # noqa: BLE001  foreign code; nothing it raises ends this thread
            self._note(f"{self.name}, step {step}: {type(error).__name__}: {safe_text(error)}")
            awaited.failures += 1
            if awaited.failures >= TRIES:
                self._drop(step)
            return False
        self._said |= news
        self.written += 1
        self._passed = max(self._passed, step)
        self._newest = step if self._newest is None else max(self._newest, step)
        with self._lock:
            self._awaited.pop(step, None)
        return True

    def _forget(self, late: Iterable[int]) -> None:
        """An overtaken step that waited its time is given up; others take their turn after it."""
        for step in late:
            awaited = self._awaited.get(step)
            if awaited is None:
                continue
            if monotonic() - awaited.since > PATIENCE:
                self._drop(step)
            else:
                with self._lock:
                    self._awaited.move_to_end(step)

    def _drop(self, step: int) -> None:
        with self._lock:
            if self._awaited.pop(step, None) is not None:
                self.given_up += 1

    def _note(self, text: str) -> None:
        self.last_error = text
        if monotonic() - self._said_at >= _SAY_GAP:
            self._said_at = monotonic()
            log.warning("mirror: %s", text)


def snapshots(mirrors: Iterable[Mirror]) -> dict[str, dict[str, Any]]:
    """By tracker; the second of a kind is `function_2`."""
    kinds: Counter[str] = Counter()
    found = {}
    for one in mirrors:
        kinds[one.name] += 1
        found[one.name if kinds[one.name] == 1 else f"{one.name}_{kinds[one.name]}"] = one.snapshot()
    return found


def values_of(update: Mapping[str, Any], window: Mapping[str, Any], version: int) -> dict[str, float]:
    """Flat name -> number; a number that is not known has no name."""
    found: dict[str, Any] = {"stage": STAGES.get(update["stage"]), "params_version": version}
    found["score"] = (window.get("score") or {}).get("value")
    for scope, report in (("window", window), ("update", update)):
        found |= {f"{scope}/{name}": value for name, value in report.get("indicators", {}).items()}
    for level, value in window.get("quantiles", {}).get("all", {}).items():
        found[f"window/q{level}_all"] = value
    return {
        PREFIX + name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
