"""A store that cannot be opened: made anew where the file is to blame, left as it is where its surroundings are."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path

import pytest
from storage.store_rows import run_row, shard_row, update_row

from triage_monitor.errors import ConfigError, StoreFull
from triage_monitor.storage.disk import ROOM_BYTES, require_room
from triage_monitor.storage.records import ShardRow, UpdateRow
from triage_monitor.storage.sqlite import SqliteStore


def _stored(directory: Path) -> None:
    store = SqliteStore(directory)
    store.write(run_row(), shard_row(1), update_row(1)).result()
    store.close()


@pytest.mark.parametrize("event", ["UPDATE", "INSERT"])
def test_store_that_shows_no_damage_and_cannot_be_opened_is_made_anew(tmp_path: Path, event: str) -> None:
    """SQLite itself finds nothing wrong with a trigger whose table does not exist."""
    _stored(tmp_path)
    with sqlite3.connect(tmp_path / "triage.db") as db:
        db.execute(f"CREATE TRIGGER broken BEFORE {event} ON meta BEGIN DELETE FROM nowhere; END")
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()
    for _ in range(2):
        store = SqliteStore(tmp_path)
        assert store.rows(ShardRow, "run-a") == [shard_row(1)]
        assert store.rows(UpdateRow, "run-a") == [update_row(1)]
        assert (store.damage.times, store.damage.lost_writes, store.damage.set_aside) == (1, 0, 1)
        store.close()


_NO_ROOM = """
    import resource, sys
    from pathlib import Path
    from triage_monitor.errors import ConfigError, StoreFull
    from triage_monitor.storage.sqlite import SqliteStore
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
    try:
        SqliteStore(Path(sys.argv[1]))
    except StoreFull as error:
        print(error)
"""


def test_whole_store_on_a_full_disk_is_left_as_it_is(tmp_path: Path) -> None:
    _stored(tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(_NO_ROOM), str(tmp_path)]
    child = subprocess.run(command, capture_output=True, text=True)
    assert "cannot be written or read now" in child.stdout, child.stderr
    assert not (tmp_path / "damaged").exists()
    store = SqliteStore(tmp_path)
    assert (store.damage.times, store.rows(ShardRow, "run-a")) == (0, [shard_row(1)])
    store.close()


def test_whole_store_that_another_program_holds_is_left_as_it_is(tmp_path: Path) -> None:
    """A copy being made by other means, or a shell of SQLite left open: for SQLite's five seconds, then refused."""
    _stored(tmp_path)
    with closing(sqlite3.connect(tmp_path / "triage.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreFull, match="database is locked"):
            SqliteStore(tmp_path)
    assert not (tmp_path / "damaged").exists()
    store = SqliteStore(tmp_path)
    assert (store.damage.times, store.rows(ShardRow, "run-a")) == (0, [shard_row(1)])
    store.close()


def test_probe_changes_no_row_and_leaves_no_file(tmp_path: Path) -> None:
    _stored(tmp_path)
    store = SqliteStore(tmp_path)
    before = {path.name for path in tmp_path.iterdir()}
    log = (tmp_path / "triage.db-wal").stat().st_size
    store.probe()
    assert (tmp_path / "triage.db-wal").stat().st_size > log
    assert {path.name for path in tmp_path.iterdir()} == before
    store.close()
    again = SqliteStore(tmp_path)
    assert (again.damage.times, again.rows(ShardRow, "run-a")) == (0, [shard_row(1)])
    again.close()


_PROBES = f"""
    import resource, sys
    from pathlib import Path
    from triage_monitor.errors import ConfigError, StoreFull
    from triage_monitor.storage.sqlite import SqliteStore
    store = SqliteStore(Path(sys.argv[1]))
    for most in ({ROOM_BYTES} // 2, (Path(sys.argv[1]) / "triage.db-wal").stat().st_size + 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        try:
            store.probe()
        except StoreFull:
            print("refused")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.probe()
    store.close()
"""


def test_probe_fails_while_there_is_no_room(tmp_path: Path) -> None:
    _stored(tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(_PROBES), str(tmp_path)]
    child = subprocess.run(command, capture_output=True, text=True)
    assert (child.stdout, child.returncode) == ("refused\nrefused\n", 0), child.stderr


def test_room_where_a_file_is_in_the_way_of_the_directory_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "recordings").touch()
    with pytest.raises(StoreFull, match="recordings takes no file"):
        require_room(tmp_path / "recordings")


def test_database_behind_a_link_keeps_all_that_belongs_to_it_beside_the_file(tmp_path: Path) -> None:
    """A larger disk for the database alone. Its log was not found when it had to be mended."""
    first, second, disk = (tmp_path / name for name in ("first", "second", "disk"))
    for directory in (first, second, disk):
        directory.mkdir()
    for directory in (first, second):
        (directory / "triage.db").symlink_to(disk / "triage.db")
    store = SqliteStore(first)
    store.write(run_row(), shard_row(1), update_row(1)).result()
    with pytest.raises(ConfigError, match="in use"):
        SqliteStore(second)
    killed = tmp_path / "killed"
    shutil.copytree(disk, killed)  # as they stand now: what was written is in the log
    store.close()
    assert (killed / "triage.db-wal").stat().st_size > 0
    with (killed / "triage.db").open("r+b") as file:
        file.write(b"no header of a store")
    (second / "triage.db").unlink()
    (second / "triage.db").symlink_to(killed / "triage.db")
    mended = SqliteStore(second)
    assert (mended.damage.times, mended.damage.lost_writes) == (1, 0)
    assert mended.rows(ShardRow, "run-a") == [shard_row(1)] and mended.rows(UpdateRow, "run-a") == [update_row(1)]
    mended.close()
    assert (second / "triage.db").is_symlink() and (killed / "damaged" / "0001" / "triage.db").exists()
