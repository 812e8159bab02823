"""What `tail` remembers: for each launch its attempt, how often it was resumed, and the stamp of each step it sent.

A small JSON file, replaced as a whole. It may be lost or in a place that cannot be written: then steps are sent again,
which the server answers as duplicates.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VERSION = 1


@dataclass(slots=True)
class Launch:
    """`resumes` counts the times its trainer wrote a step anew, `resumed_at` is when it last did (time of the file);
    `steps`: step, or name of an unreadable file -> stamp."""

    resumes: int = 0
    resumed_at: int = 0
    steps: dict[str, str] = field(default_factory=dict)


class TailState:
    """`destination` (address and run) keeps what was sent to one server apart from what was sent to another."""

    def __init__(self, path: Path, destination: str) -> None:
        self._path = path
        self._destination = destination
        self._all = _read(path)
        self._is_told = False
        known = self._all.get(destination)
        self.launches = {name: _launch(entry) for name, entry in known.items()} if isinstance(known, dict) else {}

    def launch(self, directory: Path) -> Launch:
        return self.launches.setdefault(str(directory.resolve()), Launch())

    def save(self) -> None:
        self._all[self._destination] = {name: asdict(launch) for name, launch in self.launches.items()}
        beside = self._path.with_name(f"{self._path.name}.tmp")
        try:
            with beside.open("w") as file:
                json.dump({"version": VERSION, "sent": self._all}, file)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
        except OSError as error:
            if not self._is_told:
                said = f"{self._path} cannot be written ({error.strerror}); after a restart every step is sent again"
                print(f"triage-monitor: warning: {said}", file=sys.stderr)
            self._is_told = True


def _launch(entry: Any) -> Launch:
    """What makes no sense counts as lost."""
    try:
        return Launch(int(entry.get("resumes", 0)), int(entry.get("resumed_at", 0)), dict(entry.get("steps", {})))
    except (AttributeError, TypeError, ValueError, OverflowError):
        return Launch()


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    known = isinstance(found, dict) and found.get("version") == VERSION and isinstance(found.get("sent"), dict)
    return dict(found["sent"]) if known else {}
