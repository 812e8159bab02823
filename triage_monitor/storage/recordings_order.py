"""The updates of a recording in the order in which a trainer made them, however the files hold them.

A first pass over steps and attempts says how many shards each update has and where each file begins; the second merges
the files by (attempt, step), with only those open that overlap (a file per rank: all; parts one after another: one).
Rows within a file are taken as they stand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import groupby
from pathlib import Path

from triage_monitor.storage.recordings import read_batches
from triage_monitor.storage.recordings_group import Batch, RecordedUpdate, grouped, grouped_keys

Key = tuple[int, int]  # attempt, step


@dataclass(frozen=True, slots=True)
class Index:
    """`shards` of each update; `files` by the first update in each: one file, or those that are read together."""

    run: str
    shards: Mapping[Key, int]
    files: tuple[tuple[Key, tuple[Path, ...]], ...]

    @property
    def first_steps(self) -> dict[int, int]:
        """Attempt -> the first step recorded of it."""
        return {attempt: min(s for a, s in self.shards if a == attempt) for attempt, _ in sorted(self.shards)}


def index_updates(paths: Iterable[str | Path], *, format: str | None = None) -> Index:
    """Raises InputError as `iter_updates` does, except for what is wrong within a response."""
    shards: Counter[Key] = Counter()
    files: list[tuple[Key, tuple[Path, ...]]] = []
    runs: list[str] = []

    def noted(batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            runs[:] = [batch.run]
            yield batch

    for sources, batches in groupby(read_batches(paths, format=format), key=lambda batch: batch.sources):
        keys = list(grouped_keys(noted(batches)))
        shards.update(keys)
        if keys:
            files.append((min(keys), sources))
    return Index(runs[0] if runs else "", shards, tuple(sorted(files)))


def iter_ordered(index: Index) -> Iterator[RecordedUpdate]:
    """Every shard once; shards of one update come next to one another when each file is in order."""
    waiting = list(reversed(index.files))
    opened: list[tuple[Key, int, RecordedUpdate, Iterator[RecordedUpdate]]] = []
    number = 0
    while waiting or opened:
        while waiting and (not opened or waiting[-1][0] <= opened[0][0]):
            number += 1
            _advance(opened, number, grouped(read_batches(waiting.pop()[1])))
        if opened:
            _, place, update, rest = heappop(opened)
            yield update
            _advance(opened, place, rest)


def _advance(
    opened: list[tuple[Key, int, RecordedUpdate, Iterator[RecordedUpdate]]], place: int, rest: Iterator[RecordedUpdate]
) -> None:
    update = next(rest, None)
    if update is not None:
        heappush(opened, ((update.attempt, update.step), place, update, rest))
