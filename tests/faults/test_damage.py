"""Every file of the data directory cut short or with a bit flipped: no wrong value, no uncounted loss, no refusal."""

from __future__ import annotations

import logging
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from faults.damage import STEPS, content, cut, flipped, killed_store, long_update_row, verdict
from storage.store_rows import shard_row

from triage_monitor.storage.ledger import MARK_NAME
from triage_monitor.storage.records import ALL_KINDS, Outcome, ShardRow, SymptomRow, UpdateRow
from triage_monitor.storage.sqlite import SqliteStore

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    log = logging.getLogger("triage_monitor")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("killed") / "data"
    killed_store(tmp_path_factory.mktemp("store"), copy, [(row,) for row in content()])
    return copy


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("closed")
    killed_store(directory, tmp_path_factory.mktemp("unused") / "data", [(row,) for row in content()])
    return directory


def _sweep(source: Path, work: Path, times: int, seed: int) -> dict[str, int]:
    rng, rows = random.Random(seed), content()
    counts = {"damaged": 0, "gone": 0, "wrong": 0, "uncounted": 0}
    for name in sorted(path.name for path in source.iterdir()):
        for harm in (flipped, cut):
            for _ in range(times):
                shutil.rmtree(work, ignore_errors=True)
                shutil.copytree(source, work)
                (work / name).write_bytes(harm((work / name).read_bytes(), rng))
                gone, wrong, known = verdict(work, rows)
                counts["damaged"] += 1
                counts["gone"] += gone
                counts["wrong"] += wrong
                counts["uncounted"] += gone > known
    return counts


@pytest.mark.parametrize("state", ["killed", "closed"])
def test_any_file_damaged_anywhere_gives_no_wrong_value_and_no_uncounted_loss(
    state: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    counts = _sweep(request.getfixturevalue(state), tmp_path / "work", times=3, seed=11)
    assert (counts["wrong"], counts["uncounted"]) == (0, 0)
    assert counts["damaged"] >= 18


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("state", ["killed", "closed"])
def test_any_file_damaged_in_many_places(state: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    counts = _sweep(request.getfixturevalue(state), tmp_path / "work", times=100, seed=12)
    print(state, counts)
    assert (counts["wrong"], counts["uncounted"]) == (0, 0)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_log_cut_at_every_frame_and_mark_at_every_byte(killed: Path, tmp_path: Path) -> None:
    rows, work = content(), tmp_path / "work"
    frame = 4096 + 24
    sizes = {"triage.db-wal": range(0, (killed / "triage.db-wal").stat().st_size, frame), MARK_NAME: range(64)}
    for name, cuts in sizes.items():
        whole = (killed / name).read_bytes()
        for size in cuts:
            if size < len(whole):
                shutil.rmtree(work, ignore_errors=True)
                shutil.copytree(killed, work)
                (work / name).write_bytes(whole[:size])
                gone, wrong, known = verdict(work, rows)
                assert wrong == 0 and gone <= known, (name, size, gone, wrong, known)


def test_row_after_a_broken_log_frame_is_recovered(killed: Path, tmp_path: Path) -> None:
    """SQLite ends its log at the first broken frame and says nothing; the rows behind it are whole."""
    work = tmp_path / "work"
    shutil.copytree(killed, work)
    log = bytearray((work / "triage.db-wal").read_bytes())
    log[32 + 24 + 4000] ^= 1
    (work / "triage.db-wal").write_bytes(log)
    with sqlite3.connect(work / "triage.db") as plain:
        assert plain.execute("SELECT count(*) FROM sqlite_master WHERE name = 'shards'").fetchone()[0] <= 1
    plain.close()
    shutil.rmtree(work)
    shutil.copytree(killed, work)
    (work / "triage.db-wal").write_bytes(log)
    assert verdict(work, content())[:2] == (0, 0)
    store = SqliteStore(work)
    assert (store.damage.times, store.damage.set_aside) == (1, 1)
    store.close()


def test_lost_log_is_counted_to_the_write(killed: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(killed, work)
    (work / "triage.db-wal").unlink()
    gone, wrong, known = verdict(work, content())
    assert (wrong, gone) == (0, known)
    assert gone > 0


def test_every_kind_of_row_is_told_apart_by_its_columns_but_the_two_that_their_content_tells_apart() -> None:
    shapes = Counter(tuple(str(item.type) for item in fields(kind)) for kind in ALL_KINDS)
    shared = {shape for shape, times in shapes.items() if times > 1}
    assert shared == {tuple(str(item.type) for item in fields(SymptomRow))}
    assert shapes[shared.pop()] == 2


def test_header_of_zeros_loses_no_row(closed: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(closed, work)
    with (work / "triage.db").open("r+b") as file:
        file.write(bytes(100))
    assert verdict(work, content()) == (0, 0, 0)


def test_mended_store_takes_writes_and_heals_what_is_sent_again(closed: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(closed, work)
    size = (work / "triage.db").stat().st_size
    with (work / "triage.db").open("r+b") as file:
        file.truncate(size // 2)
    store = SqliteStore(work)
    lost = store.damage.lost_writes
    assert lost > 0
    missing = [step for step in range(STEPS) if store.get(ShardRow, "run-a", 0, step, 0) is None]
    outcomes = [store.write(shard_row(step)).result()[0] for step in range(STEPS)]
    assert outcomes.count(Outcome.NEW) == len(missing)
    store.close()
    again = SqliteStore(work)
    assert again.rows(ShardRow, "run-a") == [shard_row(step) for step in range(STEPS)]
    assert (again.damage.times, again.damage.lost_writes) == (1, lost)
    again.close()


def test_start_killed_while_the_mended_store_takes_its_place_is_finished_by_the_next(
    closed: Path, tmp_path: Path
) -> None:
    """The new database waits under its second name while the old files are half moved away."""
    work, mended = tmp_path / "work", tmp_path / "mended"
    for place in (work, mended):
        shutil.copytree(closed, place)
    (mended / "triage.db").write_bytes(bytes(100) + (mended / "triage.db").read_bytes()[100:])
    SqliteStore(mended).close()
    (work / "triage.db").unlink()
    shutil.copy(mended / "triage.db", work / "triage.db.salvaged")
    (work / "triage.db-wal").write_bytes(b"left over")
    assert verdict(work, content())[:2] == (0, 0)


def test_damage_that_comes_while_it_runs_is_noted_and_mended_by_the_next_opening(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    for step in range(STEPS):
        store.write(long_update_row(step)).result()
    store.close()
    store = SqliteStore(tmp_path)
    with sqlite3.connect(tmp_path / "triage.db") as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'updates'").fetchone()
    db.close()
    with (tmp_path / "triage.db").open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(bytes(64))
    with pytest.raises(Exception, match="damaged"):
        store.rows(UpdateRow, "run-a")
    assert store.suspect is not None
    store.close()
    again = SqliteStore(tmp_path)
    assert again.rows(UpdateRow, "run-a") == [long_update_row(step) for step in range(STEPS)]
    assert (again.suspect, again.damage.times, again.damage.lost_writes) == (None, 1, 0)
    again.close()
