"""Outgoing webhooks against a real receiver: signed, in order, at least once, never to a private address unasked."""

from __future__ import annotations

import hashlib
import hmac
import time
from pathlib import Path
from typing import Any

import pytest
from service.live_server import LiveServer, masses, serving
from service.webhook_receiver import Received, Receiver, receiving

from triage_monitor.config import Settings
from triage_monitor.errors import ConfigError
from triage_monitor.service.webhook_address import is_public
from triage_monitor.storage.base import Store
from triage_monitor.storage.sqlite import SqliteStore

SECRET = b"0123456789abcdef0123456789abcdef"


def settings(home: Path, url: str, **webhooks: Any) -> Settings:
    (home / "hook.secret").write_bytes(SECRET + b"\n")
    target = {"name": "pager", "url": url, "secret_file": str(home / "hook.secret")} | webhooks.pop("target", {})
    given = {"allow_private": True, "backoff_seconds": 0.01, "targets": [target], **webhooks}
    data = {"server": {"port": 0}, "store": {"data_dir": str(home)}, "webhooks": given}
    return Settings.from_dict({**data, "judge": {"policy": {"mode": "adaptive"}}})


def url_of(receiver: Receiver, host: str = "127.0.0.1") -> str:
    return f"http://{host}:{receiver.port}/in?key=s3cret-in-url"


def act(server: LiveServer, key: str, *, run: str = "run", **body: Any) -> None:
    answer = server.http.post(f"/v1/runs/{run}/actions", json=body, headers={"Idempotency-Key": key})
    assert answer.status_code == 201, answer.text


def outcomes(server: LiveServer) -> dict[str, float]:
    start = 'triage_webhook_deliveries_total{outcome="'
    found = {name: value for name, value in server.metrics().items() if name.startswith(start)}
    return {name.removeprefix(start).partition('"')[0]: value for name, value in found.items() if value}


def eventually(server: LiveServer, wanted: dict[str, float]) -> None:
    """Waits until the outcomes are these: they are counted a moment after the receiver answered."""
    until = time.monotonic() + 60
    while outcomes(server) != wanted:
        assert time.monotonic() < until, outcomes(server)


def is_signed(item: Received) -> bool:
    text = item.headers["Triage-Timestamp"].encode() + b":" + item.raw
    return item.headers["Triage-Signature"] == hmac.new(SECRET, text, hashlib.sha256).hexdigest()


def test_changes_are_told_in_order_signed_and_with_their_audit_link(tmp_path: Path) -> None:
    with receiving() as receiver, serving(settings(tmp_path, url_of(receiver))) as server:
        server.put("run", 1, masses(3, 2))
        act(server, "a", kind="gate", w_min=0.3, reason="deep tail")
        act(server, "b", kind="freeze")
        act(server, "c", kind="pause")
        got = receiver.wait_for(3)
        links = server.http.get("/v1/runs/run/audit").json()["entries"]
        assert [item.body["event"] for item in got] == ["params"] * 3
        assert [item.body["change"] for item in got] == [links[0], links[1], links[3]]
        assert got[1].body["change"]["after"]["gate.w_min"] == 0.3
        for item in got:
            assert is_signed(item) and item.path == "/in?key=s3cret-in-url"
            assert abs(int(item.headers["Triage-Timestamp"]) - time.time()) < 300
            assert item.headers["Idempotency-Key"] == item.headers["Triage-Delivery"] == item.body["delivery"]
            assert item.headers["Host"] == f"127.0.0.1:{receiver.port}"
        assert len({item.body["delivery"] for item in got}) == 3
        eventually(server, {"delivered": 3})
        assert "s3cret-in-url" not in server.http.get("/metrics").text


def test_first_parameters_of_a_run_are_told_at_once(tmp_path: Path) -> None:
    """Not with the next event of the run: its first update still waits for shards here."""
    with receiving() as receiver, serving(settings(tmp_path, url_of(receiver))) as server:
        assert server.put("run", 1, masses(3, 2), shards=2).json()["update"] == "open"
        [told] = receiver.wait_for(1)
        assert (told.body["event"], told.body["run"], told.body["change"]["about"]["version"]) == ("params", "run", 1)


def test_failures_are_tried_again_under_the_same_id_and_final_refusals_are_not(tmp_path: Path) -> None:
    with receiving() as receiver, serving(settings(tmp_path, url_of(receiver), max_attempts=3)) as server:
        receiver.answers = [(500, {}), (429, {"Retry-After": "0"}), (204, {}), (400, {})]
        receiver.answers += [(302, {"Location": url_of(receiver)}), (503, {}), (503, {}), (503, {})]
        server.put("run", 1, masses(3, 2))
        for number in range(4):
            act(server, f"k{number}", kind="gate", w_min=0.1 * (number + 1))
        got = receiver.wait_for(9)
        versions = [item.body["change"]["about"]["version"] for item in got]
        assert versions == [1, 1, 1, 2, 3, 4, 4, 4, 5]
        assert len({item.body["delivery"] for item in got}) == 5
        eventually(server, {"delivered": 2, "failed": 5, "refused": 2, "gave_up": 1})


def restarted(home: Path, receiver: Receiver, store: Store) -> Any:
    return serving(settings(home, url_of(receiver)), store)


