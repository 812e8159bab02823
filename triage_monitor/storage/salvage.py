"""A new database from what can be read of a damaged one; the damaged files are kept, under `damaged/`.

    every page of file and log -> cells -> rows whose checksum holds -> triage.db.new -> triage.db.salvaged -> triage.db

A row is known by its column types and its checksum, so no tree, header or schema of the old file is needed. Of two rows
under one key the later written one (the higher row id) counts. The rename to `triage.db.salvaged` is the point of no
return: killed before it, a start begins anew; killed after it, the next start only finishes the renaming.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from triage_monitor.errors import StoreCorrupt
from triage_monitor.storage.disk import synced
from triage_monitor.storage.ledger import Ledger, Mended, ledger_from, write_ledger
from triage_monitor.storage.pages import Pages, Value
from triage_monitor.storage.records import ALL_KINDS, Record, SymptomRow, WorstRow
from triage_monitor.storage.rowcodec import checksum

_STORED: dict[str, type | tuple[type, ...]] = {"int": int, "bool": int, "float": (float, int), "bytes": bytes}
_ZLIB = b"\x78\x9c"
Shape = tuple[type[Record], tuple[tuple[str, bool], ...]]


def salvage(path: Path, mark: Ledger | None, page_bytes: int, prepare: Callable[[sqlite3.Connection], int]) -> Mended:
    """Replaces the database at `path`, of pages of so many bytes; `prepare` makes the schema in an empty one.

    Raises StoreCorrupt, and leaves everything as it was, when nothing says that the file ever was a store.
    """
    pages = Pages(path, page_bytes)
    beside = fresh_file(path)
    with closing(sqlite3.connect(beside, isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size = {page_bytes}")
        db.execute("PRAGMA synchronous = OFF")
        epoch = prepare(db)
        db.execute("BEGIN")
        rows, meta = _carry_over(pages, db)
        known = ledger_from(meta)
        if mark is None and known is None and not rows and "epoch" not in meta:
            db.execute("ROLLBACK")
            db.close()
            beside.unlink()
            raise StoreCorrupt(f"{path} is damaged, or was never a store: not one row of it can be read")
        mended = _balance(rows, known, mark, meta.get("epoch", epoch))
        write_ledger(db, mended.ledger)
        db.execute("COMMIT")
        db.execute("PRAGMA journal_mode = WAL")
    put_in_place(beside, path.with_name(f"{path.name}.salvaged"))
    finish(path)
    return mended


def fresh_file(path: Path) -> Path:
    """Where a new database is built before it takes its name, with nothing there that a killed start left."""
    beside = path.with_name(f"{path.name}.new")
    for ending in ("", "-journal", "-wal", "-shm"):
        beside.with_name(f"{beside.name}{ending}").unlink(missing_ok=True)
    return beside


def put_in_place(beside: Path, path: Path) -> None:
    """Durable before it has its name, and its name durable too."""
    synced(beside)
    beside.replace(path)
    synced(path.parent)


def finish(path: Path) -> None:
    """Puts a salvaged database in the damaged one's place, if there is one waiting."""
    ready = path.with_name(f"{path.name}.salvaged")
    if not ready.exists():
        return
    old = [path.with_name(name) for name in (f"{path.name}-wal", f"{path.name}-shm", path.name)]
    left = [file for file in old if file.exists()]
    if left:
        aside = path.parent / "damaged" / f"{set_aside_count(path.parent) + 1:04d}"
        aside.mkdir(parents=True)
        for file in left:
            file.rename(aside / file.name)
    ready.rename(path)
    synced(path.parent)


def set_aside_count(directory: Path) -> int:
    with suppress(FileNotFoundError):
        return len(list((directory / "damaged").iterdir()))
    return 0


def _balance(rows: int, known: Ledger | None, mark: Ledger | None, epoch: int) -> Mended:
    """What is lost: writes the database does not know of, and rows it should have held and did not give up."""
    newest = max([item for item in (known, mark) if item is not None], key=lambda item: item.written, default=None)
    if newest is None:
        return Mended(Ledger(epoch, rows, rows, 0, 1))
    behind = newest.written - known.written if known is not None else 0
    missing = max(0, (newest if known is None else known).rows - rows)
    lost = behind + missing
    return Mended(Ledger(newest.epoch, newest.written, rows, newest.lost + lost, newest.damages + 1), lost)


