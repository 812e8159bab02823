"""kill -9 where it hurts most: inside a migration, compaction, the mending of a damaged store, a recording's part.

Each sweep kills the same work at one place after another (dying.py) and looks at what the next start makes of it: the
same rows, nothing taken for damage, and the work done as if nothing had been. The short forms take every Nth place, the
long ones all, or a thousand. Synthetic rows.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from faults.damage import WORST, long_update_row, verdict
from faults.dying import killed_at_line, killed_at_size
from storage.old_store import NEWER, age
from storage.store_rows import params_row, run_row, shard_row, summary_row

from triage_monitor.storage.recordings import RecordingWriter, iter_updates
from triage_monitor.storage.records import Record, ShardRow, SummaryRow, SymptomRow, UpdateRow, WorstRow
from triage_monitor.storage.schema import SCHEMA_VERSION
from triage_monitor.storage.sqlite import SqliteStore
from triage_monitor.storage.thinning import is_thinned

pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
FEW, FRAME = 16, 4096 + 24
STEPS, KEPT_SHARDS, KEPT_SUMMARIES = 12, 9, 7
Work = Callable[[Path], object]
Check = Callable[[Path], None]


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    log = logging.getLogger("triage_monitor")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


def _store(directory: Path, rows: list[Record], version: int = SCHEMA_VERSION) -> Path:
    store = SqliteStore(directory)
    store.write(*rows).result()
    store.close()
    if version != SCHEMA_VERSION:
        age(directory, version)
    return directory


def _lines(source: Path, work: Path, do: Work, check: Check, places: int | None) -> int:
    """How many kills there were. `places`: about so many instead of all."""
    every = 1
    if places is not None:
        high = 2
        while _killed(source, work, do, high):
            high *= 2
        every = max(1, high // places)
    number, kills = 1, 0
    while _killed(source, work, do, number):
        check(work)
        number, kills = number + every, kills + 1
    check(work)  # of the one that was not killed
    return kills


def _killed(source: Path, work: Path, do: Work, number: int) -> bool:
    _fresh(source, work)
    return killed_at_line(lambda: do(work), number)


def _fresh(source: Path, work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, work)


def _bytes(source: Path, work: Path, do: Work, check: Check, sizes: range) -> int:
    kills = 0
    for size in sizes:
        _fresh(source, work)
        if not killed_at_size(lambda: do(work), size):
            break
        check(work)
        kills += 1
    return kills


def _opened(directory: Path) -> None:
    SqliteStore(directory).close()


def _old_rows(version: int) -> list[Record]:
    rows: list[Record] = [run_row(), params_row(1)]
    for step in range(STEPS):
        rows += [shard_row(step), long_update_row(step), summary_row(step)]
        rows += [SymptomRow("run-a", 0, step, 0, b"TSYM%d" % step)] if version > 1 else []
    return rows


def _migrated(version: int) -> Check:
    """Between two starts there is the one version or the other, never a part; the next start has everything."""
    rows = _old_rows(version)

    def check(directory: Path) -> None:
        with closing(sqlite3.connect(directory / "triage.db")) as db:
            (now,) = db.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone()
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert (now, tables & set(NEWER[version])) in ((version, set()), (SCHEMA_VERSION, set(NEWER[version])))
        assert verdict(directory, rows) == (0, 0, 0)
        store = SqliteStore(directory)
        assert (store.damage.times, store.corrupt_rows) == (0, 0)
        store.close()

    return check


def _migrations_killed(tmp_path: Path, version: int, places: int | None, step: int) -> None:
    source = _store(tmp_path / "source", _old_rows(version), version)
    lines = _lines(source, tmp_path / "work", _opened, _migrated(version), places)
    shm = 32 << 10  # SQLite's index of the log is so long from the start
    grown = (source / "triage.db").stat().st_size + 60 * FRAME
    sizes = _bytes(source, tmp_path / "work", _opened, _migrated(version), range(0, grown, step))
    print(f"version {version}: killed at {lines} lines and {sizes} sizes")
    assert lines >= FEW // 2 and sizes > shm // step


@pytest.mark.parametrize("version", [1, 2])
def test_migration_killed_anywhere_is_done_whole_or_not_at_all(tmp_path: Path, version: int) -> None:
    _migrations_killed(tmp_path, version, FEW, 5 * FRAME)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", [1, 2])
def test_migration_killed_at_every_line(tmp_path: Path, version: int) -> None:
    _migrations_killed(tmp_path, version, None, 1030)


def _compacted_rows() -> list[Record]:
    rows: list[Record] = [run_row(), params_row(1)]
    for step in range(STEPS):
        rows += [shard_row(step), long_update_row(step), summary_row(step)]
        rows += [SymptomRow("run-a", 0, step, 0, b"TSYM%d" % step), WorstRow("run-a", 0, step, 0, WORST + b"%d" % step)]
    return rows


def _compact(directory: Path) -> None:
    store = SqliteStore(directory)
    limits = {"shards_before": STEPS - KEPT_SHARDS, "summaries_before": STEPS - KEPT_SUMMARIES}
    while store.thin("run-a", **limits).result().shards_from is not None:
        pass
    store.close()


def _compaction_is_sound(directory: Path) -> None:
    """What compaction may not touch is as it was; what it may is as it was or gone, and the next one goes on."""
    store = SqliteStore(directory)
    try:
        assert store.rows(UpdateRow, "run-a") == [long_update_row(step) for step in range(STEPS)]
        shards = {row.step: row for row in store.rows(ShardRow, "run-a")}
        assert sorted(shards) == list(range(STEPS))
        for step, row in shards.items():
            assert row.digest == "d" and (row == shard_row(step) or (is_thinned(row) and step < STEPS - KEPT_SHARDS))
        for kind, first in (
            (SymptomRow, STEPS - KEPT_SHARDS),
            (SummaryRow, STEPS - KEPT_SUMMARIES),
            (WorstRow, STEPS - KEPT_SUMMARIES),
        ):
            kept = [row for row in _compacted_rows() if type(row) is kind]
            found = store.rows(kind, "run-a")
            assert [row for row in kept if row.step >= first] == [row for row in found if row.step >= first]
            assert all(row in kept for row in found)
        assert (store.damage.times, store.corrupt_rows) == (0, 0)
    finally:
        store.close()
    _compact(directory)
    store = SqliteStore(directory)
    try:
        assert [row.step for row in store.rows(ShardRow, "run-a") if is_thinned(row)] == list(
            range(STEPS - KEPT_SHARDS)
        )
        assert [row.step for row in store.rows(SummaryRow, "run-a")] == list(range(STEPS - KEPT_SUMMARIES, STEPS))
        assert (store.damage.times, store.corrupt_rows) == (0, 0)
    finally:
        store.close()


def _compaction_killed(tmp_path: Path, places: int | None, step: int) -> None:
    source = tmp_path / "killed"
    store = SqliteStore(tmp_path / "source")
    for row in _compacted_rows():
        store.write(row).result()
    shutil.copytree(tmp_path / "source", source)  # with all of it in the log still
    store.close()
    lines = _lines(source, tmp_path / "work", _compact, _compaction_is_sound, places)
    begun = (source / "triage.db-wal").stat().st_size
    sizes = _bytes(source, tmp_path / "work", _compact, _compaction_is_sound, range(begun, begun + 200 * FRAME, step))
    print(f"compaction: killed at {lines} lines and {sizes} sizes")
    assert lines >= FEW // 2 and sizes > 3


def test_compaction_killed_anywhere_touches_nothing_it_should_keep(tmp_path: Path) -> None:
    _compaction_killed(tmp_path, FEW, 2 * FRAME + 1000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_compaction_killed_at_every_line(tmp_path: Path) -> None:
    _compaction_killed(tmp_path, None, 1030)


def _mending_killed(tmp_path: Path, places: int | None, step: int) -> None:
    """The database's header is gone, so that every row is carried over into a new one."""
    source, rows = tmp_path / "source", _compacted_rows()
    _store(source, rows)
    with (source / "triage.db").open("r+b") as file:
        file.write(bytes(100))

    def check(directory: Path) -> None:
        assert verdict(directory, rows) == (0, 0, 0)
        store = SqliteStore(directory)
        assert (store.damage.times, store.damage.set_aside, store.suspect) == (1, 1, None)
        store.close()

    lines = _lines(source, tmp_path / "work", _opened, check, places)
    sizes = _bytes(source, tmp_path / "work", _opened, check, range(0, 400 * FRAME, step))
    print(f"mending: killed at {lines} lines and {sizes} sizes")
    assert lines >= FEW // 2 and sizes > 3


