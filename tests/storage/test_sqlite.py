"""What only a disk can show: restarts, kills, damage, a full disk, two processes."""

from __future__ import annotations

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from storage.old_store import age
from storage.store_rows import params_row, run_row, shard_row, summary_row, update_row

from triage_monitor.errors import ConfigError, StoreCorrupt, StoreFull
from triage_monitor.storage.ledger import Ledger
from triage_monitor.storage.records import (
    AuditRow,
    CursorRow,
    Outcome,
    ParamsRow,
    ShardRow,
    SummaryRow,
    SymptomRow,
    UpdateRow,
)
from triage_monitor.storage.schema import SCHEMA_VERSION, schema_sql, table_sql
from triage_monitor.storage.sqlite import SqliteStore


def test_reopened_store_holds_everything(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.write(run_row(), shard_row(1), update_row(1), summary_row(1), params_row(1)).result()
    store.close()
    again = SqliteStore(tmp_path)
    assert again.rows(UpdateRow, "run-a") == [update_row(1)]
    assert again.rows(ShardRow, "run-a") == [shard_row(1)]
    again.close()


def test_pragmas_are_those_of_the_promise(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    db = store._writer_db
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert db.execute("PRAGMA synchronous").fetchone() == (2,)
    store.close()


def test_second_process_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    code = (
        "import pathlib as p, sys; from triage_monitor.storage.sqlite import SqliteStore as S; S(p.Path(sys.argv[1]))"
    )
    second = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert second.returncode != 0
    assert f"in use by another process (pid {os.getpid()})" in second.stderr
    with pytest.raises(ConfigError, match="in use"):
        SqliteStore(tmp_path)
    store.close()
    SqliteStore(tmp_path).close()


_WRITER = """
    import sys
    from pathlib import Path
    from storage.store_rows import run_row, shard_row
    from triage_monitor.storage.sqlite import SqliteStore
    store = SqliteStore(Path(sys.argv[1]))
    store.write(run_row()).result()
    step = int(sys.argv[2])
    while True:
        calls = [store.write(shard_row(step + i)) for i in range(8)]
        for i, call in enumerate(calls):
            call.result()
            print(step + i, flush=True)
        step += 8
"""


def test_killed_writer_loses_no_acknowledged_row(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    acknowledged: list[int] = []
    for turn, enough in enumerate((3, 17, 40)):
        writer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_WRITER), str(tmp_path), str(turn * 10_000)],
            stdout=subprocess.PIPE, text=True, env=env,
        )  # fmt: skip
        assert writer.stdout is not None
        for _ in range(enough):
            acknowledged.append(int(writer.stdout.readline()))
        writer.send_signal(signal.SIGKILL)
        acknowledged.extend(int(line) for line in writer.stdout.read().split("\n")[:-1])
        writer.wait()
        writer.stdout.close()
    store = SqliteStore(tmp_path)
    kept = {row.step: row for row in store.rows(ShardRow, "run-a")}
    assert len(acknowledged) >= 60
    assert [step for step in acknowledged if kept.get(step) != shard_row(step)] == []
    assert store.corrupt_rows == 0
    store.close()


def test_damaged_row_is_counted_and_never_served(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    for step in (1, 2, 3):
        store.write(summary_row(step), shard_row(step, digest="whole")).result()
    store.close()
    with sqlite3.connect(tmp_path / "triage.db") as db:
        db.execute("UPDATE summaries SET summary = replace(summary, 'm', 'n') WHERE step = 2")
        db.execute("UPDATE shards SET digest = 'other' WHERE step = 2")
    db.close()
    store = SqliteStore(tmp_path)
    assert [row.step for row in store.rows(SummaryRow, "run-a")] == [1, 3]
    assert store.get(SummaryRow, "run-a", 0, 2) is None
    assert store.corrupt_rows == 1
    assert store.write(shard_row(2, digest="whole")).result() == (Outcome.NEW,)
    assert store.get(ShardRow, "run-a", 0, 2, 0) == shard_row(2, digest="whole")
    assert store.corrupt_rows == 2
    store.close()


def test_file_that_is_no_store_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "triage.db").write_bytes(b"not a database at all" * 400)
    before = (tmp_path / "triage.db").read_bytes()
    with pytest.raises(StoreCorrupt, match="damaged"):
        SqliteStore(tmp_path)
    assert (tmp_path / "triage.db").read_bytes() == before


