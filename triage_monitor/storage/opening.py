"""Opening the store's files: the directory's lock, the database, and what SQLite's errors mean."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path

from triage_monitor.errors import ConfigError, StoreCorrupt, StoreFull, TriageError
from triage_monitor.storage.schema import lossy_text

_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
# What a whole database may answer too: the disk, another process, memory, or a right is wanting.
_SURROUNDINGS = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_AUTH,
}


def claim(directory: Path) -> int:
    """A descriptor that locks the directory; ConfigError, with the holder's pid, when another process has it."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise ConfigError(f"the data directory {directory} is in use by another process (pid {holder})") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def open_database(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    mode = "ro" if read_only else "rwc"
    db = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False, timeout=30
    )
    db.text_factory = lossy_text
    if not read_only:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA secure_delete = ON")  # no old copy of a row is left for `salvage` to find
    return db


def translated(error: Exception) -> TriageError:
    """StoreCorrupt where the file is damaged, else StoreFull: it may work later."""
    if _code(error) in _CORRUPT or isinstance(error, UnicodeDecodeError):
        return StoreCorrupt(f"the store's file is damaged: {error}")
    return StoreFull(f"the store cannot be written or read now: {error}")


def is_damage(error: Exception) -> bool:
    """True of an error met while a database of ours is opened that no whole one gives."""
    return _code(error) not in _SURROUNDINGS


def _code(error: Exception) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
