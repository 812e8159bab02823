"""Settings of the sidecar: one TOML file, the environment over it, the command line over both.

    [ingest]
    grace_seconds = 30     # or TRIAGE_INGEST__GRACE_SECONDS=30, or Settings.load(..., {"ingest.grace_seconds": 30})

Environment names are TRIAGE_ and the dotted name in capitals with `__` for each dot; variables without `__` are none
of ours. Values are read as TOML, else as text. An unknown key, a wrong type or a value out of range raises ConfigError
naming the dotted key; nothing is corrected. `[judge_by_run."name or pattern"]` lays a table over `[judge]` for the runs
it matches. The judge and the summary declare their own settings; this module assembles them.
`deploy/triage-monitor.toml` shows every section.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from triage_monitor.config_access import AuthSettings, TlsSettings, WebhookSettings, is_web_address
from triage_monitor.config_alerts import AlertmanagerSettings, NotifySettings
from triage_monitor.errors import ConfigError
from triage_monitor.judge.run import JudgeSettings
from triage_monitor.judge.settings_table import read_table
from triage_monitor.summary.spec import DEFAULT_SPEC, SummarySpec

ENV_PREFIX = "TRIAGE_"
STORE_KINDS = ("sqlite", "memory")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where it listens. Another host than loopback needs `auth.tokens_file`, or `allow_remote` to go without.

    `public_url` is where people reach the page, for links in alerts and messages; made of host and port if empty.
    `flight_port` takes raw updates by Arrow Flight as well (0 for a free one); -1 is off.
    """

    host: str = "127.0.0.1"
    port: int = 8750
    allow_remote: bool = False
    drain_seconds: float = 10.0
    public_url: str = ""
    flight_port: int = -1

    def __post_init__(self) -> None:
        if self.public_url and not is_web_address(self.public_url):
            raise ConfigError("public_url must be http(s)://host[:port][/path] without credentials and fragment")
        _within("port", self.port, 0, 65_535)
        _within("flight_port", self.flight_port, -1, 65_535)
        if 0 < self.flight_port == self.port:
            raise ConfigError("flight_port must be another than port")
        _within("drain_seconds", self.drain_seconds, 0, 3600)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """`retain_raw` also keeps every update's tokens as Parquet under `data_dir`/recordings, for `analyze`.

    `audit_witness` is the second file of the audit trail, best on another disk; in `data_dir` if empty.

    Of updates more than `keep_shards` steps back the raw shards' summaries go, of those more than `keep_summaries`
    steps back the merged ones: a trainer that resumes from there begins with a shorter window. Series stay for good.
    `epoch_above` takes over the trainers of a monitor of that epoch (`serve --take-over`).
    """

    kind: str = "sqlite"
    data_dir: str = "triage-data"
    retain_raw: bool = False
    audit_witness: str = ""
    keep_shards: int = 200
    keep_summaries: int = 10_000
    epoch_above: int = 0

    def __post_init__(self) -> None:
        if self.kind not in STORE_KINDS:
            raise ConfigError(f"kind {self.kind!r} is not one of {list(STORE_KINDS)}")
        _within("keep_shards", self.keep_shards, 1, 1 << 50)
        _within("keep_summaries", self.keep_summaries, self.keep_shards, 1 << 50)
        _within("epoch_above", self.epoch_above, 0, 1 << 53)


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """Bounds of what is taken in. Beyond `max_inflight_bytes` or `max_waiting` requests are answered 503.

    An update that got no further shard for `grace_seconds`, or has waited ten times that since its first one, is closed
    as partial. Of updates that only samplers have reported yet, at most `max_ahead_updates` a run wait for training,
    and `max_ahead_bytes` in all.
    """

    max_body_bytes: int = 128 << 20
    max_tokens: int = 1 << 25
    max_inflight_bytes: int = 512 << 20
    max_waiting: int = 512
    max_shards: int = 4096
    workers: int = 2
    stall_seconds: float = 15.0
    body_seconds: float = 120.0
    grace_seconds: float = 60.0
    max_ahead_updates: int = 64
    max_ahead_bytes: int = 4 << 30

    def __post_init__(self) -> None:
        sizes = ("max_body_bytes", "max_tokens", "max_inflight_bytes", "max_waiting", "max_shards", "workers")
        for name in (*sizes, "max_ahead_updates", "max_ahead_bytes"):
            _within(name, getattr(self, name), 1, 1 << 50)
        for name in ("stall_seconds", "body_seconds", "grace_seconds"):
            _within(name, getattr(self, name), 0.001, 1e7)
        if self.max_inflight_bytes < self.max_body_bytes:
            raise ConfigError("max_inflight_bytes must be at least max_body_bytes")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """A run silent for `retire_after_seconds` leaves `/metrics`; it comes back with its next update."""

    max_runs: int = 500
    retire_after_seconds: float = 86_400.0

    def __post_init__(self) -> None:
        _within("max_runs", self.max_runs, 1, 1_000_000)
        _within("retire_after_seconds", self.retire_after_seconds, 0.001, 1e10)


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """A run's parameters may change `max_changes` times in `per_updates` updates by people and alerts; then 429."""

    max_changes: int = 10
    per_updates: int = 100

    def __post_init__(self) -> None:
        for name in ("max_changes", "per_updates"):
            _within(name, getattr(self, name), 1, 1000 if name == "max_changes" else 1_000_000)


