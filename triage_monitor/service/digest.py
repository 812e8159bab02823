"""What a body is known by, summed by a worker while the rest of it still comes in.

The digest is SHA-256 of the body under its media type: the same bytes again are a duplicate and are answered without
being decoded. Beside it goes the CRC-32 of what follows an Arrow stream's first message, which its checksum needs
(summary/checksum.py). Of a small body only the digest is taken, all at once.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future
from dataclasses import dataclass
from hashlib import sha256
from zlib import crc32

from triage_monitor.summary.checksum import content_start

PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Digest:
    """`content_crc` only of a body that was summed in pieces and begins like an Arrow stream."""

    text: str
    content_crc: int | None = None


class RunningDigest:
    """Of one body; told by one thread what there is of it, and summed by one worker at a time."""

    def __init__(self, workers: Executor, media: str) -> None:
        self._workers = workers
        self._sha = sha256(media.encode())
        self._crc: int | None = None
        self._begin: int | None = None
        self._given = 0
        self._job: Future[None] | None = None

    def seen(self, body: memoryview) -> None:
        """The body as far as it is there; what was seen of it before is the same."""
        if len(body) - self._given < PIECE_BYTES or (self._job is not None and not self._job.done()):
            return
        if self._given == 0:
            self._begin = content_start(body)
        self._job = self._workers.submit(self._add, body, self._given)
        self._given = len(body)

    def of(self, body: memoryview) -> Future[Digest]:
        """Of the whole body."""
        return self._workers.submit(self._finish, body)

    def _add(self, body: memoryview, start: int) -> None:
        self._sha.update(body[start:])
        if self._begin is not None and self._begin < len(body):
            self._crc = crc32(body[max(start, self._begin) :], self._crc or 0)

    def _finish(self, body: memoryview) -> Digest:
        if self._job is not None:
            self._job.result()  # began before this one: workers take jobs in order
        self._add(body, self._given)
        return Digest(self._sha.hexdigest(), self._crc)