def test_mending_killed_anywhere_is_done_by_the_next_start(tmp_path: Path) -> None:
    _mending_killed(tmp_path, FEW, 7 * FRAME)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_mending_killed_at_a_thousand_of_its_lines(tmp_path: Path) -> None:
    """It comes to some 30,000: every row of every page is looked at."""
    _mending_killed(tmp_path, 1000, 4120)


def _arrays(step: int) -> dict[str, object]:
    gap = np.random.default_rng(step).normal(0, 0.1, 60).astype(np.float32)
    return {"gap": gap, "advantages": np.ones(6), "offsets": np.arange(0, 61, 10)}


def _record(directory: Path) -> None:
    """Each append is on disk when it returns; `acknowledged` says so from outside."""
    with RecordingWriter(directory / "recording", run="run-a") as writer:
        for step in range(3, 6):
            writer.append(step, 0, _arrays(step))
            with (directory / "acknowledged").open("a") as file:
                file.write(f"{step}\n")


def _recording_is_sound(directory: Path) -> None:
    """Every update that was acknowledged, at most one more, each as it was; a new writer goes on behind them."""
    kept = {item.step: item.rows.gap.tobytes() for item in iter_updates([directory / "recording"])}
    said = directory / "acknowledged"
    told = [0, 1, 2, *(map(int, said.read_text().split()) if said.exists() else ())]
    assert list(kept) in (told, [*told, told[-1] + 1])
    assert all(kept[step] == _arrays(step)["gap"].tobytes() for step in kept)  # type: ignore[attr-defined]
    with RecordingWriter(directory / "recording", run="run-a") as writer:
        assert writer.newest == (0, max(kept))
        writer.append(9, 0, _arrays(9))
    assert [item.step for item in iter_updates([directory / "recording"])] == [*kept, 9]


def test_recording_killed_anywhere_holds_whole_parts_only(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "source" / "recording", run="run-a") as writer:
        for step in range(3):
            writer.append(step, 0, _arrays(step))
    lines = _lines(tmp_path / "source", tmp_path / "work", _record, _recording_is_sound, FEW)
    sizes = _bytes(tmp_path / "source", tmp_path / "work", _record, _recording_is_sound, range(0, 1 << 20, 97))
    print(f"recording: killed at {lines} lines and {sizes} sizes")
    assert lines >= FEW // 2 and sizes > 10
