"""Before a store is opened: is it whole, and if not, what is left of it.

Looks at the header, SQLite's own integrity check (every page and index entry), the columns of every table, and the
ledger against its mark. Whatever is wrong is counted in the ledger and said; a damaged database is salvaged (see
`salvage`) and the service starts on the rest. Content of rows is not read here: a wrong byte in one fails its own
checksum when it is read. A database above `WHOLE_CHECK_BYTES` has its pages checked only after it was found damaged.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from triage_monitor.storage.ledger import Ledger, Mended, is_sealed, ledger_from, read_mark, write_ledger
from triage_monitor.storage.opening import is_damage
from triage_monitor.storage.pages import PAGE
from triage_monitor.storage.records import ALL_KINDS, BESIDE
from triage_monitor.storage.salvage import finish, fresh_file, put_in_place, salvage
from triage_monitor.storage.schema import DATABASE_ERRORS, SCHEMA_VERSION, lossy_text, prepare

WHOLE_CHECK_BYTES = 2 << 30
SUSPECT_NAME = "suspect"
_SIGNS = 5
_TABLE_COLUMNS = " UNION ALL ".join(
    f"SELECT '{kind.TABLE}', name FROM pragma_table_info('{kind.TABLE}')" for kind in ALL_KINDS
)
# SQLite takes a name that became a blob, or has a letter in another case, for the name it was; no query finds it.
_WRONG_SCHEMA = """SELECT 1 FROM sqlite_master WHERE typeof(type) <> 'text' OR typeof(name) <> 'text'
    OR typeof(tbl_name) <> 'text' OR typeof(rootpage) <> 'integer' OR typeof(sql) NOT IN ('text', 'null')
    UNION ALL SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'meta')"""
logger = logging.getLogger("triage_monitor")


def mend(path: Path, epoch: int, page_bytes: int = PAGE, *, unusable: str | None = None) -> Mended | None:
    """What became of a store that had to be mended, None of one that was whole or is new. The directory is locked.
    `unusable` says why one that shows no sign of damage could not be opened all the same."""
    finish(path)
    mark, mark_damaged = read_mark(path.parent)
    suspect = path.with_name(SUSPECT_NAME)
    if not _exists(path):
        signs = ["the database is gone"] if mark is not None and mark.written else []
    else:
        signs = list(_signs(path, mark, page_bytes, thorough=suspect.exists())) if unusable is None else [unusable]
    mended = None
    if not _exists(path) and not signs:
        _create(path, epoch, page_bytes)
    elif signs:
        logger.error("the store %s is damaged: %s", path, "; ".join(signs))
        mended = salvage(path, mark, page_bytes, lambda db: prepare(db, epoch=epoch))
        ledger = mended.ledger
        kept = f"{ledger.rows} rows are kept, {ledger.lost} acknowledged writes are lost since it was made"
        logger.error(
            "the store %s was made anew from what is readable: %s; see %s", path, kept, path.parent / "damaged"
        )
    elif mark is None:
        mended = _without_mark(path, mark_damaged)
    suspect.unlink(missing_ok=True)
    return mended


def _create(path: Path, epoch: int, page_bytes: int) -> None:
    """An empty store, under its name only when it is whole: a first start may be killed as well."""
    beside = fresh_file(path)
    with closing(sqlite3.connect(beside, isolation_level=None)) as db:
        db.execute(f"PRAGMA page_size = {page_bytes}")
        write_ledger(db, Ledger(prepare(db, epoch=epoch)))
        db.execute("PRAGMA journal_mode = WAL")
    put_in_place(beside, path)


def _exists(path: Path) -> bool:
    return path.exists() and (path.stat().st_size > 0 or path.with_name(f"{path.name}-wal").exists())


def _without_mark(path: Path, damaged: bool) -> Mended | None:
    """A store whose mark is damaged or gone is counted as damaged; one of before there were marks is not."""
    with closing(_reading(path)) as db:
        ledger = ledger_from(_meta(db))
    if ledger is None or (not ledger.written and not damaged):
        return None
    logger.error("the store's mark beside %s is %s; it is made anew", path, "damaged" if damaged else "gone")
    return Mended(replace(ledger, damages=ledger.damages + 1))


def _header(page_bytes: int) -> tuple[tuple[int, bytes], ...]:
    """Of the header's 100 bytes those that never change in a store of ours: offset, value."""
    size = page_bytes.to_bytes(2, "big")
    return (0, b"SQLite format 3\0" + size + b"\x02\x02\0@  "), (44, b"\0\0\0\x04"), (56, b"\0\0\0\x01")


def _signs(path: Path, mark: Ledger | None, page_bytes: int, *, thorough: bool) -> Iterator[str]:
    """Signs of damage, the plainest first; the first one found is enough to salvage."""
    with path.open("rb") as file:
        head = file.read(100)
    if any(head[at : at + len(value)] != value for at, value in _header(page_bytes)):
        yield "its header is not that of a store"
        return
    try:
        with closing(_reading(path)) as db:
            yield from _signs_inside(db, path, mark, thorough=thorough)
    except DATABASE_ERRORS as error:
        if not is_damage(error):
            raise  # the disk, the memory or another process has to let go of it first: it stays as it is
        yield str(error)


def _signs_inside(db: sqlite3.Connection, path: Path, mark: Ledger | None, *, thorough: bool) -> Iterator[str]:
    meta = _meta(db)
    ledger = ledger_from(meta)
    if ledger is None and (is_sealed(meta) or mark is not None):
        yield "its own record of itself does not verify"
        return
    if ledger is not None and mark is not None and ledger.written < mark.written:
        yield f"{mark.written - ledger.written} acknowledged writes are missing at its end"
    if db.execute(_WRONG_SCHEMA).fetchone() is not None:
        yield "its schema does not name its tables as they are"
        return
    if meta.get("schema_version") == SCHEMA_VERSION:
        yield from _wrong_tables(db)
    if thorough or path.stat().st_size <= WHOLE_CHECK_BYTES:
        found = [str(row[0]) for row in db.execute(f"PRAGMA integrity_check({_SIGNS})")]
        yield from (text for text in found if text != "ok")


def _wrong_tables(db: sqlite3.Connection) -> Iterator[str]:
    found: dict[str, list[str]] = {}
    for table, column in db.execute(_TABLE_COLUMNS):
        found.setdefault(table, []).append(column)
    for kind in ALL_KINDS:
        columns = found.get(kind.TABLE, [])
        if not columns and kind in BESIDE:
            continue  # a store from before there was such a table
        if columns != [*kind.columns(), "checksum"]:
            yield f"table '{kind.TABLE}' does not have its columns"


def _meta(db: sqlite3.Connection) -> dict[str, int]:
    return {str(name): value for name, value in db.execute("SELECT name, value FROM meta") if isinstance(value, int)}


def _reading(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing, not even by closing: the log stays as it is."""
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, isolation_level=None)
    db.text_factory = lossy_text
    return db
