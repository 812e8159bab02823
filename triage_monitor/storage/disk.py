"""What is asked of the disk itself: that it keeps what was written, and whether it takes anything now."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from triage_monitor.errors import StoreFull

ROOM_BYTES = 1 << 20


def synced(path: Path) -> None:
    """Of a file its content, of a directory the names in it: on disk when this returns. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_room(directory: Path) -> None:
    """Raises StoreFull while a file of `ROOM_BYTES` cannot be written and synced there. The file never has a name, so
    that nothing of it is left, whatever ends the process."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(ROOM_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreFull(f"{directory} takes no file of {ROOM_BYTES} bytes now: {error.strerror or error}") from error
