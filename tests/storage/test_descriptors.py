"""A process that has no file descriptor left."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from triage_monitor.storage.sqlite import SqliteStore


def test_store_without_a_descriptor_left_tells_of_its_damage_as_before(tmp_path: Path) -> None:
    (tmp_path / "damaged" / "0001").mkdir(parents=True)
    store = SqliteStore(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened: list[int] = []
    try:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (max(int(file.name) for file in Path("/proc/self/fd").iterdir()) + 8, hard)
        )
        with pytest.raises(OSError):
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        assert store.damage.set_aside == 1
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        store.close()