def _carry_over(pages: Pages, db: sqlite3.Connection) -> tuple[int, dict[str, int]]:
    shapes = _shapes()
    rows = 0
    meta: dict[str, tuple[int, int]] = {}
    for rowid, values in pages.rows():
        if len(values) == 2 and isinstance(values[0], str) and isinstance(values[1], int):
            if values[0] not in meta or rowid > meta[values[0]][0]:
                meta[values[0]] = (rowid, values[1])
            continue
        found = _recognised(shapes.get(len(values), ()), values)
        if found is not None:
            rows += _keep(db, found[0], rowid, found[1])
    return rows, {name: value for name, (_, value) in meta.items()}


@cache
def _shapes() -> dict[int, list[Shape]]:
    """Column count, checksum included -> the kinds that have so many, each with its columns' types."""
    shapes: dict[int, list[Shape]] = {}
    for kind in ALL_KINDS:
        types = [str(item.type) for item in fields(kind)]
        columns = tuple((text.removesuffix(" | None"), text.endswith("| None")) for text in types)
        shapes.setdefault(len(columns) + 1, []).append((kind, columns))
    return shapes


def _recognised(shapes: list[Shape] | tuple[()], values: tuple[Value, ...]) -> tuple[type[Record], list[Value]] | None:
    for kind, columns in shapes:
        cells = list(_cells(columns, values[:-1]))
        if len(cells) == len(columns) and checksum(cells) == values[-1] and _is_content_of(kind, cells):
            return kind, [*cells, values[-1]]
    return None


def _is_content_of(kind: type[Record], cells: list[Value]) -> bool:
    """Symptoms and worst responses have the same columns: the latter are a zlib stream, the former never begin so."""
    if kind not in (SymptomRow, WorstRow):
        return True
    content = cells[-1]
    return isinstance(content, bytes) and content.startswith(_ZLIB) == (kind is WorstRow)


def _cells(columns: tuple[tuple[str, bool], ...], values: tuple[Value, ...]) -> Iterator[Value]:
    """The values as the columns have them, up to the first that does not fit. Whole REALs are stored as integers."""
    for (kind, optional), value in zip(columns, values, strict=True):
        fits = optional if value is None else isinstance(value, _STORED.get(kind, str))
        if not fits:
            return
        yield float(value) if kind == "float" and isinstance(value, int) else value


@dataclass(frozen=True, slots=True)
class _Statements:
    """What keeping a row of one kind takes, and where its key stands."""

    key: tuple[int, ...]
    find: str
    delete: str
    insert: str
    insert_anew: str


def _statements(kind: type[Record]) -> _Statements:
    where = " AND ".join(f"{name} = ?" for name in kind.KEY)
    names = (*kind.columns(), "checksum")
    columns, marks = ", ".join(names), ", ".join("?" * len(names))
    return _Statements(
        tuple(kind.columns().index(name) for name in kind.KEY),
        f"SELECT rowid FROM {kind.TABLE} WHERE {where}",
        f"DELETE FROM {kind.TABLE} WHERE {where}",
        f"INSERT INTO {kind.TABLE} (rowid, {columns}) VALUES (?, {marks})",
        f"INSERT INTO {kind.TABLE} ({columns}) VALUES ({marks})",
    )


_STATEMENTS = {kind: _statements(kind) for kind in ALL_KINDS}


def _keep(db: sqlite3.Connection, kind: type[Record], rowid: int, cells: list[Value]) -> int:
    """1 when the row is new here, 0 when its key is known already."""
    sql = _STATEMENTS[kind]
    key = [cells[place] for place in sql.key]
    known = db.execute(sql.find, key).fetchone()
    if known is not None:
        if known[0] >= rowid:
            return 0
        db.execute(sql.delete, key)
    try:
        db.execute(sql.insert, (rowid, *cells))
    except sqlite3.IntegrityError:  # the row id was used again after its row had gone
        db.execute(sql.insert_anew, cells)
    return 0 if known is not None else 1