def test_what_was_not_delivered_is_delivered_after_a_restart_and_nothing_twice(tmp_path: Path) -> None:
    home = tmp_path / "data"
    store = SqliteStore(home)
    with serving(
        Settings.from_dict({"server": {"port": 0}, "judge": {"policy": {"mode": "adaptive"}}}), store
    ) as server:
        server.put("run", 1, masses(3, 2))  # before there was a target
    with receiving() as receiver:
        receiver.answers = [(500, {})] * 1000
        slow = {"backoff_seconds": 200.0, "max_attempts": 2}
        with serving(settings(home, url_of(receiver), **slow), store) as server:
            act(server, "a", kind="gate", w_min=0.3)
            act(server, "b", kind="gate", w_min=0.4)
            receiver.wait_for(1)
        store.close()
        store = SqliteStore(home)
        receiver.answers = []
        with restarted(home, receiver, store) as server:
            got = receiver.wait_for(3)
            eventually(server, {"delivered": 2})
        assert [item.body["change"]["about"]["version"] for item in got] == [2, 2, 3]
        assert got[0].body["delivery"] == got[1].body["delivery"]
        with restarted(home, receiver, store) as server:
            act(server, "c", kind="gate", w_min=0.5)
            assert [item.body["change"]["about"]["version"] for item in receiver.wait_for(4)][3:] == [4]
    store.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"])
def test_private_address_is_not_connected_to_unless_allowed(tmp_path: Path, host: str) -> None:
    with receiving() as receiver:
        with serving(settings(tmp_path, url_of(receiver, host), allow_private=False)) as server:
            server.put("run", 1, masses(3, 2))
            act(server, "a", kind="pause")
            eventually(server, {"forbidden_address": 2})
        assert receiver.got == []


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True), ("2606:4700::1111", True), ("127.0.0.1", False), ("127.8.9.1", False), ("10.1.2.3", False),
        ("172.16.0.1", False), ("172.32.0.1", True), ("192.168.1.1", False), ("169.254.169.254", False),
        ("100.64.0.1", False), ("0.0.0.0", False), ("224.0.0.1", False), ("255.255.255.255", False), ("::1", False),
        ("::", False), ("fe80::1", False), ("fe80::1%eth0", False), ("fc00::1", False), ("fd12::1", False),
        ("ff02::1", False), ("::ffff:10.0.0.1", False), ("::ffff:8.8.8.8", True), ("2002:7f00:1::1", False),
        ("::7f00:1", False), ("::ffff:0:7f00:1", False), ("fec0::1", False), ("3fff::1", False),
        ("64:ff9b::7f00:1", False), ("2001:0:53aa:64c::1", False), ("192.0.2.1", False), ("198.18.0.1", False),
    ],
)  # fmt: skip
def test_address_is_public_or_not(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_only_wanted_events_are_sent_and_a_run_given_up_is_one(tmp_path: Path) -> None:
    target = {"target": {"events": ["handed_over"]}}
    with receiving() as receiver, serving(settings(tmp_path, url_of(receiver), **target)) as server:
        server.put("run", 1, masses(3, 2))
        act(server, "a", kind="pause")
        server.call(_give_up(server))
        (item,) = receiver.wait_for(1)
        assert (item.body["event"], item.body["change"]["reason"]) == ("handed_over", "handed over: nothing helped")
        eventually(server, {"delivered": 1})


async def _give_up(server: LiveServer) -> None:
    """What closing an update does when the policy gives up without another set."""
    from triage_monitor.service.auditing import audit_hand_over

    live = server.sidecar.runs["run"]
    async with live.lock:
        row = audit_hand_over(live, server.sidecar.now(), "handed over: nothing helped")
        await server.sidecar.write(row)
        live.audited(row)
    server.sidecar.hub.publish("run", "action", {"kind": row.kind})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"url": "ftp://h/x"}, "url"), ({"url": "https://user:pw@h/x"}, "url"), ({"url": "https://"}, "url"),
        ({"url": "http://h:99999/"}, "url"), ({"name": "A B"}, "name"), ({"events": ["all"]}, "events"),
        ({"events": []}, "events"), ({"secret_file": ""}, "secret_file"),
    ],
)  # fmt: skip
def test_wrong_target_is_refused_without_repeating_a_password(change: dict[str, Any], named: str) -> None:
    target = {"name": "pager", "url": "https://h/x", "secret_file": "f", **change}
    with pytest.raises(ConfigError, match=named) as told:
        Settings.from_dict({"webhooks": {"targets": [target]}})
    assert "pw@" not in str(told.value)


def test_missing_or_short_secret_is_refused_at_the_start_and_not_shown(tmp_path: Path) -> None:
    given = settings(tmp_path, "https://h/x")
    for text, named in ((b"short-one", "16 to 4096"), (None, "cannot be read")):
        (tmp_path / "hook.secret").unlink()
        if text is not None:
            (tmp_path / "hook.secret").write_bytes(text)
        with pytest.raises(ConfigError, match=named) as told, serving(given):
            pass
        assert "short-one" not in str(told.value)
        (tmp_path / "hook.secret").write_bytes(SECRET)
