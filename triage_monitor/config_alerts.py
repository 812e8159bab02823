"""Settings of whom the sidecar tells of alerts by itself: `[alertmanager]` and `[notify]`. Both are off until named.

A notification address (apprise) is a secret: no repr shows one, and errors name it by its place in the list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from triage_monitor.config_access import is_web_address
from triage_monitor.errors import ConfigError


@dataclass(frozen=True, slots=True)
class AlertmanagerSettings:
    """Alerts are pushed to `url`/api/v2/alerts, again every `resend_seconds`; unrenewed ones end after four of these.

    A failed push is tried again from `backoff_seconds` doubling to `resend_seconds`. `token_file` holds a bearer token,
    `runbook_base` is the page that holds the README's runbook.
    """

    url: str = ""
    token_file: str = ""
    runbook_base: str = ""
    allow_private: bool = True
    timeout_seconds: float = 10.0
    resend_seconds: float = 60.0
    backoff_seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.url and not is_web_address(self.url):
            raise ConfigError("url must be http(s)://host[:port][/path] without credentials and fragment")
        if self.runbook_base and not is_web_address(self.runbook_base):
            raise ConfigError("runbook_base must be http(s)://host[:port]/path without credentials and fragment")
        _within(self, "timeout_seconds", 0.001, 300.0)
        _within(self, "resend_seconds", 0.1, 3600.0)
        _within(self, "backoff_seconds", 0.001, 300.0)


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """Chat, mail, pagers: addresses as apprise writes them, here or one a line in `urls_file`."""

    urls: tuple[str, ...] = field(default=(), repr=False)
    urls_file: str = ""
    max_attempts: int = 8
    backoff_seconds: float = 1.0

    def __post_init__(self) -> None:
        _within(self, "max_attempts", 1, 100)
        _within(self, "backoff_seconds", 0.001, 300.0)

    def addresses(self) -> tuple[tuple[str, str], ...]:
        """(where it is written, the address); ConfigError for a file that cannot be read."""
        found = [(f"notify.urls[{index}]", url) for index, url in enumerate(self.urls)]
        if self.urls_file:
            try:
                lines = Path(self.urls_file).read_text(encoding="utf-8").splitlines()
            except (OSError, UnicodeDecodeError):
                raise ConfigError(f"notify.urls_file: {self.urls_file} cannot be read as text") from None
            numbered = [(number, line.strip()) for number, line in enumerate(lines, 1)]
            found += [(f"notify.urls_file line {number}", line) for number, line in numbered if line]
        return tuple(found)


def _within(settings: AlertmanagerSettings | NotifySettings, name: str, low: float, high: float) -> None:
    if not low <= getattr(settings, name) <= high:
        raise ConfigError(f"{name} must be in [{low:g}, {high:g}], not {getattr(settings, name)}")
