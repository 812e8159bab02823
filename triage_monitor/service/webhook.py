"""Outgoing webhooks: changes of stage, parameter changes and handed-over runs, signed, each at least once.

    POST url   Triage-Delivery (also Idempotency-Key), Triage-Event, Triage-Timestamp, Triage-Signature (signature.py)
    {"delivery", "event", "run", "transition": {...} or "change": {the audit entry, its link included}}

One worker for each target sends in order (follower); what failed is tried again, at most `max_attempts` times
(delivery). Outcomes are counted; a target is known by its name, its address is never said.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from triage_monitor.config_access import Secret, WebhookSettings, WebhookTarget, read_secret
from triage_monitor.service.delivery import OUTCOMES, Courier
from triage_monitor.service.follower import Follower
from triage_monitor.service.sidecar import Sidecar
from triage_monitor.service.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from triage_monitor.service.webhook_feed import Notice


class Webhooks:
    """Made once for an application (ConfigError for a secret that cannot be read); `start` and `stop` it."""

    def __init__(self, settings: WebhookSettings, sidecar: Sidecar) -> None:
        self._settings = settings
        self._sidecar = sidecar
        self._courier: Courier | None = None
        self._followers = []
        for target in settings.targets:
            secret = read_secret(target.secret_file, f"webhooks.targets.{target.name}.secret_file")
            self._followers.append(Follower(target.name, sidecar, partial(self._tell, target, secret)))

    async def start(self) -> None:
        """Begins where the last process ended."""
        if not self._followers:
            return
        settings = self._settings
        # Reading the machine's certificates takes a moment.
        self._courier = await asyncio.to_thread(
            Courier, allow_private=settings.allow_private, timeout_seconds=settings.timeout_seconds
        )
        for follower in self._followers:
            await follower.start()

    async def stop(self) -> None:
        """Lets go of what is being sent; the next start sends it again."""
        for follower in self._followers:
            await follower.stop()
        if self._courier is not None:
            await self._courier.close()

    async def _tell(self, target: WebhookTarget, secret: Secret, follower: Follower, notice: Notice) -> None:
        event = next((item for item in notice.events if item in target.events), None)
        if event is None:
            return
        about = {"delivery": notice.delivery, "event": event, "run": notice.run}
        body = json.dumps({**about, **notice.body}, allow_nan=False).encode()
        send = partial(self._send, target, secret, about, body)
        settings = self._settings
        await follower.insist(send, notice.delivery, settings.max_attempts, settings.backoff_seconds)

    async def _send(
        self, target: WebhookTarget, secret: Secret, about: dict[str, str], body: bytes
    ) -> tuple[str, float]:
        assert self._courier is not None
        timestamp = int(self._sidecar.now())
        headers = {
            "Idempotency-Key": about["delivery"],
            "Triage-Delivery": about["delivery"],
            "Triage-Event": about["event"],
            TIMESTAMP_HEADER: str(timestamp),
            SIGNATURE_HEADER: sign(secret, timestamp, body),
        }
        return await self._courier.post(target.url, body, headers)

    def families(self) -> Iterator[Metric]:
        """For `/metrics`; nothing when no target is configured."""
        text = "Webhook deliveries by outcome; failed ones are tried again"
        return outcome_families("triage_webhook", "deliveries", text, self._followers)


def outcome_families(prefix: str, what: str, text: str, followers: Iterable[Follower]) -> Iterator[Metric]:
    """`<prefix>_<what>_total{target, outcome}` and `<prefix>_failing{target}`; nothing without followers."""
    followers = tuple(followers)
    if not followers:
        return
    counts = CounterMetricFamily(f"{prefix}_{what}", text)
    failing = GaugeMetricFamily(f"{prefix}_failing", "1 while the last delivery to the target did not succeed")
    for follower in followers:
        here = {"target": follower.name}
        failing.add_sample(f"{prefix}_failing", here, float(follower.failing))
        for outcome in OUTCOMES:
            counts.add_sample(f"{prefix}_{what}_total", {**here, "outcome": outcome}, follower.outcomes[outcome])
    yield counts
    yield failing
