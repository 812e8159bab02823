"""Bearer tokens: what a token is, the file that holds their hashes, and the set a running sidecar checks against.

    {"tokens": [{"name": "a", "scopes": ["ingest"], "sha256": "9f86...", "created_at": 1.7e9, "expires_at": null}]}

A token is 256 random bits made here (`tm_` and 43 characters), so a plain SHA-256 protects it as well as a slow hash:
there is nothing to guess, no two are alike, and every shard can afford to be checked. A presented token is hashed once
and compared with every stored hash in constant time.

The file is read again when its content changes, looked at most once a second. One that cannot be read or understood
changes nothing: the last good set stays in force and `failures` counts it. Only the first reading raises.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any

from triage_monitor.errors import ConfigError
from triage_monitor.parameters import is_finite_number

CHECK_SECONDS = 1.0
MAX_TOKENS = 1000
LATEST = 253_402_300_799  # the last second of the year 9999
MAX_FILE_BYTES = 1 << 20
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{32,256}={0,2}")
TOKEN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9@._:+-]{0,63}")
RESERVED_NAMES = frozenset({"policy", "anonymous", "trainer", "operator"})
_HASH = re.compile(r"[0-9a-f]{64}")


class Scope(StrEnum):
    INGEST = "ingest"
    READ = "read"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class TokenEntry:
    """One line of the file; `expires_at` None means never. Times are Unix seconds."""

    name: str
    scopes: frozenset[Scope]
    sha256: str
    created_at: float
    expires_at: float | None = None

    def to_dict(self) -> dict[str, Any]:
        scopes = [scope.value for scope in Scope if scope in self.scopes]
        return {
            "name": self.name,
            "scopes": scopes,
            "sha256": self.sha256,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
        }


def new_secret() -> str:
    return f"tm_{secrets.token_urlsafe(32)}"


def hashed(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def parse_tokens(text: bytes, path: str) -> tuple[TokenEntry, ...]:
    """ConfigError naming the file, the entry and what is wrong with it; a hash is never repeated in it."""
    try:
        data = json.loads(text)
        items = data["tokens"]
        if set(data) != {"tokens"} or not isinstance(items, list) or len(items) > MAX_TOKENS:
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        detail = f'must be a JSON object {{"tokens": [...]}} of at most {MAX_TOKENS} entries'
        raise ConfigError(f"the token file {path} {detail}") from None
    entries = tuple(_entry(item, f"the token file {path}: entry {index}") for index, item in enumerate(items))
    for what in ("name", "sha256"):
        values = [getattr(entry, what) for entry in entries]
        if len(set(values)) != len(values):
            raise ConfigError(f"the token file {path}: two entries have the same {what}")
    return entries


def _entry(item: object, where: str) -> TokenEntry:
    if not isinstance(item, dict) or not set(item) <= {"name", "scopes", "sha256", "created_at", "expires_at"}:
        raise ConfigError(f"{where}: must be an object of name, scopes, sha256, created_at and expires_at")
    name = checked_name(item.get("name"), where)
    scopes = item.get("scopes")
    if not isinstance(scopes, list) or not scopes or not all(scope in list(Scope) for scope in scopes):
        raise ConfigError(f"{where}: scopes must be some of {[scope.value for scope in Scope]}")
    digest = item.get("sha256")
    if not isinstance(digest, str) or _HASH.fullmatch(digest) is None:
        raise ConfigError(f"{where}: sha256 must be 64 lower-case hexadecimal digits")
    created, expires = item.get("created_at", 0.0), item.get("expires_at")
    for field, value in (("created_at", created), ("expires_at", expires)):
        if value is not None and not (is_finite_number(value) and 0 <= value <= LATEST):
            raise ConfigError(f"{where}: {field} must be Unix seconds up to the year 9999, or null")
    return TokenEntry(name, frozenset(Scope(scope) for scope in scopes), digest, float(created or 0.0), expires)


def checked_name(name: object, where: str) -> str:
    if not isinstance(name, str) or TOKEN_NAME.fullmatch(name) is None:
        raise ConfigError(f"{where}: name must be 1 to 64 of letters, digits and @ . _ : + -")
    if name in RESERVED_NAMES:
        raise ConfigError(f"{where}: '{name}' stands for somebody else in the audit trail; choose another name")
    return name


def read_tokens(path: Path) -> tuple[bytes, tuple[TokenEntry, ...]]:
    """The file's bytes and its entries; ConfigError when it cannot be read or understood."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"the token file {path} cannot be read: {error.strerror}") from None
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError(f"the token file {path} is longer than {MAX_FILE_BYTES} bytes")
    return text, parse_tokens(text, str(path))


class TokenSet:
    """What one sidecar checks against. Not thread-safe: the event loop calls it. Raises ConfigError when made."""

    def __init__(self, path: Path, wall: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._path = path
        self._wall = wall
        self._monotonic = monotonic
        self._text, self._entries = read_tokens(path)
        self._looked_at = monotonic()
        self.failure: str | None = None
        self.failures = 0
        self.reloads = 0

    def __repr__(self) -> str:
        return f"TokenSet({str(self._path)!r}, {len(self._entries)} tokens)"

    def usable(self) -> int:
        return sum(not self._is_expired(entry) for entry in self._entries)

    def find(self, token: str) -> TokenEntry | None:
        """The entry of a presented token, expired or not."""
        self.look()
        digest = hashed(token).encode()
        found = None
        for entry in self._entries:
            if hmac.compare_digest(entry.sha256.encode(), digest):
                found = entry
        return found

    def is_good(self, entry: TokenEntry) -> bool:
        """False once the entry was taken out of the file, replaced or outlived."""
        self.look()
        return entry in self._entries and not self._is_expired(entry)

    def _is_expired(self, entry: TokenEntry) -> bool:
        return entry.expires_at is not None and entry.expires_at <= self._wall()

    def look(self) -> None:
        """Takes over what the file says now, at most once a second."""
        now = self._monotonic()
        if now - self._looked_at < CHECK_SECONDS:
            return
        self._looked_at = now
        try:
            text, entries = read_tokens(self._path)
        except ConfigError as error:
            if self.failure is None or self.failure != str(error):
                self.failures += 1
            self.failure = str(error)
            return
        self.reloads += text != self._text
        self._text, self._entries, self.failure = text, entries, None
