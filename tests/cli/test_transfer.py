"""`export` and `import` as commands: what they say and how they end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from storage.store_rows import run_row, update_row

from triage_monitor.storage.sqlite import SqliteStore


def test_run_goes_out_and_in_and_is_refused_where_it_exists(cli: Any, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a")
    store.write(run_row(), update_row(1), update_row(2)).result()
    store.close()
    file = tmp_path / "run.triage"
    out = cli("export", "run-a", file, "--data-dir", tmp_path / "a")
    assert (out.code, out.out) == (0, f"run-a: 3 rows, 2 updates, in {file}\n")
    into = cli("import", file, "--data-dir", tmp_path / "b")
    assert (into.code, into.out) == (0, f"run-a: 3 rows, 2 updates, in {tmp_path / 'b'}\n")
    again = cli("import", file, "--data-dir", tmp_path / "b")
    assert (again.code, again.out) == (1, "")
    assert "is in" in again.err and "nothing was imported" in again.err


def test_run_that_is_not_there_is_bad_input(cli: Any, tmp_path: Path) -> None:
    SqliteStore(tmp_path).close()
    refused = cli("export", "nobody", tmp_path / "x", "--data-dir", tmp_path)
    assert refused.code == 2
    assert "there is no run 'nobody'" in refused.err
