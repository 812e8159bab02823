"""A run as one file: the round trip is equal, a damaged file or a known run is refused and nothing changes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from storage.store_rows import params_row, run_row, shard_row, summary_row, update_row

from triage_monitor.errors import ConfigError, ConflictError, InputError
from triage_monitor.storage.records import ALL_KINDS, ActionRow, StateRow, SymptomRow, TransitionRow, WorstRow
from triage_monitor.storage.sqlite import SqliteStore
from triage_monitor.storage.transfer import export_run, import_run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    store = SqliteStore(directory)
    for run in ("run-a", "run-b"):
        store.write(run_row(run), StateRow(run, {"last": [0, 3]}, {"counts": {}}), params_row(1, run=run)).result()
        for step in range(4):
            store.write(shard_row(step, run=run), update_row(step, run=run), summary_row(step, run=run)).result()
        store.write(
            SymptomRow(run, 0, 3, 0, bytes(range(256))),
            WorstRow(run, 0, 3, 0, b"worst"),
            TransitionRow(run, 1, 0, 3, 4.25, "healthy", "drift", {"why": "caf\u00e9"}),
            ActionRow(run, "key", 1, "digest", 5.0, "operator", "gate", "applied", {}, {"params_version": 1}),
        ).result()
    store.close()
    return directory


def _everything(directory: Path, run: str) -> list[object]:
    store = SqliteStore(directory)
    try:
        return [row for kind in ALL_KINDS for row in store.rows(kind, run)]
    finally:
        store.close()


def test_round_trip_is_equal_row_by_row(source: Path, tmp_path: Path) -> None:
    done = export_run(source, "run-a", tmp_path / "a.triage")
    assert (done.rows["updates"], done.damaged) == (4, 0)
    target = tmp_path / "target"
    assert import_run(target, tmp_path / "a.triage").rows == done.rows
    assert _everything(target, "run-a") == _everything(source, "run-a")
    assert _everything(target, "run-b") == []


def test_known_run_is_refused_and_left_as_it_was(source: Path, tmp_path: Path) -> None:
    export_run(source, "run-a", tmp_path / "a.triage")
    before = _everything(source, "run-a")
    with pytest.raises(ConflictError, match="already"):
        import_run(source, tmp_path / "a.triage")
    assert _everything(source, "run-a") == before


def test_damaged_or_cut_file_is_refused_and_nothing_is_imported(source: Path, tmp_path: Path) -> None:
    file, target = tmp_path / "a.triage", tmp_path / "target"
    export_run(source, "run-a", file)
    whole = file.read_bytes()
    for at in range(0, len(whole), len(whole) // 12):
        file.write_bytes(whole[:at])
        with pytest.raises(InputError):
            import_run(target, file)
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        try:
            import_run(target, file)
        except InputError:
            continue
        # Bytes of the gzip header that carry no content, such as its time stamp.
        assert at < 10
        assert _everything(target, "run-a") == _everything(source, "run-a")
        return_to_empty(target)
    text = gzip.decompress(whole)
    file.write_bytes(gzip.compress(text.replace(b'"operator"', b'"nobody--"')))
    with pytest.raises(InputError, match="no sound row"):
        import_run(target, file)
    lines = text.splitlines(keepends=True)
    file.write_bytes(gzip.compress(b"".join(lines[:3] + lines[4:])))
    with pytest.raises(InputError, match="row counts"):
        import_run(target, file)
    assert not (target / "triage.db").exists() or _everything(target, "run-a") == []


def return_to_empty(target: Path) -> None:
    for path in target.iterdir():
        path.unlink()


def test_running_sidecar_may_be_exported_from_and_not_imported_into(source: Path, tmp_path: Path) -> None:
    running = SqliteStore(source)
    running.write(update_row(9)).result()
    assert export_run(source, "run-a", tmp_path / "a.triage").rows["updates"] == 5
    export_run(source, "run-b", tmp_path / "b.triage")
    with pytest.raises(ConfigError, match="in use"):
        import_run(source, tmp_path / "b.triage")
    running.close()


def test_run_that_is_not_there_and_file_that_is_none_are_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run 'nobody'"):
        export_run(source, "nobody", tmp_path / "x")
    with pytest.raises(ConfigError, match="holds no store"):
        export_run(tmp_path / "empty", "run-a", tmp_path / "x")
    (tmp_path / "plain").write_bytes(gzip.compress(b"[1, 2]\n"))
    with pytest.raises(InputError, match="no exported run"):
        import_run(tmp_path / "target", tmp_path / "plain")
    assert not (tmp_path / "x").exists()
