"""Settings from file, environment and command line; wrong ones are refused by name."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from triage_monitor.config import Settings
from triage_monitor.errors import ConfigError
from triage_monitor.judge.policy import Mode

ROOT = Path(__file__).parents[1]


def test_defaults_listen_on_loopback_and_only_observe() -> None:
    settings = Settings.load()
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8750)
    assert settings.judge.policy.mode is Mode.OBSERVE


def test_environment_wins_over_the_file_and_overrides_over_both(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text("[ingest]\ngrace_seconds = 5\nworkers = 1\n[server]\nport = 1\n[judge.policy]\nmode = 'paper'\n")
    env = {
        "TRIAGE_INGEST__GRACE_SECONDS": "7.5", "TRIAGE_SERVER__PORT": "2", "TRIAGE_STORE__DATA_DIR": "/x y",
        "TRIAGE_JUDGE__POLICY__MODE": "adaptive", "TRIAGE_URL": "http://elsewhere", "PATH": "/bin",
    }  # fmt: skip
    settings = Settings.load(path, env, {"server.port": 3})
    assert (settings.ingest.grace_seconds, settings.ingest.workers) == (7.5, 1)
    assert settings.server.port == 3
    assert settings.store.data_dir == "/x y"
    assert settings.judge.policy.mode is Mode.ADAPTIVE


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"sever": {}}, "sever"),
        ({"ingest": {"grace": 1}}, "ingest.grace"),
        ({"ingest": {"grace_seconds": "long"}}, "ingest.grace_seconds"),
        ({"ingest": {"grace_seconds": -1}}, "grace_seconds"),
        ({"ingest": {"grace_seconds": 10**400}}, "ingest.grace_seconds"),
        ({"summary": {"phi": 10**400}}, "summary.phi"),
        ({"ingest": {"workers": 0}}, "workers"),
        ({"ingest": 3}, "ingest"),
        ({"ingest": {"max_body_bytes": 1 << 30, "max_inflight_bytes": 1 << 20}}, "max_inflight_bytes"),
        ({"server": {"port": 70_000}}, "port"),
        ({"server": {"port": True}}, "server.port"),
        ({"store": {"kind": "floppy"}}, "kind"),
        ({"judge": {"policy": {"mood": "calm"}}}, "judge.policy.mood"),
        ({"summary": {"tau": 1}}, "summary.tau"),
        ({"summary": {"segment": 7}}, "segment"),
        ({"hooks": {"actions": {"Alert": 3}}}, "actions.Alert"),
    ],
)
def test_wrong_setting_is_refused_by_name(data: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        Settings.from_dict(data)


def test_unknown_variable_of_ours_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ingest\.grce_seconds"):
        Settings.load(None, {"TRIAGE_INGEST__GRCE_SECONDS": "1"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "monitor.example"])
def test_other_host_than_loopback_needs_saying_so(host: str) -> None:
    with pytest.raises(ConfigError, match="allow_remote"):
        Settings.from_dict({"server": {"host": host}})
    assert Settings.from_dict({"server": {"host": host, "allow_remote": True}}).server.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    assert Settings.from_dict({"server": {"host": host}}).server.host == host


@pytest.mark.parametrize("text", ["1\nport = 2", "9" * 5000, "[" * 5000, "1970-13-01", '"', ""])
def test_variable_that_is_no_single_value_is_a_text_and_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"ingest\.workers"):
        Settings.load(None, {"TRIAGE_INGEST__WORKERS": text})


def test_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        Settings.load(tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    for text in ("[ingest\n", "ingest.workers = " + "9" * 5000, "a = " + "[" * 5000):
        broken.write_text(text)
        with pytest.raises(ConfigError, match=r"broken\.toml is no valid TOML") as caught:
            Settings.load(broken)
        assert len(str(caught.value)) < 500


def test_example_configuration_is_the_defaults_and_shows_every_section() -> None:
    path = ROOT / "deploy" / "triage-monitor.toml"
    assert Settings.load(path) == Settings()
    text = path.read_text()
    for section in fields(Settings):
        assert f"[{section.name}" in text, section.name
        part = getattr(Settings(), section.name)
        if section.name in ("server", "store", "ingest", "runs", "auth", "tls"):
            assert is_dataclass(part)
            for item in fields(part):
                assert re.search(rf"^#? ?{item.name} = ", text, re.M), f"{section.name}.{item.name}"
