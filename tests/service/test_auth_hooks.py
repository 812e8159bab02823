"""Signed hooks, names and values that try to get out of their place, and where no secret may turn up."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from pathlib import Path

import httpx
from service.access_help import bearer, guarded, make_tokens
from service.live_server import STREAM, LiveServer, masses, serving
from service.served_process import served

from triage_monitor.config import Settings

SECRET = b"a-secret-of-the-hooks-32-bytes!!"
ALERT = {"alerts": [{"labels": {"alertname": "Alarm", "run": "run"}, "startsAt": "t", "fingerprint": "f"}]}


def signed(body: bytes, *, secret: bytes = SECRET, at: float | None = None) -> dict[str, str]:
    stamp = str(int(time.time() if at is None else at))
    text = hmac.new(secret, stamp.encode() + b":" + body, hashlib.sha256).hexdigest()
    return {"Triage-Timestamp": stamp, "Triage-Signature": text, "Content-Type": "application/json"}


def hook(server: LiveServer, headers: dict[str, str], body: bytes) -> tuple[int, str]:
    url = f"{server.address}/v1/hooks/grafana"
    answer = httpx.post(url, content=body, headers=headers, verify=False, timeout=60)
    return answer.status_code, answer.json().get("reason", "")


def test_hook_is_let_in_by_a_control_token_or_by_its_own_signature_alone(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    auth, actions = {"hook_secret_file": str(tmp_path / "secret")}, {"actions": {"Alarm": "pause"}}
    with guarded(tmp_path, auth=auth, hooks=actions) as (server, secrets):
        server.put("run", 1, masses(3, 2), headers={**STREAM, **bearer(secrets["all"])})
        body = json.dumps(ALERT).encode()
        good = signed(body)
        for headers, reason in (
            ({}, "no_token"),
            ({"Triage-Signature": good["Triage-Signature"]}, "no_signature"),
            (signed(body, secret=b"another secret of 32 bytes.....!"), "bad_signature"),
            (signed(body, at=time.time() - 400), "bad_signature"),
            (signed(body, at=time.time() + 400), "bad_signature"),
            (signed(body + b" "), "bad_signature"),
            ({**good, "Triage-Timestamp": str(int(good["Triage-Timestamp"]) + 1)}, "bad_signature"),
            ({**good, "Triage-Signature": good["Triage-Signature"].upper()}, "bad_signature"),
            ({**good, **bearer(secrets["ops"]), "Triage-Signature": "0" * 64}, "bad_signature"),
        ):
            assert hook(server, headers, body) == (401, reason)
        assert hook(server, signed(b"[" * 300_000), b"[" * 300_000) == (413, "too_large")
        assert hook(server, good, body)[0] == 200
        assert hook(server, good, body)[0] == 200
        entries = server.http.get("/v1/runs/run/audit").json()["entries"]
        told = [(item["who"], item["actor"], item["kind"]) for item in entries]
        assert told == [("policy", "policy", "start"), ("signed hook", "grafana", "pause")]
        assert hook(server, bearer(secrets["ops"]), body)[0] == 200
        away = f"{server.address}/v1/runs/run/actions"
        assert httpx.post(away, content=body, headers=good, verify=False).status_code == 401


def test_open_sidecar_with_a_hook_secret_takes_signed_hooks_only(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    data = {"server": {"port": 0}, "auth": {"hook_secret_file": str(tmp_path / "secret")}}
    with serving(Settings.from_dict(data)) as server:
        body = b'{"alerts": []}'
        assert hook(server, {}, body) == (401, "no_signature")
        assert hook(server, signed(body), body)[0] == 200
        assert server.http.get("/v1/runs").status_code == 200


NAMES = [
    "..", "%2e%2e", "..%2f..%2fetc%2fpasswd", ".hidden", "a%0ab", "a%00b", "a%20b", '"}%0atriage_stage', "<script>",
    "a%22b", "a%5cb", "%F0%9F%98%80", "x" * 129, "a;b", "a%3Cimg%20src=x%3E", "%1b[31m",
]  # fmt: skip


def test_names_and_values_that_would_break_out_of_path_label_log_or_page_stay_where_they_are(tmp_path: Path) -> None:
    data = {"server": {"port": 0}, "store": {"data_dir": str(tmp_path / "data"), "retain_raw": True}}
    with serving(Settings.from_dict({**data, "judge": {"policy": {"mode": "adaptive"}}})) as server:
        for name in NAMES:
            path = f"{server.address}/v1/runs/{name}/updates/1/shards/0"
            answer = server.http.put(path, content=masses(1, 1), headers=STREAM)
            assert 400 <= answer.status_code < 500, name
            assert "json" in answer.headers["content-type"], name
        assert server.http.get("/v1/runs").json()["runs"] == []
        assert not (tmp_path / "data").exists()
        before = set(server.metrics())
        evil = 'x"} 1\ntriage_forged{a="<script>alert(1)</script>'
        drops = {**STREAM, "Triage-Client-Dropped": 'queue_full=3,x"}=4,<b>=5'}
        assert server.put("run", 1, masses(1, 1), headers=drops).status_code == 201
        body = {"kind": evil, "reason": evil}
        for header in ({}, {"Triage-Actor": 'a"b'}, {"Triage-Actor": "<b>"}):
            sent = server.http.post("/v1/runs/run/actions", json=body, headers={"Idempotency-Key": "k", **header})
            assert sent.status_code == 422 and sent.headers["x-content-type-options"] == "nosniff"
        assert server.http.post("/v1/hooks/grafana", json={"alerts": [{"labels": {"run": evil}}]}).status_code == 200
        page = server.http.get("/metrics").text
        assert "script" not in page and 'reason="queue_full"' in page
        assert not {name for name in set(server.metrics()) - before if "triage_forged" in name}
        assert "<script>" not in server.http.get("/").text


def test_no_secret_turns_up_in_the_output_or_the_files_of_a_served_process(tmp_path: Path) -> None:
    secrets = make_tokens(tmp_path / "t.json")
    home = tmp_path / "data"
    # An address of every interface is fine once there are tokens; nothing here says allow_remote.
    env = {"TRIAGE_AUTH__TOKENS_FILE": str(tmp_path / "t.json"), "TRIAGE_SERVER__HOST": "0.0.0.0"}
    with served(home, env) as server:
        address = server.address.replace("0.0.0.0", "127.0.0.1")
        for name, secret in secrets.items():
            for headers in (bearer(secret), {"Authorization": secret}, {"Authorization": f"Basic {secret}"}):
                path = f"{address}/v1/runs/run/updates/1/shards/0?token={secret}"
                httpx.put(path, content=b"not a stream", headers={**STREAM, **headers}, verify=False, timeout=60)
                more = {**headers, "Idempotency-Key": f"k-{name}", "If-Match": "*"}
                httpx.post(f"{address}/v1/runs/{secret}/actions", json={"kind": "stop"}, headers=more, verify=False)
        assert httpx.get(f"{address}/v1/runs", verify=False).status_code == 401
        assert server.end() == 0
        written = "".join(server.written)
    kept = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    for secret in secrets.values():
        assert secret not in written and secret.encode() not in kept
