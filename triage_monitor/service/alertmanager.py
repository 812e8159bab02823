"""Pushes alerts to Alertmanager's v2 API by itself, for those who run no rules (conditions).

    POST url/api/v2/alerts   [{labels {alertname, run, severity[, cause]}, annotations, startsAt, endsAt, generatorURL}]

One logical alert per condition and run: its labels are its key, the same on every try. What holds is sent at once,
then every `resend_seconds` with an `endsAt` four of these ahead, so an alert of a monitor that is gone ends by itself;
what ended is sent until Alertmanager has taken its end. What is held is stored (AlertsRow), so a restart goes on with
it. `startsAt` is when the condition was seen to fire.

A push that failed is tried again with doubling pauses. One that was refused is not, before the next round: the same
body would be refused again. Everything runs on a task of its own; nobody waits for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from triage_monitor.config_access import read_secret
from triage_monitor.config_alerts import AlertmanagerSettings
from triage_monitor.errors import TriageError
from triage_monitor.service.alerts import BY_NAME, RUNBOOK
from triage_monitor.service.conditions import OF_A_RUN, OF_THE_MONITOR, Held, Seen, advanced, ended
from triage_monitor.service.delivery import DELIVERED, FAILED, FORBIDDEN, REFUSED, Courier
from triage_monitor.service.sidecar import Sidecar
from triage_monitor.storage.records import AlertsRow

logger = logging.getLogger("triage_monitor")
MONITOR = ""  # the run of alerts about the monitor itself
ALERTS_A_POST = 200
LIVES = 4  # resends that an alert outlives
Key = tuple[str, str]  # run, condition


class AlertmanagerPush:
    """Made once for an application (ConfigError for a token that cannot be read). `page` is where people reach it."""

    def __init__(self, settings: AlertmanagerSettings, sidecar: Sidecar, page: str) -> None:
        self._settings = settings
        self._sidecar = sidecar
        self._page = page
        secret = read_secret(settings.token_file, "alertmanager.token_file") if settings.token_file else None
        self._headers = {} if secret is None else {"Authorization": f"Bearer {secret.value.decode('latin-1')}"}
        self._courier: Courier | None = None
        self._worker: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._changed: dict[str, None] = {}  # runs to be looked at, in order
        self._held: dict[str, dict[str, Held]] = {}
        self._news: set[Key] = set()  # not yet taken by Alertmanager
        self._resend_at = 0.0
        self._retry_at = 0.0
        self._pause = settings.backoff_seconds
        self._outcomes: Counter[str] = Counter()
        self._failing = False
        self._lost_writes: int | None = None  # found in damaged files and not looked at yet

    async def start(self) -> None:
        """Takes up what the last process held."""
        if not self._settings.url:
            return
        settings, store = self._settings, self._sidecar.store
        self._courier = await asyncio.to_thread(
            Courier, allow_private=settings.allow_private, timeout_seconds=settings.timeout_seconds
        )
        for run in await asyncio.to_thread(store.runs):
            row = await asyncio.to_thread(store.get, AlertsRow, run)
            if row is not None and row.held:
                now = self._sidecar.now()
                self._held[run] = {key: Held(**item, held_at=now) for key, item in row.held.items()}
        self._lost_writes = (await asyncio.to_thread(lambda: store.damage)).lost_now
        self._resend_at = self._retry_at = self._sidecar.clock.monotonic()
        self._sidecar.hub.taps.append(self._heard)
        self._worker = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """What holds stays held: the next start sends it again."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        if self._courier is not None:
            await self._courier.close()

    def _heard(self, run: str, event: str) -> None:
        self._changed[run] = None
        self._wake.set()

    async def _work(self) -> None:
        while True:
            try:
                await self._round()
                clock = self._sidecar.clock.monotonic()
                due = self._resend_at if not self._news else min(self._resend_at, self._retry_at)
                pause = max(due, self._retry_at) - clock
            except Exception:  # the worker must outlive what one round does to it; it is said and tried again
                logger.exception("alerts could not be pushed")
                pause = self._settings.resend_seconds
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), max(pause, 0.01))

    async def _round(self) -> None:
        self._wake.clear()
        is_due = self._sidecar.clock.monotonic() >= max(self._resend_at, self._retry_at)
        changed, self._changed = list(self._changed), {}
        for run in {*self._sidecar.runs, *self._held} - {MONITOR} if is_due else changed:
            await self._look(run)
        self._look_at_monitor()
        if self._sidecar.clock.monotonic() >= self._retry_at:
            await self._send(is_due)

    async def _look(self, run: str) -> None:
        live, now = self._sidecar.runs.get(run), self._sidecar.now()
        before = self._held.get(run, {})
        if live is None or self._sidecar.is_retired(live):
            after = ended(before, now)
        else:
            after = advanced(OF_A_RUN, Seen(live.snapshot, now, before))
        self._held[run] = after
        if after != before:
            self._note(run, before, after)
            await self._keep(run)

    def _look_at_monitor(self) -> None:
        """Kept in memory only: the store is what it is about."""
        failed = self._sidecar.last_write_failed is not None
        before = self._held.get(MONITOR, {})
        lost, self._lost_writes = self._lost_writes, None
        after = advanced(OF_THE_MONITOR, Seen(None, self._sidecar.now(), before, failed, lost))
        self._held[MONITOR] = after
        self._note(MONITOR, before, after)

    def _note(self, run: str, before: dict[str, Held], after: dict[str, Held]) -> None:
        known = {key: (item.firing_at, item.ended_at) for key, item in before.items()}
        for key, item in after.items():
            if item.firing_at is not None and known.get(key) != (item.firing_at, item.ended_at):
                self._news.add((run, key))

    async def _keep(self, run: str) -> None:
        held = {key: asdict(item) for key, item in self._held[run].items()}
        for item in held.values():
            del item["held_at"]
        with suppress(TriageError):  # the store says itself that it takes no writes; the alerts go out all the same
            await self._sidecar.write(AlertsRow(run, held))

    async def _send(self, is_due: bool) -> None:
        """Everything that fires or ended when the round is due, else the news."""
        keys = [(run, key) for run, held in self._held.items() for key in held] if is_due else sorted(self._news)
        found = [(key, self._held.get(key[0], {}).get(key[1])) for key in keys]
        fit = [(key, item) for key, item in found if item is not None and item.firing_at is not None]
        for start in range(0, len(fit), ALERTS_A_POST):
            if not await self._post(fit[start : start + ALERTS_A_POST]):
                return
        self._news -= set(keys)
        if is_due:
            self._resend_at = self._sidecar.clock.monotonic() + self._settings.resend_seconds

    async def _post(self, part: Sequence[tuple[Key, Held]]) -> bool:
        """Whether these are done with, taken or refused."""
        assert self._courier is not None
        now = self._sidecar.now()
        body = json.dumps([self._alert(key, item, now) for key, item in part], allow_nan=False).encode()
        address = self._settings.url.rstrip("/") + "/api/v2/alerts"
        outcome, asked_pause = await self._courier.post(address, body, self._headers)
        self._outcomes[outcome] += 1
        if outcome != DELIVERED and not self._failing:
            logger.warning("alertmanager: a push of %d alerts: %s", len(part), outcome)
        self._failing = outcome != DELIVERED
        if outcome == FAILED:
            self._news |= {key for key, _ in part}
            self._retry_at = self._sidecar.clock.monotonic() + max(self._pause, asked_pause)
            self._pause = min(self._pause * 2, max(self._settings.resend_seconds, self._settings.backoff_seconds))
            return False
        self._pause = self._settings.backoff_seconds
        await self._forget([(key, item) for key, item in part if item.ended_at is not None])
        return True

    async def _forget(self, over: Sequence[tuple[Key, Held]]) -> None:
        """Ends that were told."""
        for (run, key), item in over:
            if self._held[run].get(key) == item:
                del self._held[run][key]
        for run in {run for (run, _), _ in over} - {MONITOR}:
            await self._keep(run)

    def _alert(self, key: Key, item: Held, now: float) -> dict[str, Any]:
        run, condition = key
        name, _, cause = condition.partition("/")
        alert = BY_NAME[name]
        labels = {"alertname": name, "run": run, "severity": alert.severity, "cause": cause}
        link = f"{self._page}/#/run/{quote(run, safe='')}" if run else f"{self._page}/"
        assert item.firing_at is not None
        until = now + LIVES * self._settings.resend_seconds if item.ended_at is None else item.ended_at
        return {
            "labels": {label: value for label, value in labels.items() if value},
            "annotations": {
                "summary": f"{run}: {alert.summary}" if run else alert.summary,
                "description": f"{alert.means} {alert.remedy}",
                "runbook_url": alert.runbook_on(self._settings.runbook_base or RUNBOOK),
            },
            "startsAt": _written(min(item.firing_at, now, until)),  # the clock may have gone back since
            "endsAt": _written(until),
            "generatorURL": link,
        }

    def families(self) -> Iterator[Metric]:
        """For `/metrics`; nothing when no address is configured."""
        if not self._settings.url:
            return
        posts = CounterMetricFamily("triage_alertmanager_posts", "Pushes to Alertmanager by outcome")
        for outcome in (DELIVERED, FAILED, REFUSED, FORBIDDEN):
            posts.add_sample("triage_alertmanager_posts_total", {"outcome": outcome}, self._outcomes[outcome])
        yield posts
        text = "1 while the last push to Alertmanager did not succeed"
        yield GaugeMetricFamily("triage_alertmanager_failing", text, value=float(self._failing))
        text = "Alerts that fire by the monitor's own conditions"
        every = [item for held in list(self._held.values()) for item in list(held.values())]
        firing = sum(item.firing_at is not None and item.ended_at is None for item in every)
        yield GaugeMetricFamily("triage_alertmanager_alerts", text, value=float(firing))


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
