"""A run in one file, to be kept or to go on in another data directory: `export_run`, `import_run`.

A gzip of JSON lines: what it is; one line a row (table, cells as stored, the row's checksum last); and an end that
counts the rows and holds a BLAKE2b digest over every byte before it. Nothing of a file that does not verify to its last
byte is imported, and nothing where a row of the run exists already. Rows that fail their checksum are not exported;
the answer counts them. Memory is bounded by one row.
"""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from triage_monitor.errors import ConfigError, ConflictError, InputError, StoreCorrupt, StoreFull
from triage_monitor.storage.audit import WITNESS_FILE
from triage_monitor.storage.audit_witness import Witness
from triage_monitor.storage.opening import is_damage, open_database
from triage_monitor.storage.records import ALL_KINDS, RUN_NAME, Record, RunRow
from triage_monitor.storage.rowcodec import Cell, decode_row
from triage_monitor.storage.schema import DATABASE_ERRORS, SCHEMA_VERSION
from triage_monitor.storage.sqlite import SqliteStore

FORMAT = "triage-run"
VERSION = 1
MAX_LINE_BYTES = 128 << 20
_BY_TABLE = {kind.TABLE: kind for kind in ALL_KINDS}
Row = tuple[type[Record], tuple[Cell, ...]]


@dataclass(frozen=True, slots=True)
class Transfer:
    """What went over: rows by table, and how many damaged ones did not."""

    run: str
    rows: dict[str, int]
    damaged: int = 0


def export_run(directory: Path, run: str, file: Path) -> Transfer:
    """Writes `file` whole or not at all. The sidecar may be running: one moment of its store is exported."""
    database = directory / "triage.db"
    if not database.exists():
        raise ConfigError(f"{directory} holds no store")
    if file.exists() and not file.is_file():
        raise InputError("no_file", "is no plain file, and nothing else is replaced by an export", path=str(file))
    file = file.resolve()  # of a link the file that it leads to
    beside = file.with_name(f".{file.name}.tmp")
    try:
        with closing(open_database(database, read_only=True)) as db:
            _refuse_other(db, run, directory)
            with beside.open("wb") as raw:
                transfer = _write(raw, db, run)
                raw.flush()
                os.fsync(raw.fileno())
        beside.replace(file)
    except DATABASE_ERRORS as error:
        if not is_damage(error):
            raise StoreFull(f"the store in {directory} cannot be read now: {error}") from error
        raise StoreCorrupt(f"the store in {directory} cannot be read: {error}; starting `serve` mends it") from error
    finally:
        beside.unlink(missing_ok=True)  # what a full disk left of it would keep the disk full
    return transfer


def _refuse_other(db: sqlite3.Connection, run: str, directory: Path) -> None:
    """Begins the moment that is exported."""
    db.execute("BEGIN")
    (version,) = db.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone()
    if version != SCHEMA_VERSION:
        raise ConfigError(f"the store has schema version {version}, not {SCHEMA_VERSION}; `serve` brings it forward")
    if db.execute(f"SELECT 1 FROM {RunRow.TABLE} WHERE run = ?", (run,)).fetchone() is None:
        raise InputError("unknown_run", f"there is no run '{run}' in {directory}")


def import_run(directory: Path, file: Path) -> Transfer:
    """Raises InputError for a damaged file, ConflictError when the run exists, ConfigError while a sidecar runs."""
    run, rows = _verified(file)
    store = SqliteStore(directory)
    try:
        known = {kind.TABLE: store.count(kind, run) for kind in ALL_KINDS}
        if any(known.values()):
            raise ConflictError(f"run '{run}' is in {directory} already; nothing was imported")
        store.adopt(_rows(file, run)).result()
        Witness(directory / WITNESS_FILE).reconcile(store)  # else its audit trail would look made up
    finally:
        store.close()
    return Transfer(run, rows)


