"""Settings of who may talk to the sidecar and whom it talks to: `[auth]`, `[tls]`, `[webhooks]`.

No secret stands in a setting: tokens, keys and signing secrets are named by file, so that neither the settings' repr
nor an error message can hold one. An empty name means off. A webhook is known by its `name` in metrics and logs,
never by its address, which may hold a secret of its own.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from triage_monitor.errors import ConfigError

WEBHOOK_EVENTS = ("stage", "params", "handed_over")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_HOST = re.compile(r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?|\[?[0-9A-Fa-f:.]+\]?")


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """With `tokens_file` every call needs a bearer token of its scope; without it whoever reaches the port may do all.

    `allowed_hosts` are more names that a Host header may carry beside addresses, `localhost` and this machine's own
    name (`*.example.com` for a domain, `*` for any). `hook_secret_file` lets signed hooks in without a token.
    """

    tokens_file: str = ""
    open_metrics: bool = False
    allowed_hosts: tuple[str, ...] = ()
    hook_secret_file: str = ""

    def __post_init__(self) -> None:
        for host in self.allowed_hosts:
            if _HOST.fullmatch(host) is None:
                raise ConfigError(f"allowed_hosts: {host!r} is no host name; give it without scheme and port")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM files. With `client_ca_file` a client must show a certificate that this authority signed (mutual TLS)."""

    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""

    def __post_init__(self) -> None:
        if (self.key_file or self.client_ca_file) and not self.cert_file:
            raise ConfigError("key_file and client_ca_file need a cert_file")

    def options(self) -> Mapping[str, Any]:
        """uvicorn's arguments; ConfigError for files that cannot be used."""
        if not self.cert_file:
            return {}
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.cert_file, self.key_file or None, _no_password)
            if self.client_ca_file:
                ssl.create_default_context(cafile=self.client_ca_file)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            names = ", ".join(name for name in (self.cert_file, self.key_file, self.client_ca_file) if name)
            raise ConfigError(f"tls: {names} cannot be used: {error}") from None
        options: dict[str, Any] = {"ssl_certfile": self.cert_file, "ssl_keyfile": self.key_file or None}
        if self.client_ca_file:
            options |= {"ssl_ca_certs": self.client_ca_file, "ssl_cert_reqs": ssl.CERT_REQUIRED}
        return options


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """One receiver. `secret_file` holds the key that signs what is sent to it."""

    name: str
    url: str
    secret_file: str
    events: tuple[str, ...] = WEBHOOK_EVENTS

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ConfigError("name must be 1 to 32 of a-z 0-9 _ - and not begin with a sign")
        if not is_web_address(self.url):
            raise ConfigError("url must be http(s)://host[:port]/path without credentials and fragment")
        unknown = sorted(set(self.events) - set(WEBHOOK_EVENTS))
        if unknown or not self.events:
            raise ConfigError(f"events {list(self.events)} must be some of {list(WEBHOOK_EVENTS)}")
        if not self.secret_file:
            raise ConfigError("secret_file must name the file with the signing secret")


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Outgoing notices. A failing one is tried `max_attempts` times, from `backoff_seconds` doubling to 5 minutes.

    Without `allow_private` no address that is private, loopback, link-local or otherwise not public is connected to.
    """

    targets: tuple[WebhookTarget, ...] = ()
    allow_private: bool = False
    timeout_seconds: float = 10.0
    max_attempts: int = 8
    backoff_seconds: float = 1.0

    def __post_init__(self) -> None:
        names = [target.name for target in self.targets]
        if len(set(names)) != len(names):
            raise ConfigError(f"targets: names must differ, not {names}")
        bounds = {"timeout_seconds": (0.001, 300.0), "max_attempts": (1, 100), "backoff_seconds": (0.001, 300.0)}
        for name, (low, high) in bounds.items():
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name} must be in [{low:g}, {high:g}], not {getattr(self, name)}")


def is_web_address(text: str) -> bool:
    """Whether it is http(s)://host[:port]/path without credentials and fragment."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return usable and parts.username is None and not parts.fragment


@dataclass(frozen=True, slots=True)
class Secret:
    """Bytes that no repr shows."""

    value: bytes = field(repr=False)


def read_secret(path: str, where: str) -> Secret:
    """The file's text without surrounding space, at least 16 bytes of it; ConfigError names the setting `where`."""
    try:
        value = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{where}: {path} cannot be read: {error.strerror}") from None
    if not 16 <= len(value) <= 4096:
        raise ConfigError(f"{where}: {path} must hold a secret of 16 to 4096 bytes, not {len(value)}")
    return Secret(value)


def _no_password() -> str:
    """Instead of asking at the terminal for the key's."""
    raise ValueError("the key is encrypted; give it without a passphrase, readable by this user only")
