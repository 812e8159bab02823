"""Optional raw retention: every accepted stream's rows as Parquet under recordings/<run>, readable by `analyze`.

Written once the shard's update has agreed to it, and before it is stored and acknowledged. A recording only goes
forward: of a shard that comes late or again nothing more is written, and `skipped` counts it. Encoded summaries have no
rows to keep. A newest part that is damaged gets the ending `.damaged` and is counted; the recording goes on behind the
one before it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, Metric

from triage_monitor.errors import ConflictError, InputError, StoreFull
from triage_monitor.service.intake import Address
from triage_monitor.storage.disk import require_room
from triage_monitor.storage.recordings_write import RecordingWriter
from triage_monitor.summary.rows import UpdateRows


class Retention:
    """One writer for each run and shard; threads may call."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writers: dict[tuple[str, int], RecordingWriter] = {}
        self._lock = threading.Lock()
        self.skipped = 0
        self.damaged = 0

    def keep(self, address: Address, rows: UpdateRows) -> None:
        """Raises StoreFull when the disk does not take it."""
        with self._lock:
            try:
                self._writer(address).append(address.step, address.attempt or 0, rows)
            except ConflictError:
                self.skipped += 1
            except OSError as error:
                raise StoreFull(f"the raw update cannot be kept: {error.strerror or error}") from error

    def probe(self) -> None:
        """Raises StoreFull while nothing can be recorded."""
        require_room(self._directory)

    def families(self) -> Iterator[Metric]:
        text = "Recorded parts that were found damaged and set aside since the start"
        yield CounterMetricFamily("triage_recordings_damaged", text, self.damaged)

    def _writer(self, address: Address) -> RecordingWriter:
        key = (address.run, address.shard)
        while key not in self._writers:
            shard = address.shard if address.shards > 1 else None
            try:
                self._writers[key] = RecordingWriter(self._directory / address.run, run=address.run, shard=shard)
            except InputError as error:
                if error.reason != "damaged_file" or error.path is None:
                    raise
                Path(error.path).rename(f"{error.path}.damaged")
                self.damaged += 1
        return self._writers[key]
