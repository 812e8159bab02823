"""A run as one file: the round trip is equal, a damaged file or a known run is refused and nothing changes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import textwrap
from base64 import b64encode
from collections import Counter
from hashlib import blake2b
from pathlib import Path

import pytest
from storage.store_rows import params_row, run_row, shard_row, summary_row, update_row

from triage_monitor.errors import ConfigError, ConflictError, InputError
from triage_monitor.storage.records import ALL_KINDS, ActionRow, StateRow, SymptomRow, TransitionRow, WorstRow
from triage_monitor.storage.rowcodec import checksum
from triage_monitor.storage.schema import SCHEMA_VERSION
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


def test_export_replaces_plain_files_only_and_leaves_nothing_of_one_that_failed(source: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.mkfifo(home / "pipe")
    (home / "directory").mkdir()
    (home / "link").symlink_to(home / "kept")
    (home / "kept").write_text("old")
    (home / "device").symlink_to("/dev/null")
    for name in ("pipe", "directory", "device"):
        with pytest.raises(InputError, match="no plain file"):
            export_run(source, "run-a", home / name)
    assert (home / "pipe").is_fifo() and Path("/dev/null").is_char_device()
    export_run(source, "run-a", home / "link")
    assert (home / "link").is_symlink() and (home / "kept").read_bytes()[:2] == b"\x1f\x8b"
    assert {path.name for path in home.iterdir()} == {"pipe", "directory", "device", "link", "kept"}


_FULL = """
    import resource, sys
    from pathlib import Path
    from triage_monitor.storage.transfer import export_run
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    try:
        export_run(Path(sys.argv[1]), "run-a", Path(sys.argv[2]))
    except OSError as error:
        print(error.strerror)
"""


def test_export_that_finds_no_room_takes_none(source: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "a.triage").write_text("the last one")
    running = SqliteStore(source)  # else SQLite itself would need room
    command = [sys.executable, "-c", textwrap.dedent(_FULL), str(source), str(home / "a.triage")]
    child = subprocess.run(command, capture_output=True, text=True)
    running.close()
    assert child.stdout == "File too large\n", child.stderr
    assert [path.read_text() for path in home.iterdir()] == ["the last one"]


def _written(file: Path, *lines: object) -> None:
    """An export by hand: whole, whatever it says."""
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    rows = Counter(line[0] for line in lines if isinstance(line, list))
    end = {"rows": dict(rows), "digest": blake2b(body, digest_size=16).hexdigest()}
    file.write_bytes(gzip.compress(body + json.dumps(end).encode() + b"\n"))


def test_whole_file_that_names_no_run_or_holds_a_number_no_store_takes_is_refused(tmp_path: Path) -> None:
    head = {"format": "triage-run", "version": 1, "schema": SCHEMA_VERSION}
    target = tmp_path / "target"
    for name in ("../x", "a\nb", "", ".", "a" * 129, "\x1b[2J", None, 7, ["run"]):
        _written(tmp_path / "a.triage", {**head, "run": name})
        with pytest.raises(InputError, match="as none may be called"):
            import_run(target, tmp_path / "a.triage")
    cells = ["run", 2**70, 1, "digest", 1.0]
    row = ["attempts", [*cells, {"b": b64encode(checksum(cells)).decode()}]]
    _written(tmp_path / "a.triage", {**head, "run": "run"}, row)
    with pytest.raises(InputError, match="64 bits"):
        import_run(target, tmp_path / "a.triage")
    assert not target.exists()