def test_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    SqliteStore(tmp_path).close()
    with sqlite3.connect(tmp_path / "triage.db") as db:
        values = dict(db.execute("SELECT name, value FROM meta").fetchall())
        newer = Ledger(values["epoch"]).seal(SCHEMA_VERSION + 1)
        db.execute("UPDATE meta SET value = ? WHERE name = 'schema_version'", (SCHEMA_VERSION + 1,))
        db.execute("UPDATE meta SET value = ? WHERE name = 'seal'", (newer,))
    db.close()
    with pytest.raises(ConfigError, match=f"schema version {SCHEMA_VERSION + 1}"):
        SqliteStore(tmp_path)


_FULL_DISK = """
    import resource, sys
    from pathlib import Path
    from storage.store_rows import shard_row
    from triage_monitor.errors import StoreFull
    from triage_monitor.storage.records import ShardRow
    from triage_monitor.storage.sqlite import SqliteStore
    store = SqliteStore(Path(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    kept = refused = 0
    for step in range(100):
        try:
            store.write(shard_row(step)).result()
            kept += 1
        except StoreFull:
            refused += 1
    assert kept > 0 and refused > 0, (kept, refused)
    assert len(store.rows(ShardRow, "run-a")) == kept
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.write(shard_row(1000)).result()
    assert len(store.rows(ShardRow, "run-a")) == kept + 1
    store.close()
    print("recovered")
"""


def test_full_disk_refuses_and_recovers_without_a_restart(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_FULL_DISK), str(tmp_path)], capture_output=True, text=True, env=env
    )
    assert child.stdout == "recovered\n", child.stderr


def test_waiting_calls_share_one_commit(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    commits: list[str] = []
    store._writer_db.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    calls = [store.write(shard_row(step)) for step in range(200)]
    assert [call.result() for call in calls] == [(Outcome.NEW,)] * 200
    assert 1 <= len(commits) < 100
    store.close()


def _text_hash(texts: list[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def test_store_of_version_1_is_brought_forward_and_takes_what_is_new(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.write(run_row(), shard_row(1), update_row(1), summary_row(1)).result()
    store.close()
    assert _text_hash(age(tmp_path, 1)) == "af7e64d8d93fdb67"  # the schema text that version 1 had
    store = SqliteStore(tmp_path)
    assert store.rows(ShardRow, "run-a") == [shard_row(1)]
    assert store.rows(SymptomRow, "run-a") == []
    assert store.damage.times == 0
    symptoms = SymptomRow("run-a", 0, 2, 0, b"symptoms")
    assert store.write(shard_row(2), symptoms).result() == (Outcome.NEW, Outcome.NEW)
    store.close()
    again = SqliteStore(tmp_path)
    assert (again.corrupt_rows, again.rows(SymptomRow, "run-a")) == (0, [symptoms])
    again.close()
    with sqlite3.connect(tmp_path / "triage.db") as db:
        assert db.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone() == (SCHEMA_VERSION,)
        made = db.execute("SELECT sql FROM sqlite_master WHERE name = 'symptoms'").fetchone()[0]
    assert made == table_sql(SymptomRow)


def test_store_of_version_2_keeps_its_rows_and_begins_an_audit_trail(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.write(run_row(), params_row(1)).result()
    store.close()
    assert _text_hash(age(tmp_path, 2)) == "2200cf60dfff9020"  # the schema text that version 2 had
    store = SqliteStore(tmp_path)
    assert store.rows(ParamsRow, "run-a") == [params_row(1)]
    assert store.damage.times == 0
    link = AuditRow("run-a", 1, 2.0, "ops", "ops", "pause", "applied", "why", {}, {}, {}, "before", "link")
    cursor = CursorRow("run-a", "pager", 2.0, 0, 1)
    assert store.write(link, cursor).result() == (Outcome.NEW, Outcome.NEW)
    store.close()
    again = SqliteStore(tmp_path)
    assert (again.rows(AuditRow, "run-a"), again.rows(CursorRow, "run-a")) == ([link], [cursor])
    again.close()
    with sqlite3.connect(tmp_path / "triage.db") as db:
        for kind in (AuditRow, CursorRow):
            made = db.execute("SELECT sql FROM sqlite_master WHERE name = ?", (kind.TABLE,)).fetchone()[0]
            assert made == table_sql(kind)
    db.close()


def test_closed_store_refuses_writes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.close()
    with pytest.raises(StoreFull, match="closed"):
        store.write(run_row())


def test_schema_text_changes_only_with_its_version() -> None:
    text = "\n".join(schema_sql())
    assert (SCHEMA_VERSION, hashlib.sha256(text.encode()).hexdigest()[:16]) == (3, "b59b6555b7a89bf2")