def _write(raw: BinaryIO, db: sqlite3.Connection, run: str) -> Transfer:
    counts: Counter[str] = Counter()
    damaged = 0
    digest = blake2b(digest_size=16)
    with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=3, mtime=0) as out:

        def put(item: Any) -> None:
            line = json.dumps(item, allow_nan=False, separators=(",", ":")).encode() + b"\n"
            digest.update(line)
            out.write(line)

        put({"format": FORMAT, "version": VERSION, "schema": SCHEMA_VERSION, "run": run})
        for kind in _present(db):
            for cells in db.execute(f"SELECT * FROM {kind.TABLE} WHERE run = ? ORDER BY rowid", (run,)):
                try:
                    decode_row(kind, cells)
                except StoreCorrupt:
                    damaged += 1
                    continue
                put([kind.TABLE, [_plain(cell) for cell in cells]])
                counts[kind.TABLE] += 1
        put({"rows": dict(counts), "digest": digest.hexdigest()})
    return Transfer(run, dict(counts), damaged)


def _present(db: sqlite3.Connection) -> list[type[Record]]:
    """The kinds this store has tables for: one from before a table has no row of it."""
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return [kind for kind in ALL_KINDS if kind.TABLE in tables]


def _verified(file: Path) -> tuple[str, dict[str, int]]:
    """The run and its rows by table, after every byte was looked at."""
    digest = blake2b(digest_size=16)
    counts: Counter[str] = Counter()
    run, end = "", None
    for number, line in enumerate(_lines(file)):
        if end is not None:
            raise _damaged(file, "it goes on after its end")
        item = _parsed(file, number, line)
        if number == 0:
            run = _run_of(file, item)
        elif isinstance(item, dict):
            end = item
            if item != {"rows": dict(counts), "digest": digest.hexdigest()}:
                raise _damaged(file, "its checksum or its row counts do not hold")
        else:
            counts[_row(file, number, item, run)[0].TABLE] += 1
        digest.update(line)
    if end is None:
        raise _damaged(file, "its end is missing")
    return run, dict(counts)


def _rows(file: Path, run: str) -> Iterator[Row]:
    for number, line in enumerate(_lines(file)):
        item = _parsed(file, number, line)
        if isinstance(item, list):
            yield _row(file, number, item, run)


def _lines(file: Path) -> Iterator[bytes]:
    try:
        with gzip.open(file, "rb") as stream:
            while line := stream.readline(MAX_LINE_BYTES):
                yield line
    except FileNotFoundError:
        raise InputError("no_file", "there is no such file", path=str(file)) from None
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(file, str(error)) from error


def _run_of(file: Path, head: Any) -> str:
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise InputError("not_an_export", "is no exported run", path=str(file))
    known = {"version": VERSION, "schema": SCHEMA_VERSION}
    for name, value in known.items():
        if head.get(name) != value:
            detail = f"was exported with {name} {head.get(name)}, this program reads {value}"
            raise InputError("version", detail, path=str(file))
    run = head.get("run")
    if not isinstance(run, str) or RUN_NAME.fullmatch(run) is None:
        raise InputError("run_name", "names a run as none may be called; nothing was imported", path=str(file))
    return run


def _row(file: Path, number: int, item: Any, run: str) -> Row:
    try:
        table, plain = item
        kind = _BY_TABLE[table]
        cells = tuple(_cell(value) for value in plain)
        row = decode_row(kind, cells)
    except (KeyError, TypeError, ValueError, StoreCorrupt) as error:
        raise _damaged(file, f"line {number + 1} is no sound row ({error})") from error
    if row.run != run:
        raise _damaged(file, f"line {number + 1} belongs to run '{row.run}'")
    return kind, cells


def _parsed(file: Path, number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _damaged(file, f"line {number + 1} is no JSON ({error})") from error


def _damaged(file: Path, detail: str) -> InputError:
    return InputError("damaged_file", f"the export is damaged: {detail}; nothing was imported", path=str(file))


def _plain(cell: Cell) -> Any:
    return {"b": b64encode(cell).decode()} if isinstance(cell, bytes) else cell


def _cell(value: Any) -> Cell:
    if isinstance(value, dict):
        return b64decode(value["b"], validate=True)
    if isinstance(value, int) and value.bit_length() > 63:
        raise ValueError("a whole number of more than 64 bits")
    cell: Cell = value
    return cell
