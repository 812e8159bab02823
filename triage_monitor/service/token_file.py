"""Changes of the token file: each reads it, changes it and puts the whole new one in its place, under a lock.

A reader sees the old file or the new one, never half. A new file belongs to its owner alone (mode 0600), a changed one
keeps mode and owner: it holds no secret, but whoever can write it lets himself in.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from triage_monitor.errors import ConfigError, InputError
from triage_monitor.service.tokens import MAX_TOKENS, Scope, TokenEntry, checked_name, hashed, new_secret, read_tokens
from triage_monitor.storage.disk import synced


def add_token(path: Path, name: str, scopes: Iterable[Scope], now: float, expires_at: float | None) -> str:
    """The secret of the new token, which is nowhere else. InputError for a name that is taken or no name."""
    try:
        checked_name(name, "--name")
    except ConfigError as error:
        raise InputError("token_name", str(error)) from None
    with _locked(path):
        entries = list_tokens(path)
        if any(entry.name == name for entry in entries):
            raise InputError("token_name", f"there is a token '{name}' already; revoke it or choose another name")
        if len(entries) >= MAX_TOKENS:
            raise InputError("too_many_tokens", f"{path} holds {MAX_TOKENS} tokens, as many as it may")
        secret = new_secret()
        _replace(path, (*entries, TokenEntry(name, frozenset(scopes), hashed(secret), now, expires_at)))
    return secret


def revoke_token(path: Path, name: str) -> None:
    """InputError when there is none of this name."""
    with _locked(path):
        entries = read_tokens(path)[1]
        kept = tuple(entry for entry in entries if entry.name != name)
        if len(kept) == len(entries):
            raise InputError("token_name", f"there is no token '{name[:64]}' in {path}")
        _replace(path, kept)


def list_tokens(path: Path) -> tuple[TokenEntry, ...]:
    """Empty when the file does not exist."""
    return read_tokens(path)[1] if path.exists() else ()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, entries: Iterable[TokenEntry]) -> None:
    text = json.dumps({"tokens": [entry.to_dict() for entry in entries]}, indent=1) + "\n"
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            _keep_owner(path, descriptor)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    synced(path.parent)


def _keep_owner(path: Path, descriptor: int) -> None:
    """root may change the file of the user that serves, who must still be able to read it."""
    if path.exists():
        before = path.stat()
        os.fchmod(descriptor, before.st_mode & 0o777)
        if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(descriptor, before.st_uid, before.st_gid)
