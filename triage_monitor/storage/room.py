"""Whether a directory takes files now: asked of a disk that refused the last write."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from triage_monitor.errors import StoreFull

ROOM_BYTES = 1 << 20


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
