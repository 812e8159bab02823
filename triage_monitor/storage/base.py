"""The store: what the sidecar remembers, and what it promises about it.

Writing. `write(records...)` is all or nothing: every record of one call is kept, or none. The future it returns
resolves only when the records would survive a killed process and a power cut (as far as the disk honours a sync);
a store without a disk says so in `durable`. Calls take effect in the order they were made. Calls made at about the
same time share one sync, so many small writers stay fast. After an error nothing of that call is kept, calls before
and after it stand, and the store can be used on:

  ConflictError   a rule of `records` was broken: another content under a key, or a number out of turn
  StoreFull       the disk is full, read-only or failing; the same call may succeed later
  StoreCorrupt    the file no longer verifies

Reading. Any thread may read at any time and sees every write whose future has resolved. Rows come in their kind's
order. A row whose checksum does not hold is left out, counted in `corrupt_rows`, and never served.

Damage. Opening a store looks at its whole structure, and at whether it is as far as it was when it last acknowledged
anything. A database that fails this is set aside and made anew from every row that can still be read; `damage` counts
how often, and how many acknowledged writes are gone. Limits: a power cut on a disk that lies about syncs may take the
newest writes without a trace, and files put back from a backup count as loss.

Compaction. `thin` takes what old updates no longer need (see `thinning`): raw shards' summaries, symptoms, and, further
back, merged summaries. Keys and digests of shards, updates, transitions, parameters and actions stay for good.

Left out: meaning. A store merges nothing and judges nothing; `effective_updates` below only picks, of several
attempts at one step, the newest (estimands section 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from triage_monitor.storage.fence import Fence
from triage_monitor.storage.picking import Path, Picked
from triage_monitor.storage.records import Outcome, Record, UpdateRow
from triage_monitor.storage.thinning import Thinned

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class Damage:
    """What befell the files since the store was made. `lost_now` is what of it this opening found: None, nothing."""

    times: int = 0
    lost_writes: int = 0
    set_aside: int = 0
    lost_now: int | None = None


@runtime_checkable
class Store(Protocol):
    """See the module's promises. `fence` says which of several monitors a trainer obeys."""

    durable: bool
    fence: Fence

    @property
    def corrupt_rows(self) -> int:
        """How many different rows failed their checksum when they were read."""
        ...

    @property
    def damage(self) -> Damage: ...

    @property
    def suspect(self) -> str | None:
        """What is wrong with the files now; opening the store anew mends it."""
        ...

    @property
    def scrubbed(self) -> bool:
        """True once every row was read since the start, where that was asked for."""
        ...

    def write(self, *records: Record) -> Future[tuple[Outcome, ...]]: ...

    def probe(self) -> None:
        """One durable write that changes nothing anybody reads; raises StoreFull while the disk takes none. Blocks."""
        ...

    def runs(self) -> list[str]: ...

    def rows(
        self,
        kind: type[R],
        run: str,
        *,
        attempt: int | None = None,
        first_step: int | None = None,
        last_step: int | None = None,
        newest: int | None = None,
    ) -> list[R]:
        """Rows of one run, filtered by attempt and step bounds (inclusive); of those the last `newest`."""
        ...

    def picked(
        self, run: str, paths: Sequence[Path], *, attempt: int, first_step: int | None, last_step: int | None
    ) -> list[Picked]:
        """(step, a value for each path into the report) of one attempt's updates, in order of steps."""
        ...

    def count(self, kind: type[Record], run: str, *, attempt: int | None = None, last_step: int | None = None) -> int:
        """How many rows there are, unread: damaged ones are in it."""
        ...

    def get(self, kind: type[R], *key: object) -> R | None:
        """One row by its whole key; None when absent or corrupt."""
        ...

    def top(self, kind: type[Record], run: str) -> int:
        """The highest number of a NEXT kind in use (corrupt rows included), 0 when there is none."""
        ...

    def first_steps(self, run: str) -> dict[int, int]:
        """Attempt -> its first closed step."""
        ...

    def unclosed(self, run: str) -> list[tuple[int, int]]:
        """(attempt, step) of every update that has more shards stored than were judged, in order."""
        ...

    def thin(self, run: str, *, shards_before: int, summaries_before: int, shards_from: int = 0) -> Future[Thinned]:
        """One step of compaction (see `thinning`); the answer says where the next one goes on."""
        ...

    def close(self) -> None:
        """Finishes queued writes, then lets go of the files."""
        ...


def step_limits(first_steps: dict[int, int]) -> list[tuple[int, int | None]]:
    """(attempt, last step in which it counts; None = no end), newest attempt first, empty spans left out."""
    spans: list[tuple[int, int | None]] = []
    limit: int | None = None
    for attempt in sorted(first_steps, reverse=True):
        first = first_steps[attempt]
        if limit is None or first <= limit:
            spans.append((attempt, limit))
        limit = first - 1 if limit is None else min(limit, first - 1)
    return spans


def effective_updates(
    store: Store,
    run: str,
    kind: type[R] = UpdateRow,  # type: ignore[assignment]  # a TypeVar default; SummaryRow is the other use
    *,
    first_step: int | None = None,
    last_step: int | None = None,
    newest: int | None = None,
    as_of: int | None = None,
) -> list[R]:
    """Rows by step in which a newer attempt replaces older ones from its first step on; the last `newest`. `as_of` an
    attempt: as if there were none after it."""
    kept: list[R] = []
    first_steps = {key: step for key, step in store.first_steps(run).items() if as_of is None or key <= as_of}
    for attempt, limit in step_limits(first_steps):
        wanted = None if newest is None else newest - len(kept)
        if wanted == 0:
            break
        bounds = [bound for bound in (limit, last_step) if bound is not None]
        kept[:0] = store.rows(
            kind,
            run,
            attempt=attempt,
            first_step=first_step,
            last_step=min(bounds) if bounds else None,
            newest=wanted,
        )
    return kept


def effective_count(store: Store, run: str) -> int:
    """How many updates no newer attempt has replaced."""
    spans = step_limits(store.first_steps(run))
    return sum(store.count(UpdateRow, run, attempt=attempt, last_step=limit) for attempt, limit in spans)
