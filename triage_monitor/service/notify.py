"""Messages to people by chat, mail or pager, through apprise: the alarm, the collapse, a hand-over, and recovery.

One message per condition: `pre_terminal` and `terminal` are told once each until the run is healthy again, which is
told once if an alarm was; a stage that flickers says nothing new. A hand-over is told as it happens. Addresses are
secrets: a receiver is known by its number here, and apprise's own log, which quotes addresses, is turned off.

apprise connects by itself, on one thread of ours, and says only whether it worked: what did not is tried again with
doubling pauses, at most `max_attempts` times.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from prometheus_client.core import Metric

from triage_monitor.config_alerts import NotifySettings
from triage_monitor.errors import ConfigError
from triage_monitor.judge.stages import Stage
from triage_monitor.service.alerts import BY_NAME
from triage_monitor.service.delivery import DELIVERED, FAILED
from triage_monitor.service.follower import Follower
from triage_monitor.service.sidecar import Sidecar
from triage_monitor.service.webhook import outcome_families
from triage_monitor.service.webhook_feed import Notice
from triage_monitor.storage.records import TransitionRow

if TYPE_CHECKING:
    from apprise import Apprise

ALERT_OF = {Stage.PRE_TERMINAL.value: "TriageRunPreTerminal", Stage.TERMINAL.value: "TriageRunTerminal"}


@dataclass(frozen=True, slots=True)
class Message:
    """`kind` is apprise's: info, success, warning or failure."""

    kind: str
    title: str
    text: str


def message_of(run: str, transitions: Iterable[TransitionRow]) -> Message | None:
    """What the last of a run's transitions, oldest first, has to say; None for nothing new."""
    said: Message | None = None
    told: set[str] = set()
    was_alarmed = False
    for row in transitions:
        said = None
        if row.after in ALERT_OF and row.after not in told:
            told.add(row.after)
            was_alarmed = True
            alert = BY_NAME[ALERT_OF[row.after]]
            kind = "failure" if row.after == Stage.TERMINAL.value else "warning"
            why = row.evidence.get("text", "")
            said = Message(kind, f"{run}: {alert.summary}", "\n".join(part for part in (why, alert.remedy) if part))
        elif row.after in (Stage.HEALTHY.value, Stage.WARMING_UP.value):
            told.clear()
            if was_alarmed and row.after == Stage.HEALTHY.value:
                was_alarmed = False
                said = Message("success", f"{run}: healthy again", f"Recovered at step {row.step}.")
    return said


class Notifier:
    """Made once for an application. ConfigError when apprise is not there or cannot read an address."""

    def __init__(self, settings: NotifySettings, sidecar: Sidecar, page: str) -> None:
        self._settings = settings
        self._sidecar = sidecar
        self._page = page
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="notify")
        self._followers = [
            # No webhook's name has a colon, so the cursors are apart.
            Follower(f"notify:{number}", sidecar, partial(self._tell, _receiver(where, address)))
            for number, (where, address) in enumerate(settings.addresses())
        ]

    async def start(self) -> None:
        """Begins where the last process ended; a receiver that is new here is told nothing of before."""
        for follower in self._followers:
            await follower.start()

    async def stop(self) -> None:
        """Lets go of what is being sent; the next start sends it again."""
        for follower in self._followers:
            await follower.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _tell(self, receiver: Apprise, follower: Follower, notice: Notice) -> None:
        message = await self._message(notice)
        if message is None:
            return
        link = f"{self._page}/#/run/{quote(notice.run, safe='')}"
        send = partial(self._send, receiver, message, f"{message.text}\n{link}")
        await follower.insist(send, notice.delivery, self._settings.max_attempts, self._settings.backoff_seconds)

    async def _message(self, notice: Notice) -> Message | None:
        if "handed_over" in notice.events:
            why = str(notice.body["change"]["reason"])
            return Message("warning", f"{notice.run}: handed over, a person is asked to decide", why)
        if "stage" not in notice.events:
            return None
        rows = await asyncio.to_thread(self._sidecar.store.rows, TransitionRow, notice.run)
        return message_of(notice.run, [row for row in rows if row.number <= notice.cursor.transitions])

    async def _send(self, receiver: Apprise, message: Message, text: str) -> tuple[str, float]:
        work = partial(_notify, receiver, message, text)
        worked = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        return (DELIVERED if worked else FAILED), 0.0

    def families(self) -> Iterator[Metric]:
        """For `/metrics`; nothing when no receiver is configured."""
        text = "Messages to people by outcome; failed ones are tried again"
        return outcome_families("triage_notify", "messages", text, self._followers)


def _receiver(where: str, address: str) -> Apprise:
    try:
        import apprise
    except ImportError:
        raise ConfigError(
            "notify needs apprise, which is not installed: pip install 'triage-monitor[notify]'"
        ) from None
    own_log = logging.getLogger("apprise")  # `disabled` would be undone when uvicorn configures logging
    own_log.propagate = False
    own_log.setLevel(logging.CRITICAL + 1)
    # Its debug lines have the path of every request, and a chat's path is its secret.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    found = apprise.Apprise(asset=apprise.AppriseAsset(app_id="triage-monitor", http_redirects=False))
    if not found.add(address):
        raise ConfigError(f"{where} is no address that apprise understands")
    return found


def _notify(receiver: Apprise, message: Message, text: str) -> bool:
    from apprise import NotifyType

    return bool(receiver.notify(body=text, title=message.title, notify_type=NotifyType(message.kind)))
