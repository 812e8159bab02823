"""The token file: made, listed, rotated and broken while a sidecar runs; what waits when a token is revoked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from service.access_help import bearer, guarded
from service.live_server import STREAM, FakeClock, LiveServer, masses

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.service.token_file import add_token, list_tokens, revoke_token
from triage_monitor.service.tokens import CHECK_SECONDS, Scope, TokenSet, hashed, parse_tokens


class Hand:
    """A server whose look at its token file is not bound to real seconds, and the file."""

    def __init__(self, server: LiveServer, secrets: dict[str, str], path: Path) -> None:
        self.server, self.secrets, self.path = server, secrets, path
        tokens = server.application.access.rules.tokens
        assert tokens is not None
        tokens._monotonic, tokens._looked_at = iter(range(10**9)).__next__, -1.0  # a second between any two looks

    def status(self, token: str, path: str = "/v1/runs") -> int:
        return httpx.get(f"{self.server.address}{path}", headers=bearer(token), verify=False).status_code


@pytest.fixture
def hand(tmp_path: Path) -> Iterator[Hand]:
    with guarded(tmp_path) as (server, secrets):
        yield Hand(server, secrets, tmp_path / "tokens.json")


def test_tokens_rotate_without_a_restart_and_a_broken_file_changes_nothing(hand: Hand) -> None:
    new = add_token(hand.path, "new-reader", [Scope.READ], time.time(), None)
    assert hand.status(new) == 200
    revoke_token(hand.path, "grafana-viewer")
    assert hand.status(hand.secrets["grafana-viewer"]) == 401
    whole = hand.path.read_text()
    for broken in ('{"tokens": [', "", '{"tokens": [{"name": "x"}]}', "[]", '{"tokens": 3}', "\x00" * 9):
        hand.path.write_text(broken)
        assert hand.status(new) == 200, broken
        assert str(hand.path) in hand.server.http.get("/readyz").json()["tokens_file"]
        assert hand.server.http.get("/readyz").status_code == 200
        assert hand.server.metrics()["triage_access_token_file_ok"] == 0
    hand.path.unlink()
    assert hand.status(new) == 200
    assert hand.server.metrics()["triage_access_token_file_failures_total"] >= 3
    hand.path.write_text(whole)
    assert hand.status(new) == 200
    assert hand.server.metrics()["triage_access_token_file_ok"] == 1
    assert hand.server.http.get("/readyz").json()["tokens_file"] == "ok"
    entries = json.loads(whole)
    entries["tokens"] = [item for item in entries["tokens"] if item["name"] != "new-reader"]
    hand.path.write_text(json.dumps(entries))
    assert hand.status(new) == 401


def test_revoking_ends_an_event_stream_and_a_long_poll_that_were_let_in(hand: Hand) -> None:
    hand.server.put("run", 1, masses(3, 2), headers={**STREAM, **bearer(hand.secrets["all"])})
    reader = bearer(hand.secrets["grafana-viewer"])
    opened, ended, answers = threading.Event(), threading.Event(), []

    def listen() -> None:
        with httpx.stream("GET", f"{hand.server.address}/v1/runs/run/events", headers=reader, timeout=60) as stream:
            for line in stream.iter_lines():
                answers.append(line)
                opened.set()
        ended.set()

    def poll() -> None:
        url = f"{hand.server.address}/v1/runs/run/params"
        answers.append(httpx.get(url, params={"wait": 60, "after": 1}, headers=reader, timeout=90).status_code)

    threads = [threading.Thread(target=listen), threading.Thread(target=poll)]
    for thread in threads:
        thread.start()
    assert opened.wait(60)
    while not hand.server.call(_someone_waits(hand.server)):
        pass
    revoke_token(hand.path, "grafana-viewer")
    body = {"kind": "pause", "reason": "not for revoked eyes"}
    headers = {"Idempotency-Key": "k"}
    assert hand.server.http.post("/v1/runs/run/actions", json=body, headers=headers).status_code == 201
    assert ended.wait(60)
    for thread in threads:
        thread.join(60)
    assert 401 in answers
    assert not any("revoked eyes" in str(line) for line in answers)
    assert hand.server.metrics()['triage_access_refused_total{reason="revoked"}'] == 2


async def _someone_waits(server: LiveServer) -> bool:
    return len(server.sidecar.runs["run"].params_changed._waiters) == 1


def test_token_ends_with_its_time(tmp_path: Path) -> None:
    clock = FakeClock()
    secret = add_token(tmp_path / "t.json", "brief", [Scope.READ], clock.seconds, clock.seconds + 60)
    tokens = TokenSet(tmp_path / "t.json", clock.clock.wall, clock.clock.monotonic)
    entry = tokens.find(secret)
    assert entry is not None and tokens.is_good(entry) and tokens.usable() == 1
    clock.advance(60)
    assert not tokens.is_good(entry) and tokens.usable() == 0


def test_file_is_looked_at_once_a_second_at_most(tmp_path: Path) -> None:
    clock = FakeClock()
    secret = add_token(tmp_path / "t.json", "a", [Scope.READ], 0.0, None)
    tokens = TokenSet(tmp_path / "t.json", clock.clock.wall, clock.clock.monotonic)
    revoke_token(tmp_path / "t.json", "a")
    clock.advance(CHECK_SECONDS * 0.9)
    assert tokens.find(secret) is not None
    clock.advance(CHECK_SECONDS * 0.2)
    assert tokens.find(secret) is None


def test_file_holds_hashes_only_and_belongs_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    secret = add_token(path, "a", [Scope.CONTROL, Scope.INGEST], 5.0, 6.0)
    assert len(secret) == 46 and secret.startswith("tm_")
    assert secret not in path.read_text() and secret[3:] not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    assert add_token(path, "b", [Scope.READ], 5.0, None) != secret
    assert path.stat().st_mode & 0o777 == 0o640
    first, second = list_tokens(path)
    assert first.to_dict() == {
        "name": "a", "scopes": ["ingest", "control"], "sha256": hashed(secret), "created_at": 5.0, "expires_at": 6.0,
    }  # fmt: skip
    assert second.name == "b"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["t.json", "t.json.lock"]
    tokens = TokenSet(path, time.time, time.monotonic)
    assert secret not in repr(tokens) and hashed(secret) not in repr(tokens)


def test_hash_of_a_token_is_the_plain_sha256_of_its_text() -> None:
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-4's example, "abc"
    assert hashed("abc") == expected


@pytest.mark.parametrize(
    "name", ["", "two words", "a/b", "x" * 65, "new\nline", "policy", "anonymous", "operator", ".a"]
)
def test_name_that_would_mislead_in_the_trail_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="name"):
        add_token(tmp_path / "t.json", name, [Scope.READ], 0.0, None)
    assert not (tmp_path / "t.json").exists()


def test_second_token_of_a_name_and_revoking_an_unknown_one_are_refused(tmp_path: Path) -> None:
    add_token(tmp_path / "t.json", "a", [Scope.READ], 0.0, None)
    with pytest.raises(InputError, match="already"):
        add_token(tmp_path / "t.json", "a", [Scope.READ], 0.0, None)
    with pytest.raises(InputError, match="no token 'b'"):
        revoke_token(tmp_path / "t.json", "b")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": "a b"}, "name"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["admin"]}, "scopes"),
        ({"scopes": "read"}, "scopes"),
        ({"sha256": "AB" * 32}, "sha256"),
        ({"sha256": None}, "sha256"),
        ({"expires_at": "never"}, "expires_at"),
        ({"expires_at": True}, "expires_at"),
        ({"expires_at": 1e300}, "expires_at"),  # no day that `token list` could show
        ({"created_at": 10**400}, "created_at"),
        ({"created_at": -1.0}, "created_at"),
        ({"scope": ["read"]}, "object of name"),
    ],
)
def test_wrong_entry_is_named(change: dict[str, object], named: str) -> None:
    entry = {"name": "a", "scopes": ["read"], "sha256": "ab" * 32, "created_at": 1, "expires_at": None}
    assert len(parse_tokens(json.dumps({"tokens": [entry]}).encode(), "f")) == 1
    with pytest.raises(ConfigError, match=rf"f: entry 0: .*{named}"):
        parse_tokens(json.dumps({"tokens": [{**entry, **change}]}).encode(), "f")


def test_same_name_or_hash_twice_is_refused() -> None:
    (entry,) = parse_tokens(
        json.dumps({"tokens": [{"name": "a", "scopes": ["read"], "sha256": "ab" * 32}]}).encode(), "f"
    )
    for other in (replace(entry, sha256="cd" * 32), replace(entry, name="b")):
        text = json.dumps({"tokens": [entry.to_dict(), other.to_dict()]}).encode()
        with pytest.raises(ConfigError, match="same"):
            parse_tokens(text, "f")
