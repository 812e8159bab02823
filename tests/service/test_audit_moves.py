"""The audit trail after its run was moved and its store mended: whole where it is whole, and told where it is not."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from service.test_audit import copied, faults, made  # noqa: F401

from triage_monitor.storage.audit import WITNESS_FILE
from triage_monitor.storage.sqlite import SqliteStore
from triage_monitor.storage.transfer import export_run, import_run

Made = tuple[Path, dict[str, object]]


def test_trail_of_an_imported_run_verifies_before_and_after_the_next_start(made: Made, tmp_path: Path) -> None:  # noqa: F811
    file, there = tmp_path / "run.triage", tmp_path / "there"
    export_run(made[0], "run", file)
    import_run(there, file)
    assert faults(there) == ""
    SqliteStore(there).close()
    assert faults(there) == ""
    with sqlite3.connect(there / "triage.db") as db:
        db.execute("DELETE FROM audit WHERE run = 'run' AND number = 7")
    db.close()
    assert "entry 7 was cut off" in faults(there)


def test_trail_of_a_mended_store_verifies_when_its_pages_do(made: Made, tmp_path: Path) -> None:  # noqa: F811
    home = copied(made, tmp_path)
    with (home / "triage.db").open("r+b") as file:
        file.write(bytes(100))  # the header: nothing opens it any more, and every row is still there
    store = SqliteStore(home)
    assert store.damage.times == 1
    store.close()
    assert faults(home) == ""
    (home / WITNESS_FILE).unlink()
    assert "the witness knows nothing of this run" in faults(home)


def test_entry_that_the_damage_took_is_told(made: Made, tmp_path: Path) -> None:  # noqa: F811
    home = copied(made, tmp_path)
    content = bytearray((home / "triage.db").read_bytes())
    place = content.index(b"alice")
    content[place : place + 5] = b"malic"
    content[:100] = bytes(100)
    (home / "triage.db").write_bytes(content)
    SqliteStore(home).close()
    assert "is missing" in faults(home)
