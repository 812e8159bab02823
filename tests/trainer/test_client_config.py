"""Wrong configuration fails when the monitor is built; an absent server does not."""

from __future__ import annotations

import pickle
import socket
from typing import Any

import pytest

from triage_monitor import Monitor
from triage_monitor.errors import ConfigError
from triage_monitor.parameters import GateParams, TriageParams
from triage_monitor.trainer.route import launcher_id


def unused_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"url": "127.0.0.1:8750"}, "url"),
        ({"url": "ftp://host"}, "url"),
        ({"url": "http://"}, "url"),
        ({"url": "http://host:notaport"}, "url"),
        ({"url": "http://user:secret@host"}, "token"),
        ({"url": "http://host/?x=1"}, "query"),
        ({"run": ""}, "run"),
        ({"run": "../other"}, "run"),
        ({"run": "a/b"}, "run"),
        ({"run": "x" * 129}, "run"),
        ({"run": 7}, "run"),
        ({"shards": 0}, "shards"),
        ({"shards": 2, "shard": 2}, "shard"),
        ({"shard": -1}, "shard"),
        ({"shards": 1.5}, "shards"),
        ({"attempt": -1}, "attempt"),
        ({"launch_id": "no spaces"}, "launch_id"),
        ({"mode": "both"}, "mode"),
        ({"compression": "gzip"}, "compression"),
        ({"settings": {"temprature": 1}}, "temprature"),
        ({"settings": {"temperature": "warm"}}, "temperature"),
        ({"limits": {"gate.w": (0, 1)}}, "gate.w"),
        ({"safe_default": {"version": 0}}, "safe_default"),
        ({"safe_default": TriageParams(gate=GateParams(w_min=2.0))}, "gate.w_min"),
        ({"token": "two words"}, "token"),
        ({"queue_updates": 0}, "queue_updates"),
        ({"max_queue_bytes": 0}, "max_queue_bytes"),
        ({"connect_timeout": 0}, "connect_timeout"),
        ({"timeout": -1}, "timeout"),
        ({"call_timeout": "long"}, "call_timeout"),
        ({"poll_seconds": 1000}, "poll_seconds"),
        ({"exit_flush_seconds": -1}, "exit_flush_seconds"),
        ({"pause_silence_seconds": -1}, "pause_silence_seconds"),
        ({"url": "http://host:0"}, "url"),
        ({"url": "http://host:-1"}, "url"),
        ({"url": "http://host:65536"}, "url"),
        ({"attempt": 1_000_001}, "attempt"),
        ({"attempt": 10**5000}, "attempt"),
        ({"ssl_context": True}, "ssl_context"),
        ({"ssl_context": "/etc/ca.pem", "url": "https://host"}, "ssl_context"),
        ({"spec": None}, "spec"),
        ({"spec": {"bins": 4}, "mode": "summary"}, "spec"),
        ({"settings": []}, "settings"),
        ({"settings": "temperature"}, "settings"),
        ({"limits": []}, "limits"),
        ({"limits": [("gate.w_min", (0.3, 1.0))]}, "limits"),
        ({"token": b"bytes"}, "token"),
        ({"token": 7}, "token"),
        ({"poll_seconds": 0}, "poll_seconds"),
        ({"poll_seconds": -1}, "poll_seconds"),
    ],
)
def test_wrong_configuration_names_what_is_wrong(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Monitor(settings.pop("url", "http://127.0.0.1:1"), run=settings.pop("run", "r"), **settings)


def test_largest_port_and_attempt_are_taken() -> None:
    with Monitor("http://127.0.0.1:65535", run="r", attempt=1_000_000, shards=2, shard=1) as monitor:
        assert monitor.attempt == 1_000_000


def test_secret_is_in_neither_the_representation_nor_an_error() -> None:
    with Monitor(unused_url(), run="r", token="s3cr3t") as monitor:
        assert "s3cr3t" not in repr(monitor)
    with pytest.raises(ConfigError) as raised:
        Monitor("http://user:s3cr3t@host", run="r")
    assert "s3cr3t" not in str(raised.value)


def test_absent_server_is_no_error() -> None:
    with Monitor(unused_url(), run="r") as monitor:
        assert monitor.params == TriageParams()
        assert monitor.apply(0) == TriageParams()


def test_pickling_says_what_to_do_instead() -> None:
    with Monitor(unused_url(), run="r") as monitor, pytest.raises(TypeError, match="build one in each process"):
        pickle.dumps(monitor)


def test_launch_id_comes_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    assert launcher_id(1) != launcher_id(1), "one shard without a launcher: every launch is its own"
    assert launcher_id(4) == launcher_id(4), "several shards must agree"
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    first = launcher_id(4)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert launcher_id(4) != first
    assert launcher_id(1) != launcher_id(1), "also inside an allocation"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a b/c")
    assert launcher_id(4) == "torchrun-a-b-c-0"
