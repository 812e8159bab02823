"""Messages to people, through the real apprise to a receiver on loopback: one a condition, and no address told."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from deploy.monitoring import wait_for
from service.live_server import LiveServer, masses, serving
from service.webhook_receiver import Receiver, receiving

from triage_monitor.config import Settings
from triage_monitor.errors import ConfigError
from triage_monitor.service.auditing import audit_hand_over
from triage_monitor.service.notify import message_of
from triage_monitor.storage.records import TransitionRow
from triage_monitor.storage.sqlite import SqliteStore

SECRET = "s3cr3t-word"
# apprise looks for a module that Python 3.11 and 3.12 still have, and deprecate.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")


def settings(receiver: Receiver, **more: Any) -> Settings:
    given = {"urls": [f"json://ops:{SECRET}@127.0.0.1:{receiver.port}/{SECRET}"], "backoff_seconds": 0.01, **more}
    server = {"port": 0, "public_url": "https://triage.example"}
    return Settings.from_dict({"server": server, "notify": given})


def transition(number: int, after: str) -> TransitionRow:
    return TransitionRow("run", number, 0, 10 * number, 2e9 + number, "drift", after, {"text": f"why {number}"})


def change_stage(live: LiveServer, number: int, after: str) -> None:
    async def change() -> None:
        row = transition(number, after)
        await live.sidecar.write(row)
        live.sidecar.hub.publish("run", "stage", row.evidence)

    live.call(change())


def hand_over(live: LiveServer) -> None:
    async def change() -> None:
        run = live.sidecar.runs["run"]
        row = audit_hand_over(run, live.sidecar.now(), "nothing helped")
        await live.sidecar.write(row)
        run.audited(row)
        live.sidecar.hub.publish("run", "action", {"kind": row.kind})

    live.call(change())


def sent(live: LiveServer, outcome: str) -> float:
    return live.metrics()[f'triage_notify_messages_total{{outcome="{outcome}",target="notify:0"}}']


def test_alarm_collapse_hand_over_and_recovery_are_told_once_each(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    store = SqliteStore(tmp_path)
    with receiving() as receiver:
        receiver.answers = [(500, {})]
        given = settings(receiver)
        with serving(given, store) as live:
            live.put("run", 1, masses(3, 2))
            stages = ("drift", "pre_terminal", "drift", "pre_terminal", "terminal")
            for number, after in enumerate(stages, 1):
                change_stage(live, number, after)
            receiver.wait_for(3)
            hand_over(live)
            receiver.wait_for(4)
            wait_for("they are counted", lambda: sent(live, "delivered") == 3 and sent(live, "failed") == 1)
        with serving(given, store) as live:
            change_stage(live, 6, "healthy")
            got = receiver.wait_for(5)
            wait_for("it is counted", lambda: sent(live, "delivered") == 1)
            shown = live.http.get("/metrics").text + caplog.text + repr(given)
    store.close()
    told = [(item.body["type"], item.body["title"]) for item in got]
    assert told[0] == told[1]
    assert told[1:] == [
        ("warning", "run: leading indicators are far out of their baseline (stage pre_terminal)"),
        ("failure", "run: the run has collapsed (stage terminal)"),
        ("warning", "run: handed over, a person is asked to decide"),
        ("success", "run: healthy again"),
    ]
    assert got[1].body["message"].startswith("why 2\nGate and repair")
    assert got[1].body["message"].endswith("\nhttps://triage.example/#/run/run")
    assert SECRET in got[1].path and SECRET not in shown


def test_alarm_is_told_again_after_recovery_and_after_a_cleared_collapse() -> None:
    def titles(*stages: str) -> list[str]:
        rows = [transition(number, after) for number, after in enumerate(stages, 1)]
        found = [message_of("run", rows[: end + 1]) for end in range(len(rows))]
        return ["" if item is None else item.kind for item in found]

    assert titles("healthy", "drift", "healthy") == ["", "", ""]
    assert titles("pre_terminal", "healthy", "pre_terminal") == ["warning", "success", "warning"]
    assert titles("terminal", "warming_up", "healthy", "healthy") == ["failure", "", "success", ""]
    assert titles("terminal", "warming_up", "terminal") == ["failure", "", "failure"]


def test_address_that_is_none_is_named_by_place_and_not_shown(tmp_path: Path) -> None:
    listed = tmp_path / "urls"
    listed.write_text(f"\nnothing://{SECRET}\n")
    for given, named in (
        ({"urls": [f"nothing://{SECRET}"]}, r"notify.urls\[0\] is no address"),
        ({"urls_file": str(listed)}, "notify.urls_file line 2 is no address"),
        ({"urls_file": str(tmp_path / "absent")}, "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=named) as told, serving(Settings.from_dict({"notify": given})):
            pass
        assert SECRET not in str(told.value)


def test_without_apprise_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    given = Settings.from_dict({"notify": {"urls": ["json://127.0.0.1"]}})
    with pytest.raises(ConfigError, match=r"pip install 'triage-monitor\[notify\]'"), serving(given):
        pass
