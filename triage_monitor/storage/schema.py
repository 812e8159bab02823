"""The SQLite schema, derived from `records`, and its versions.

`SCHEMA_VERSION` is stored in the file. A file of an older version is brought forward by `MIGRATIONS`, one step
after the other in one transaction; a newer one is refused. Changing a record changes the schema: raise the version
and add the step (a test pins the present text).
"""

from __future__ import annotations

import sqlite3
from dataclasses import fields
from functools import cache

from triage_monitor.errors import ConfigError
from triage_monitor.storage.records import BESIDE, KINDS, Record

SCHEMA_VERSION = 3
DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the second where SQLite's message quotes a damaged name
# version -> statements that lead from it to the next one
MIGRATIONS: dict[int, tuple[str, ...]] = {
    1: (
        "CREATE TABLE symptoms (run TEXT NOT NULL, attempt INTEGER NOT NULL, step INTEGER NOT NULL,"
        " shard INTEGER NOT NULL, symptoms BLOB NOT NULL, checksum BLOB NOT NULL,"
        " PRIMARY KEY (run, attempt, step, shard))",
    ),
    2: (
        "CREATE TABLE audit (run TEXT NOT NULL, number INTEGER NOT NULL, at REAL NOT NULL, who TEXT NOT NULL,"
        " actor TEXT NOT NULL, kind TEXT NOT NULL, outcome TEXT NOT NULL, reason TEXT NOT NULL, before TEXT NOT NULL,"
        " after TEXT NOT NULL, about TEXT NOT NULL, previous TEXT NOT NULL, link TEXT NOT NULL,"
        " checksum BLOB NOT NULL, PRIMARY KEY (run, number))",
        "CREATE TABLE cursors (run TEXT NOT NULL, target TEXT NOT NULL, at REAL NOT NULL, transitions INTEGER NOT NULL,"
        " links INTEGER NOT NULL, checksum BLOB NOT NULL, PRIMARY KEY (run, target))",
    ),
}

_SQL_TYPES = {"int": "INTEGER", "bool": "INTEGER", "float": "REAL", "str": "TEXT", "bytes": "BLOB"}


def table_sql(kind: type[Record], *, unless_there: bool = False) -> str:
    columns = []
    for item in fields(kind):
        plain = str(item.type).removesuffix(" | None")
        optional = str(item.type).endswith("| None")
        columns.append(f"{item.name} {_SQL_TYPES.get(plain, 'TEXT')}{'' if optional else ' NOT NULL'}")
    columns.append("checksum BLOB NOT NULL")
    condition = "IF NOT EXISTS " if unless_there else ""
    return f"CREATE TABLE {condition}{kind.TABLE} ({', '.join(columns)}, PRIMARY KEY ({', '.join(kind.KEY)}))"


def lossy_text(stored: bytes) -> str:
    """Damaged text is read too, to fail its row's checksum and not the whole query."""
    return stored.decode("utf-8", "replace")


@cache
def schema_sql() -> tuple[str, ...]:
    return (
        "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL)",
        *(table_sql(kind) for kind in KINDS),
        *(
            f"CREATE INDEX {kind.TABLE}_in_order ON {kind.TABLE} ({', '.join(kind.ORDER)})"
            for kind in KINDS
            if kind.ORDER
        ),
    )


@cache
def _beside_sql() -> tuple[str, ...]:
    return tuple(table_sql(kind, unless_there=True) for kind in BESIDE)


def prepare(db: sqlite3.Connection, *, epoch: int) -> int:
    """Creates or migrates the schema; returns the store's epoch. ConfigError when the file is newer than this code."""
    db.execute("BEGIN IMMEDIATE")
    try:
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
            for statement in schema_sql():
                db.execute(statement)
            db.executemany("INSERT INTO meta VALUES (?, ?)", [("schema_version", SCHEMA_VERSION), ("epoch", epoch)])
        else:
            _migrate(db)
        for statement in _beside_sql():
            db.execute(statement)
        stored = db.execute("SELECT value FROM meta WHERE name = 'epoch'").fetchone()
    except BaseException:
        if db.in_transaction:  # a full disk may have ended it already, and is to be named, not this
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
    return int(stored[0])


def _migrate(db: sqlite3.Connection) -> None:
    (version,) = db.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone()
    if version > SCHEMA_VERSION:
        raise ConfigError(f"the store has schema version {version}; this program knows up to {SCHEMA_VERSION}")
    while version < SCHEMA_VERSION:
        for statement in MIGRATIONS[version]:
            db.execute(statement)
        version += 1
    db.execute("UPDATE meta SET value = ? WHERE name = 'schema_version'", (version,))