@dataclass(frozen=True, slots=True)
class HookSettings:
    """Alert name -> the action it triggers: a kind, or a table with `kind` and its arguments."""

    actions: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, action in self.actions.items():
            if not isinstance(action if isinstance(action, str) else _kind_of(action), str):
                raise ConfigError(f"actions.{name} must be an action's kind or a table with 'kind'")

    def action(self, alert: str) -> dict[str, Any] | None:
        """The body of the action that an alert asks for; None when it is not mapped."""
        found = self.actions.get(alert)
        if found is None:
            return None
        return {"kind": found} if isinstance(found, str) else dict(found)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything `serve` needs to know."""

    server: ServerSettings = field(default_factory=ServerSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    ingest: IngestSettings = field(default_factory=IngestSettings)
    runs: RunSettings = field(default_factory=RunSettings)
    control: ControlSettings = field(default_factory=ControlSettings)
    hooks: HookSettings = field(default_factory=HookSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    alertmanager: AlertmanagerSettings = field(default_factory=AlertmanagerSettings)
    notify: NotifySettings = field(default_factory=NotifySettings)
    summary: SummarySpec = DEFAULT_SPEC
    judge: JudgeSettings = field(default_factory=JudgeSettings)
    judge_by_run: Mapping[str, JudgeSettings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.server.allow_remote or self.auth.tokens_file or is_loopback(self.server.host)):
            raise ConfigError(
                f"server: host '{self.server.host}' is reachable from other machines and there is no authentication;"
                " name an auth.tokens_file (`triage-monitor token add` makes one), or set allow_remote = true to listen"
                " there all the same"
            )
        window = max(judge.window_updates for judge in (self.judge, *self.judge_by_run.values()))
        if self.store.keep_shards < window:
            raise ConfigError(f"store.keep_shards {self.store.keep_shards} is below the window of {window} updates")

    @property
    def page_url(self) -> str:
        """Where people reach the page, without a slash at its end."""
        host = f"[{self.server.host}]" if ":" in self.server.host else self.server.host
        own = f"{'https' if self.tls.cert_file else 'http'}://{host}:{self.server.port}"
        return self.server.public_url.rstrip("/") or own

    def judge_for(self, run: str) -> JudgeSettings:
        """The first pattern of `judge_by_run` that the run's name matches, else `judge`."""
        return next((own for pattern, own in self.judge_by_run.items() if fnmatchcase(run, pattern)), self.judge)

    @classmethod
    def load(
        cls,
        path: Path | None = None,
        env: Mapping[str, str] | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> Settings:
        """File, then environment, then overrides by dotted name. Raises ConfigError."""
        data = {} if path is None else _read_file(path)
        for dotted, value in {**_from_env(env or {}), **(overrides or {})}.items():
            _put(data, dotted, value)
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Settings:
        sections = {item.name for item in fields(cls)}
        for name, section in data.items():
            if name not in sections:
                raise ConfigError(f"there is no setting '{name}'; sections are {', '.join(sorted(sections))}")
            if not isinstance(section, Mapping):
                raise ConfigError(f"{name}: expected a table, got {type(section).__name__}")
        return cls(
            server=read_table(ServerSettings, data.get("server", {}), "server"),
            store=read_table(StoreSettings, data.get("store", {}), "store"),
            ingest=read_table(IngestSettings, data.get("ingest", {}), "ingest"),
            runs=read_table(RunSettings, data.get("runs", {}), "runs"),
            control=read_table(ControlSettings, data.get("control", {}), "control"),
            hooks=read_table(HookSettings, data.get("hooks", {}), "hooks"),
            auth=read_table(AuthSettings, data.get("auth", {}), "auth"),
            tls=read_table(TlsSettings, data.get("tls", {}), "tls"),
            webhooks=read_table(WebhookSettings, data.get("webhooks", {}), "webhooks"),
            alertmanager=read_table(AlertmanagerSettings, data.get("alertmanager", {}), "alertmanager"),
            notify=read_table(NotifySettings, data.get("notify", {}), "notify"),
            summary=read_table(SummarySpec, data.get("summary", {}), "summary"),
            judge=JudgeSettings.from_dict(data.get("judge", {})),
            judge_by_run={
                pattern: JudgeSettings.from_dict(_over(data.get("judge", {}), own), f"judge_by_run.{pattern}")
                for pattern, own in data.get("judge_by_run", {}).items()
            },
        )


def _over(base: Mapping[str, Any], own: object) -> dict[str, Any]:
    """`own` laid over `base`, table by table."""
    if not isinstance(own, Mapping):
        raise ConfigError(f"judge_by_run: expected a table a pattern, got {type(own).__name__}")
    merged = dict(base)
    for name, value in own.items():
        below = merged.get(name)
        merged[name] = _over(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name} must be in [{low:g}, {high:g}], not {value}")


def _kind_of(action: object) -> object:
    return action.get("kind") if isinstance(action, Mapping) else None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and brackets as deep
        raise ConfigError(f"{path} is no valid TOML: {str(error)[:200]}") from error


def _from_env(env: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, text in env.items():
        if name.startswith(ENV_PREFIX) and "__" in name:
            found[name.removeprefix(ENV_PREFIX).replace("__", ".").lower()] = _parsed(text)
    return found


def _parsed(text: str) -> object:
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if len(found) == 1 else text


def _put(data: dict[str, Any], dotted: str, value: object) -> None:
    *groups, leaf = dotted.split(".")
    home: Any = data
    for group in groups:
        home = home.setdefault(group, {})
        if not isinstance(home, dict):
            raise ConfigError(f"'{dotted}' names a setting inside '{group}', which is not a table")
    home[leaf] = value
