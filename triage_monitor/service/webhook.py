"""Outgoing webhooks: changes of stage, parameter changes and handed-over runs, signed, each at least once.

    POST url   Triage-Delivery (also Idempotency-Key), Triage-Event, Triage-Timestamp, Triage-Signature (signature.py)
    {"delivery", "event", "run", "transition": {...} or "change": {the audit entry, its link included}}

One worker for each target sends in order. Timeouts, connection trouble, 408, 425, 429 and 5xx are tried again with
doubling pauses (Retry-After is heeded), at most `max_attempts` times; any other answer, a redirect included, and a
forbidden address are final. Outcomes are counted; a target is known by its name, its address is never said.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from triage_monitor.config_access import Secret, WebhookSettings, WebhookTarget, read_secret
from triage_monitor.service.sidecar import Sidecar
from triage_monitor.service.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from triage_monitor.service.webhook_address import ForbiddenAddress, resolved
from triage_monitor.service.webhook_feed import EVERY_RUN, Notice, pending
from triage_monitor.storage.records import CursorRow

logger = logging.getLogger("triage_monitor")
LONGEST_PAUSE = 300.0
AGAIN = frozenset({408, 425, 429})
OUTCOMES = ("delivered", "failed", "refused", "forbidden_address", "gave_up")


@dataclass(slots=True)
class _Target:
    settings: WebhookTarget
    secret: Secret
    began_at: float = 0.0
    runs: dict[str, None] = field(default_factory=dict)  # to be looked at, in order
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    outcomes: Counter[str] = field(default_factory=Counter)
    failing: bool = False


class Webhooks:
    """Made once for an application (ConfigError for a secret that cannot be read); `start` and `stop` it."""

    def __init__(self, settings: WebhookSettings, sidecar: Sidecar) -> None:
        self._settings = settings
        self._sidecar = sidecar
        self._targets = [
            _Target(target, read_secret(target.secret_file, f"webhooks.targets.{target.name}.secret_file"))
            for target in settings.targets
        ]
        self._workers: list[asyncio.Task[None]] = []
        self._client: httpx.AsyncClient | None = None

    async def start(self) -> None:
        """Begins where the last process ended."""
        if not self._targets:
            return
        context = ssl.create_default_context()
        self._client = httpx.AsyncClient(
            verify=context, trust_env=False, follow_redirects=False, limits=httpx.Limits(max_keepalive_connections=0)
        )
        store = self._sidecar.store
        runs = await asyncio.to_thread(store.runs)
        for target in self._targets:
            name = target.settings.name
            begun = await asyncio.to_thread(store.get, CursorRow, EVERY_RUN, name)
            if begun is None:
                begun = CursorRow(EVERY_RUN, name, self._sidecar.now(), 0, 0)
                await self._sidecar.write(begun)
            target.began_at = begun.at
            target.runs = dict.fromkeys(runs)
            target.wake.set()
            self._workers.append(asyncio.create_task(self._work(target)))
        self._sidecar.hub.taps.append(self._heard)

    async def stop(self) -> None:
        """Lets go of what is being sent; the next start sends it again."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    def _heard(self, run: str, event: str) -> None:
        if event != "update":
            for target in self._targets:
                target.runs[run] = None
                target.wake.set()

    async def _work(self, target: _Target) -> None:
        while True:
            await target.wake.wait()
            target.wake.clear()
            while target.runs:
                run = next(iter(target.runs))
                del target.runs[run]
                try:
                    await self._catch_up(target, run)
                except Exception:  # the worker must outlive what one run does to it; it is said and tried again
                    logger.exception("webhook %s could not be served", target.settings.name)
                    target.runs[run] = None
                    await asyncio.sleep(LONGEST_PAUSE / 30)

    async def _catch_up(self, target: _Target, run: str) -> None:
        store, name = self._sidecar.store, target.settings.name
        for notice in await asyncio.to_thread(pending, store, run, name, target.began_at):
            event = next((item for item in notice.events if item in target.settings.events), None)
            if event is not None:
                target.outcomes[await self._insist(target, notice, event)] += 1
            await self._sidecar.write(notice.cursor)

    async def _insist(self, target: _Target, notice: Notice, event: str) -> str:
        """How it ended."""
        about = {"delivery": notice.delivery, "event": event, "run": notice.run}
        body = json.dumps({**about, **notice.body}, allow_nan=False).encode()
        pause = self._settings.backoff_seconds
        for attempt in range(1, self._settings.max_attempts + 1):
            outcome, asked_pause = await self._send(target, about, body)
            target.failing = outcome != "delivered"
            if outcome != "failed":
                break
            target.outcomes["failed"] += 1
            if attempt < self._settings.max_attempts:
                await asyncio.sleep(min(max(pause, asked_pause), LONGEST_PAUSE))
                pause *= 2
        else:
            outcome = "gave_up"
        if outcome != "delivered":
            logger.warning("webhook %s: delivery %s: %s", target.settings.name, notice.delivery, outcome)
        return outcome

    async def _send(self, target: _Target, about: dict[str, str], body: bytes) -> tuple[str, float]:
        """One try: its outcome, and the pause that the receiver asked for."""
        assert self._client is not None
        url = httpx.URL(target.settings.url)
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                port = url.port or (443 if url.scheme == "https" else 80)
                address = await resolved(url.host, port, allow_private=self._settings.allow_private)
                request = self._client.build_request(
                    "POST",
                    url.copy_with(host=address),
                    content=body,
                    headers=self._headers(target, about, body, url.netloc.decode("ascii")),
                    extensions={"sni_hostname": url.host},
                )
                answer = await self._client.send(request, stream=True)
                await answer.aclose()
        except ForbiddenAddress:
            return "forbidden_address", 0.0
        except (TimeoutError, httpx.HTTPError, OSError):
            return "failed", 0.0
        if answer.is_success:
            return "delivered", 0.0
        if answer.status_code in AGAIN or answer.is_server_error:
            text = answer.headers.get("retry-after", "")
            return "failed", float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0
        return "refused", 0.0

    def _headers(self, target: _Target, about: dict[str, str], body: bytes, host: str) -> dict[str, str]:
        timestamp = int(self._sidecar.now())
        return {
            "Host": host,
            "Content-Type": "application/json",
            "User-Agent": "triage-monitor",
            "Idempotency-Key": about["delivery"],
            "Triage-Delivery": about["delivery"],
            "Triage-Event": about["event"],
            TIMESTAMP_HEADER: str(timestamp),
            SIGNATURE_HEADER: sign(target.secret, timestamp, body),
        }

    def families(self) -> Iterator[Metric]:
        """For `/metrics`; nothing when no target is configured."""
        if not self._targets:
            return
        text = "Webhook deliveries by outcome; failed ones are tried again"
        deliveries = CounterMetricFamily("triage_webhook_deliveries", text)
        text = "1 while the last delivery to the target did not succeed"
        failing = GaugeMetricFamily("triage_webhook_failing", text)
        for target in self._targets:
            here = {"target": target.settings.name}
            failing.add_sample("triage_webhook_failing", here, float(target.failing))
            for outcome in OUTCOMES:
                labels = {**here, "outcome": outcome}
                deliveries.add_sample("triage_webhook_deliveries_total", labels, target.outcomes[outcome])
        yield deliveries
        yield failing
