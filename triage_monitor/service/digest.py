"""What a body is known by, summed by workers while the rest of it still comes in.

The digest is SHA-256 of the body under its media type: the same bytes again are a duplicate and are answered without
being decoded. Beside it goes the CRC-32 of what follows an Arrow stream's first message, which its checksum needs
(summary/checksum.py): it is the quicker one, and decoding waits for it alone. A small body is digested all at once,
and its checksum is left to the decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from hashlib import sha256
from typing import Self, TypeVar
from zlib import crc32

from triage_monitor.summary.checksum import content_start

PIECE_BYTES = 1 << 20
T = TypeVar("T")


class RunningDigest:
    """Of one body; `seen` is told by one thread what there is of it.

    Its memory is promised to others once the `with` block is left: what still waits for a worker then holds none of it.
    """

    def __init__(self, workers: Executor, media: str) -> None:
        self._body = memoryview(b"")
        self._sha = sha256(media.encode())
        self._crc: int | None = None
        self._begin: int | None = None
        self._digesting = _Running(workers, self._add_to_sha)
        self._checking = _Running(workers, self._add_to_crc)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._body = memoryview(b"")

    def seen(self, body: memoryview) -> None:
        """The body as far as it is there; what was seen of it before is the same."""
        if len(body) > PIECE_BYTES:
            self._body = body
            self._begin = self._begin or content_start(body)
            self._checking.more(len(body))
            self._digesting.more(len(body))

    def content_crc(self, body: memoryview) -> Future[int | None]:
        """Of the whole body; None for one that is small or begins like no Arrow stream."""
        self._body = body
        return self._checking.all_of(len(body), lambda: self._crc)

    def text(self, body: memoryview) -> Future[str]:
        """The digest of the whole body."""
        self._body = body
        return self._digesting.all_of(len(body), self._sha.hexdigest)

    def _add_to_sha(self, start: int, end: int) -> None:
        self._sha.update(self._body[start:end])

    def _add_to_crc(self, start: int, end: int) -> None:
        body = self._body[:end]
        if self._begin is not None and self._begin < len(body):
            self._crc = crc32(body[max(start, self._begin) :], self._crc or 0)


class _Running:
    """Adds a body's bytes in order, by one worker at a time."""

    def __init__(self, workers: Executor, add: Callable[[int, int], None]) -> None:
        self._workers = workers
        self._add = add
        self._given = 0
        self._job: Future[None] | None = None

    def more(self, size: int) -> None:
        if size - self._given >= PIECE_BYTES and (self._job is None or self._job.done()):
            self._job = self._workers.submit(self._add, self._given, size)
            self._given = size

    def all_of(self, size: int, found: Callable[[], T]) -> Future[T]:
        return self._workers.submit(self._finish, size, found)

    def _finish(self, size: int, found: Callable[[], T]) -> T:
        if self._job is not None:
            self._job.result()  # began before this one: workers take jobs in order
        self._add(self._given, size)
        return found()
